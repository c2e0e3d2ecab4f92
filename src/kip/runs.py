"""The run folder: its name, the lock on it, and the files a run writes beside the distilled set.

`config.json` (how it was asked for), `history.jsonl` (one line per step), `metrics.json` (what was measured). The last
is written last: a folder that holds it is finished, and no run writes there again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kip.files import as_path, exclusive, read_json, remove_partials, write_atomic, write_json

CONFIG, HISTORY, METRICS, LOCK = "config.json", "history.jsonl", "metrics.json", ".lock"
DESCRIPTION = "distilled.json"
CHECKPOINTS = "checkpoints"

LONGEST_NAME = 120
"""Letters in the name of a folder; file systems stop at 255 bytes."""


class BusyError(ValueError):
    """Another process is writing this run."""


def run_name(data: str, kernel: str, size: int, seed: int, *, kind: str = "") -> str:
    """DATA-KERNEL-SIZE-sSEED with what file systems dislike taken out.

    >>> run_name("my photos", "fc1:nngp+conv2", 10, 0)
    'my-photos-fc1-nngp+conv2-10-s0'
    """
    parts = [data, kernel, str(size), *([kind] if kind else [])]
    text = "-".join(re.sub(r"[^\w.+=]+", "-", part).strip("-.") for part in parts)
    return f"{text[:LONGEST_NAME]}-s{seed}"


def is_finished(folder: Path) -> bool:
    """Whether a run has been completed here; an interrupted one has measurements too, but also checkpoints."""
    return (folder / METRICS).exists() and not (folder / CHECKPOINTS).exists()


def is_kept(folder: Path) -> bool:
    """Whether there is something here that a new run must not write over: results, or checkpoints to continue from."""
    return any((folder / name).exists() for name in (METRICS, DESCRIPTION, CHECKPOINTS))


@dataclass
class Run:
    """A folder that this process alone writes to; made by `opened`."""

    folder: Path

    def configure(self, config: Mapping[str, Any]) -> None:
        """Write down how the run was asked for."""
        write_json(self.folder / CONFIG, dict(config))

    def reopen(self) -> None:
        """Take back that the run ended, when it is resumed."""
        (self.folder / METRICS).unlink(missing_ok=True)

    @contextlib.contextmanager
    def history(self, *, keep: int = 0) -> Iterator[History]:
        """The history, open for writing; lines of steps up to `keep` stay, as when a run is resumed."""
        path = self.folder / HISTORY
        lines = [entry for entry in read_history(self.folder) if entry["step"] <= keep] if keep else []
        write_atomic(path, "".join(_line(entry) for entry in lines).encode())
        with path.open("ab", buffering=0) as file:  # a line is one write: a kill leaves it whole or not there
            yield History(file, path)

    def flush_history(self) -> None:
        """Bring the history to the disk: where the machine fails, a checkpoint must not outlive what led to it."""
        with contextlib.suppress(FileNotFoundError), (self.folder / HISTORY).open("ab") as file:
            os.fsync(file.fileno())

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Write the measurements, and by that declare the run finished."""
        write_json(self.folder / METRICS, dict(metrics))


@dataclass(frozen=True)
class History:
    """An open history.jsonl."""

    file: IO[bytes]
    path: Path

    def add(self, entry: Mapping[str, Any]) -> None:
        """Write one step; it is with the system, if not on the disk, when this returns."""
        rest = memoryview(_line(entry).encode())
        try:
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            error.filename = str(self.path)  # a full disk names no file
            raise


def _line(entry: Mapping[str, Any]) -> str:
    return json.dumps(dict(entry), ensure_ascii=False, allow_nan=False) + "\n"


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The steps recorded in a run folder, up to the first line that is cut off or not one of ours."""
    path = folder / HISTORY
    if not path.is_file():
        return []
    from kip.data.checks import check_memory, memory_limit  # here, since help is to import nothing that computes

    check_memory(path, path.stat().st_size, memory_limit())
    entries = []
    for line in path.read_bytes().split(b"\n"):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            break
        if (
            not isinstance(entry, dict)
            or type(entry.get("step")) is not int
            or not _is_seconds(entry.get("seconds", 0))
        ):
            break
        entries.append(entry)
    return entries


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < math.inf


def seconds_until(folder: Path, step: int) -> float:
    """How long the recorded steps up to `step` took, those before a resumption included."""
    return max((entry.get("seconds", 0.0) for entry in read_history(folder) if entry["step"] <= step), default=0.0)


def read_config(folder: Path) -> dict[str, Any]:
    """What `config.json` of a run folder holds."""
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {CONFIG}; give a run folder")
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a run's configuration; give a run folder")
    return config


@contextlib.contextmanager
def opened(name: str, out: Path | None = None, *, resume: bool = False, root: Path = Path("runs")) -> Iterator[Run]:
    """A folder to write a run into, locked: `out`, or `root`/`name` with the first of -2, -3, … that is free."""
    if out is not None:
        if not resume:
            check_free(out)
        with _locked(out):
            if not resume:
                check_free(out)  # another process may have finished here meanwhile
            yield Run(out)
        return
    with contextlib.ExitStack() as stack:
        yield Run(_first_free(root, name, stack))


def _first_free(root: Path, name: str, stack: contextlib.ExitStack) -> Path:
    number = 1
    while True:
        folder = as_path(root / (name if number == 1 else f"{name}-{number}"))
        number += 1
        if is_kept(folder):
            continue
        held = contextlib.ExitStack()
        try:
            held.enter_context(_locked(folder))
        except BusyError:
            continue
        if is_kept(folder):
            held.close()
            continue
        stack.push(held)
        return folder


def check_free(out: Path) -> None:
    """Refuse a given folder in which something would be written over."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"`--out` {out} is a file; choose a folder")
    if is_finished(out):
        raise ValueError(f"`--out` {out} holds a finished run, which is never overwritten; choose another folder")
    if (out / CHECKPOINTS).exists():
        raise ValueError(f"`--out` {out} holds an unfinished run; add --resume to continue it, or choose another")
    if (out / DESCRIPTION).exists():
        raise ValueError(f"`--out` {out} holds a distilled set, which is never overwritten; choose another folder")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of `folder`."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(exclusive(folder / LOCK))
        except BlockingIOError as error:
            raise BusyError(
                f"{folder} is in use by another run ({error.strerror}); wait for it to end, or choose another folder"
            ) from None
        remove_partials(folder)
        yield
