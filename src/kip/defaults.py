"""Defaults by kind of data: steps, learning rate, target batch and augmentation by kind of data.

Chosen on a validation split by `benchmarks/defaults.py`, for the RBF kernel on MNIST and CIFAR-10 with 10 and 100
images, on MNIST with 500 too; `results/defaults.json` holds what it measured. Other sizes are extrapolated;
convolutional kernels are not in it.

The rate for few photographs was chosen on parts of CIFAR-10 (validation accuracy in per cent, three seeds; in brackets
the support points of 30 that no longer take part):

    rate                       0.1         0.3         0.5         1.0
    2 classes of 100, 30       75.9 (0)    76.9 (0)    77.2 (0.3)  77.9 (8)
    3 classes of 100, 30       61.0 (0)    62.7 (0)    63.1 (0)    64.0 (5)
    3 classes of 100, 10       56.7        57.8        58.7        58.2
    600 of all classes, 30     23.0 (0)    22.2 (0)    22.7 (0)    23.3 (0)
    600 of all classes, 10     22.0        21.4        21.7        22.1
    3,000 of 3 classes, 30                             69.9 (0)    70.1 (6)      200 steps
    all of CIFAR-10, 30                                46.5 (0)    46.5 (1)      200 steps
    all of CIFAR-10, 10                                40.3 (0)    39.9 (0)      200 steps

Between 0.5 and 1.0 no difference exceeds the deviation over seeds (at 30 points 1.0 is ahead by 0.2 to 0.9, deviations
are 0.8 to 2.9), and at 0.5 hardly a point is wasted: so it is 0.5 where there are fewer training points than a batch
has. With more of them it is 1.0, as in the published 600 steps.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kip.choices import Kind, LabelMode
from kip.options import Options

VECTOR_FAMILY = "fc1:standard=1024+fc2:standard=1024+fc3:standard=1024"
NETWORK_FAMILY = f"{VECTOR_FAMILY}+conv1:standard=128+conv2:standard=128"
"""The kernels that the paper learns images with which are to train networks, sampled at every step."""


def kind_of(shape: tuple[int, ...]) -> Kind:
    """The kind of data where none is named, by the shape of a raw point: vectors, photos (three channels), images."""
    if len(shape) == 1:
        return "vectors"
    return "photos" if len(shape) == 3 and shape[2] == 3 else "images"


def kernel(purpose: str, *, vectors: bool) -> str:
    """The kernel or family where none is given: RBF, or for networks the family; vectors cannot be convolved."""
    if purpose == "kernels":
        return "rbf"
    return VECTOR_FAMILY if vectors else NETWORK_FAMILY


def resolve(options: Options, *, shape: tuple[int, ...], training: int, classes: int, expensive: bool) -> Options:
    """The options with every None that has a default filled in, so that what is recorded is what was used.

    `shape` is that of a raw point; `expensive` says that pairs of points cost much under one of the kernels.
    """
    kind: Any = options.kind or kind_of(shape)
    size = _or(options.size, max(10, classes))
    found = choose(training=training, size=size, kind=kind, expensive=expensive, purpose=options.purpose)
    steps = _or(options.steps, found.steps)
    return dataclasses.replace(
        options,
        size=size,
        kind=kind,
        steps=steps,
        labels=found.labels if options.labels == "auto" else options.labels,
        learning_rate=_or(options.learning_rate, found.learning_rate),
        batch=_or(options.batch, found.batch),
        augment=augmentation(options.augment, found.augment, kind),
        evaluate_every=_or(options.evaluate_every, evaluate_every(steps)),
        evaluate_targets=_or(options.evaluate_targets, found.evaluate_targets),
    )


def evaluate_every(steps: int) -> int:
    """Steps between evaluations: a twentieth of them."""
    return max(1, steps // 20)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def augmentation(given: str | None, default: str, kind: str) -> str:
    """The augmentation; "auto" asks for one that suits the kind of data."""
    if given == "auto":
        return "photos" if kind == "photos" else "digits"  # small shifts and turns harm least where nothing is known
    return _or(given, default)


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
    evaluate_targets: int = 10_000
    labels: LabelMode = "auto"


def choose(*, training: int, size: int, kind: str, expensive: bool, purpose: str = "kernels") -> Defaults:
    """Defaults for `size` support points learned from `training` points of a `kind`.

    `expensive` means a convolutional kernel, of which a step sees fewer targets. Photographs are augmented: without it
    a hundred learned images fit their training set and little else; a few cannot, and do best with flips alone and
    large steps, half as large where training points are few. So it is with digits, of which a few do best with nothing.

    Images for networks keep their labels and see small batches for a few hundred steps: with more of either the paper
    found them to fit the kernels they were learned with. `benchmarks/networks.py` compared labels, and kernels with
    pooling, which do better for ConvNet and worse for FC3 and LeNet.
    """
    if purpose == "networks":
        augment = "flips" if kind == "photos" else "none"
        batch = _batch(training, max(1_000, 5 * size))
        return Defaults(300, 0.04, batch, augment, evaluate_targets=2_000, labels="fixed")
    if expensive:
        augment = "flips" if kind == "photos" else "none"
        return Defaults(300, 0.05, _batch(training, max(480, 5 * size)), augment, evaluate_targets=2_000)
    batch = _batch(training, max(6_000, 5 * size))
    if kind == "photos" and size < FEW:
        return Defaults(600, 0.5 if batch is None else 1.0, batch, "flips")
    if kind == "photos":
        return Defaults(800, 0.3, batch, "photos")
    return Defaults(_digit_steps(size), 0.2, batch, MILD if kind == "digits" and size >= FEW else "none")


def _digit_steps(size: int) -> int:
    """Small sets converge in fewer steps; for large sets each step is expensive."""
    if size < FEW:
        return 600
    return 1000 if size < 1000 else 300


def _batch(training: int, wanted: int) -> int | None:
    return None if wanted >= training else wanted
