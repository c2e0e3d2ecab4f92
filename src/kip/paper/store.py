"""Measured results on disk: `results/<recipe>.json`, a list of records, rewritten whole with each one appended.

Nothing in them is written by hand. A record holds what was asked for and what came: the cell, its setting, the
published number, every single accuracy (per cent, as published), seeds, command, version, seconds, machine, date, and
what deviates from the paper. The newest record of a cell counts.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kip import machine
from kip._version import __version__
from kip.files import exclusive, read_json, write_json
from kip.paper import works
from kip.paper.recipes import Cell
from kip.paper.running.base import Result

Record = dict[str, Any]

LOCK = ".lock"


def record(cell: Cell, result: Result, *, today: datetime.date | None = None) -> Record:
    """What is written down of one measured cell."""
    number = cell.number
    return {
        "cell": cell.id,
        "setting": cell.setting,
        "published": None if number is None else {"mean": number.mean, "deviation": number.deviation},
        "measured": {"mean": _rounded(result.mean), "deviation": _rounded(result.deviation)},
        "accuracies": [round(100 * value, 4) for value in result.accuracies],
        "seeds": list(getattr(cell.work, "seeds", ())),
        "deviates": [*cell.deviations, *result.deviations],
        "details": dict(result.details),
        "work": works.plain(cell.work),
        "command": f"kip reproduce {cell.recipe} --cells {cell.name}",
        "kip": __version__,
        "seconds": round(result.seconds, 1),
        "cores": result.cores or machine.cores(),
        "memory_gb": round(machine.physical_memory() / 2**30, 1),
        "date": (today or datetime.datetime.now(datetime.UTC).date()).isoformat(),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def append(folder: Path, entries: Sequence[Record]) -> None:
    """Add records to the files of their recipes; each file is replaced whole, or left as it was."""
    with exclusive(folder / LOCK, wait=True):  # another process may be adding its own
        for recipe in dict.fromkeys(entry["cell"].partition("/")[0] for entry in entries):
            own = [entry for entry in entries if entry["cell"].partition("/")[0] == recipe]
            write_json(_path(folder, recipe), [*read(folder, recipe), *own])


def read(folder: Path, recipe: str) -> list[Record]:
    """All records of a recipe, oldest first, with settings by the names they have now; none where nothing was run."""
    path = _path(folder, recipe)
    if not path.is_file():
        return []
    found = works.renamed(read_json(path))
    if not isinstance(found, list) or not all(isinstance(each, dict) and "cell" in each for each in found):
        raise ValueError(f"{path} is not a list of measured cells; move it away, or choose another --results")
    return found


def newest(folder: Path, recipe: str) -> dict[str, Record]:
    """The newest record of each cell that was run."""
    return {entry["cell"]: entry for entry in read(folder, recipe)}


def is_of(entry: Record | None, cell: Cell) -> bool:
    """Whether a record is of the cell as its recipe has it now; recipes change, and results stay."""
    return entry is not None and entry["work"] == works.plain(cell.work)


def _path(folder: Path, recipe: str) -> Path:
    return folder / f"{recipe}.json"
