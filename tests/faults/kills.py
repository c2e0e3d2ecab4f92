"""Runs killed at random times, resumed, and compared with one that was left alone."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tests.faults.victim import WRITING

import kip
from kip import checkpoint, runs

ROOT = Path(__file__).parents[2]
SHORT = ["--evaluate-every", "4", "--draws", "0"]
CASES: dict[str, list[str]] = {
    "digits, augmented": ["--augment", "digits", "--steps", "40", "--evaluate-every", "7", "--draws", "1"],
    "digits, a family, corrupted, validated": [
        *("--kernel", "rbf+fc1", "--labels", "learned", "--corruption", "0.3", "--batch", "200"),
        *("--support-batch", "10", "--size", "20", "--validation", "0.1", "--steps", "30", *SHORT),
    ],
    "digits, numba": [
        *("--kernel", "conv2", "--engine", "numba", "--augment", "digits", "--batch", "100", "--steps", "16", *SHORT)
    ],
    "digits, a family on jax": [
        *("--kernel", "conv1+fc1:nngp", "--engine", "jax", "--labels", "learned", "--batch", "64", "--targets", "200"),
        *("--steps", "16", *SHORT),
    ],
    "mnist, augmented": [
        *("--data", "mnist", "--targets", "3000", "--batch", "600", "--augment", "digits", "--steps", "16", *SHORT)
    ],
}
"""Short runs that between them have every way of sampling: `kip distill` with these options."""

WRITE_SECONDS = 0.6
"""How long a write that is to be hit is drawn out."""

INSIDE = "inside the writing of a checkpoint"
TIMEOUT = 600.0
TIMES = ("seconds", "seconds_by_part", "checkpoints", "planned")
"""What of `metrics.json` may differ between two runs that are otherwise the same."""


@dataclass
class Tally:
    """What was done: kills by where they struck, and the runs that were compared."""

    kills: Counter[str] = field(default_factory=Counter)
    compared: int = 0

    @property
    def total(self) -> int:
        return sum(self.kills.values())


class Attack:
    """One set of options, run without a break once, and with breaks as often as asked for."""

    def __init__(self, options: list[str], folder: Path, rng: np.random.Generator) -> None:
        self.options, self.folder, self.rng = options, folder, rng
        self.whole = folder / "whole"
        start = time.monotonic()
        self._finish(self.whole)
        self.seconds = time.monotonic() - start
        self.saves = len(runs.read_history(self.whole))
        self.tally = Tally()
        self._rounds = 0

    def kill(self, kills: int, inside: int) -> Tally:
        """Kill `kills` times, `inside` of them within the writing of a checkpoint; compare every run that ends."""
        kinds = list(self.rng.permutation([True] * inside + [False] * (kills - inside)))
        run = self._fresh()
        while kinds:
            killed = self._strike(run, inside=bool(kinds[0]))
            if killed is None:  # it was done before the blow fell
                self._compare(run)
                run = self._fresh()
                continue
            kinds.pop(0)
            self.tally.kills[killed] += 1
            check_whole(run)
            if runs.is_finished(run):  # the blow fell between the last file and the last word
                self._compare(run)
                run = self._fresh()
        self._finish(run)
        self._compare(run)
        return self.tally

    def _fresh(self) -> Path:
        self._rounds += 1
        return self.folder / f"killed-{self._rounds}"

    def _command(self, run: Path) -> list[str]:
        if (run / runs.CONFIG).exists():
            return [sys.executable, "-m", "tests.faults.victim", "distill", "--resume", "--out", str(run)]
        return [sys.executable, "-m", "tests.faults.victim", "distill", "--out", str(run), *self.options]

    def _start(self, run: Path, **environment: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(ROOT), str(Path(kip.__file__).parents[1])])
        return subprocess.Popen(
            self._command(run),
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _finish(self, run: Path) -> None:
        process = self._start(run)
        said, _ = process.communicate(timeout=TIMEOUT)
        assert process.returncode == 0, said

    def _strike(self, run: Path, *, inside: bool) -> str | None:
        """Start or resume the run and kill it; where it was struck, or None if it ended first."""
        before = partials(run)
        if inside:
            left = self.saves - max((entry["step"] for entry in runs.read_history(run)), default=0)
            number = int(self.rng.integers(1, max(2, left)))
            process = self._start(run, FAULTS_SLOW=str(number), FAULTS_SECONDS=str(WRITE_SECONDS))
            said = _until(process, WRITING)
            time.sleep(float(self.rng.uniform(0, WRITE_SECONDS)))
        else:
            process = self._start(run)
            said = _Drain(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(float(self.rng.uniform(0, self.seconds)))
        process.kill()
        process.wait(TIMEOUT)
        text = said.text()
        if process.returncode == 0:
            return None
        assert process.returncode == -9, text
        return struck(run, before)

    def _compare(self, run: Path) -> None:
        assert_identical(run, self.whole)
        shutil.rmtree(run)
        self.tally.compared += 1


class _Drain:
    """Reads what a process says, so that it never waits for a reader."""

    def __init__(self, process: subprocess.Popen[str], word: str | None = None) -> None:
        self.lines: list[str] = []
        self.seen = threading.Event()
        self._thread = threading.Thread(target=self._read, args=(process, word), daemon=True)
        self._thread.start()

    def _read(self, process: subprocess.Popen[str], word: str | None) -> None:
        assert process.stdout is not None
        with process.stdout as out:
            for line in out:
                self.lines.append(line)
                if word is not None and line.startswith(word):
                    self.seen.set()
        self.seen.set()

    def text(self) -> str:
        self._thread.join(TIMEOUT)
        return "".join(self.lines)


def _until(process: subprocess.Popen[str], word: str) -> _Drain:
    """Wait until the process has said `word`, or has ended."""
    said = _Drain(process, word)
    assert said.seen.wait(TIMEOUT)
    return said


def partials(run: Path) -> set[str]:
    """Checkpoints that were being written when the run was killed; the next one that is written clears them away."""
    return {path.name for path in (run / runs.CHECKPOINTS).glob(".*.partial")}


def struck(run: Path, before: set[str]) -> str:
    """Where a run was when it was killed, from what it left beside the half-written files of kills `before`."""
    if partials(run) - before:
        return INSIDE
    if not (run / runs.CONFIG).exists():
        return "before its configuration was written"
    if (run / runs.METRICS).exists():
        return "after its metrics were written"
    if (run / "distilled.safetensors").exists():
        return "while measuring"
    return "while learning" if runs.read_history(run) else "before the first step"


def check_whole(run: Path) -> None:
    """Every file that has its name is whole; what was being written has a name that says so, and is not looked at."""
    for path in (p for p in run.rglob("*") if p.is_file() and not p.name.startswith(".")):
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.name == runs.HISTORY:
            lines = path.read_text(encoding="utf-8").splitlines()
            assert [json.loads(line)["step"] for line in lines] == list(range(1, len(lines) + 1))
        elif path.parent.name == runs.CHECKPOINTS:
            assert checkpoint._is_whole(path), path
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
    if (run / runs.DESCRIPTION).exists():
        kip.load(run)


def assert_identical(run: Path, whole: Path) -> None:
    """The same files, the same bytes of arrays and pictures, the same history and metrics; times aside."""
    assert names(run) == names(whole)
    for name in names(run) - {runs.HISTORY, runs.METRICS, runs.CONFIG}:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name
    assert timeless_history(run) == timeless_history(whole)
    assert timeless(run / runs.METRICS) == timeless(whole / runs.METRICS)
    assert timeless(run / runs.CONFIG) == timeless(whole / runs.CONFIG)


def names(folder: Path) -> set[str]:
    """What a run folder holds; the lock is there as long as the folder is."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*")} - {runs.LOCK}


def timeless_history(folder: Path) -> list[dict[str, Any]]:
    """The history without its times."""
    return [{**entry, "seconds": 0} for entry in runs.read_history(folder)]


def timeless(path: Path) -> dict[str, Any]:
    """A run's metrics or configuration without what was measured by a clock."""
    return {name: value for name, value in json.loads(path.read_text()).items() if name not in TIMES}
