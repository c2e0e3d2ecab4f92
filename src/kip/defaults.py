"""What is used where nothing is said: steps, learning rate, target batch and augmentation by kind of data.

Chosen on a validation split by `benchmarks/defaults.py`; what it measured is in `results/defaults.json`.
"""

from __future__ import annotations

from dataclasses import dataclass

EXPENSIVE_STEPS = 300


@dataclass(frozen=True)
class Defaults:
    """The settings of a run that were not given."""

    steps: int
    learning_rate: float
    batch: int | None
    augment: str


def choose(*, training: int, size: int, image: bool, expensive: bool) -> Defaults:
    """Defaults for `size` support points learned from `training` points.

    `expensive` means a convolutional kernel, of which a step sees fewer targets.
    """
    if expensive:
        return Defaults(EXPENSIVE_STEPS, 0.05, _batch(training, max(480, 5 * size)), "none")
    del image
    steps = 600 if size < 1000 else 300
    return Defaults(steps, 0.1, _batch(training, max(6_000, 5 * size)), "none")


def _batch(training: int, wanted: int) -> int | None:
    return None if wanted >= training else wanted
