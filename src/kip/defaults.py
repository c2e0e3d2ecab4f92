"""What is used where nothing is said: steps, learning rate, target batch and augmentation by kind of data.

Chosen on a validation split by `benchmarks/defaults.py`, for the RBF kernel on MNIST and CIFAR-10 with 10 and 100
images, on MNIST with 500 too; `results/defaults.json` holds what it measured. Other sizes follow by likeness;
convolutional kernels are not in it.
"""

from __future__ import annotations

from dataclasses import dataclass

PURPOSES = ("kernels", "networks")

VECTOR_FAMILY = "fc1:standard=1024+fc2:standard=1024+fc3:standard=1024"
NETWORK_FAMILY = f"{VECTOR_FAMILY}+conv1:standard=128+conv2:standard=128"
"""The kernels that the paper learns images with which are to train networks, sampled at every step."""

FEW = 50
"""Support points below which a set cannot fit the training set, whatever the steps."""

MILD = "digits:0.036"
"""Digits turned a little and shifted by up to a pixel of 28: with a tenth of the image learning takes far longer."""


@dataclass(frozen=True)
class Defaults:
    """The settings of a run that were not given."""

    steps: int
    learning_rate: float
    batch: int | None
    augment: str
    judge_targets: int = 10_000
    labels: str = "auto"


def choose(*, training: int, size: int, kind: str, expensive: bool, purpose: str = "kernels") -> Defaults:
    """Defaults for `size` support points learned from `training` points of a `kind`.

    `expensive` means a convolutional kernel, of which a step sees fewer targets. Photographs are augmented: without it
    a hundred learned images fit their training set and little else; a few cannot, and do best with flips alone and
    large steps. So it is with digits, of which a few do best with nothing.

    Images for networks keep their labels and see small batches for a few hundred steps: with more of either the paper
    found them to fit the kernels they were learned with. `benchmarks/networks.py` compared labels, and kernels with
    pooling, which do better for ConvNet and worse for FC3 and LeNet.
    """
    if purpose not in PURPOSES:
        raise ValueError(f"`purpose` must be one of {', '.join(PURPOSES)}; got {purpose!r}")
    if purpose == "networks":
        augment = "flips" if kind == "photos" else "none"
        batch = _batch(training, max(1_000, 5 * size))
        return Defaults(300, 0.04, batch, augment, judge_targets=2_000, labels="fixed")
    if expensive:
        augment = "flips" if kind == "photos" else "none"
        return Defaults(300, 0.05, _batch(training, max(480, 5 * size)), augment, judge_targets=2_000)
    batch = _batch(training, max(6_000, 5 * size))
    if kind == "photos":
        return Defaults(600, 1.0, batch, "flips") if size < FEW else Defaults(800, 0.3, batch, "photos")
    return Defaults(_digit_steps(size), 0.2, batch, MILD if kind == "digits" and size >= FEW else "none")


def _digit_steps(size: int) -> int:
    """Few points are learned soon, and of many a step takes long."""
    if size < FEW:
        return 600
    return 1000 if size < 1000 else 300


def _batch(training: int, wanted: int) -> int | None:
    return None if wanted >= training else wanted
