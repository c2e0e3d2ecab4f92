"""Where the harnesses write down what they have done."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kip._version import __version__
from kip.files import write_json

RESULTS = Path(__file__).parents[2] / "results" / "faults.json"


def recorded(path: Path, section: str) -> dict[str, Any]:
    """What the file holds in a section."""
    return _read(path).get(section, {})


def record(path: Path, section: str, found: dict[str, Any]) -> None:
    """Put `found` in its section of the file, beside what the other harness has put there."""
    known = _read(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, {**known, section: {"kip": __version__, **found}})


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
