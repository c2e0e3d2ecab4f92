"""What every runner is given and gives back: a work folder, data, a way to stop; accuracies and what deviated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kip import machine
from kip.data import Dataset
from kip.files import read_json, write_json

OUTCOME = "outcome.json"


class StoppedError(Exception):
    """A runner was asked to stop; what it has done is kept and will not be done again."""


@dataclass(frozen=True)
class Result:
    """Test accuracies (fractions) of a work, how long it took, what deviated on the way, and what else was found.

    `cores` are those that the machine had when it was run, which may be long ago; None where that is now.
    """

    accuracies: tuple[float, ...]
    seconds: float
    deviations: tuple[str, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    cores: int | None = None

    @property
    def mean(self) -> float | None:
        """Mean accuracy in per cent, as it is published."""
        return 100 * float(np.mean(self.accuracies)) if self.accuracies else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation in per cent; None for a single accuracy."""
        return 100 * float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else None


@dataclass(frozen=True)
class Context:
    """Where runs are kept between calls, how to get data, and how to speak and to be stopped."""

    folder: Path
    load: Callable[[str], Dataset]
    say: Callable[[str], None] = print
    stop: Callable[[], bool] = lambda: False

    def check(self) -> None:
        """Raise `StoppedError` if a stop was asked for."""
        if self.stop():
            raise StoppedError


def most_cores(found: Iterable[Mapping[str, Any]]) -> int | None:
    """The most cores that any of the outcomes was computed with; None where none says."""
    return max((outcome["cores"] for outcome in found if outcome.get("cores")), default=None)


def kept(folder: Path, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The outcome stored in `folder`; computed and stored where there is none."""
    path = folder / OUTCOME
    if path.is_file():
        return dict(read_json(path))
    folder.mkdir(parents=True, exist_ok=True)
    outcome = {**compute(), "cores": machine.cores()}
    write_json(path, outcome)
    return outcome
