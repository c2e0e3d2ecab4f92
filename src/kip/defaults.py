"""What is used where nothing is said: steps, learning rate, target batch and augmentation by kind of data.

Chosen on a validation split. `benchmarks/defaults.py` measures; `results/defaults.json` holds what it has measured so
far, which is MNIST with one seed. The settings for photographs and for convolutional kernels are not in it yet.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defaults:
    """The settings of a run that were not given."""

    steps: int
    learning_rate: float
    batch: int | None
    augment: str
    judge_targets: int = 10_000


def choose(*, training: int, size: int, kind: str, expensive: bool) -> Defaults:
    """Defaults for `size` support points learned from `training` points of a `kind`.

    `expensive` means a convolutional kernel, of which a step sees fewer targets. Photographs are augmented: without it
    a hundred learned images fit their training set and little else. Digits gain nothing from it in so few steps.
    """
    if expensive:
        augment = "flips" if kind == "photos" else "none"
        return Defaults(300, 0.05, _batch(training, max(480, 5 * size)), augment, judge_targets=2_000)
    batch = _batch(training, max(6_000, 5 * size))
    if kind == "photos":
        return Defaults(800, 0.1, batch, "photos")
    return Defaults(600 if size < 1000 else 300, 0.2, batch, "none")


def _batch(training: int, wanted: int) -> int | None:
    return None if wanted >= training else wanted
