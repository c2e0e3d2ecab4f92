"""What networks are trained and tested on: a distilled set, natural images of the same number, each with noise."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from kip.artefact import DistilledSet
from kip.corruption import Corruption
from kip.nets.grid import Arm
from kip.options import Options
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet, one_hot
from kip.task import split

UNSEEN_SHARE = 0.1
"""Of the training set, to choose on, where distillation held nothing out."""

GRID_TEST = 2000
"""Test points that a setting of the grid is scored on, for the scatter; what is chosen is scored on all."""


@dataclass(frozen=True)
class Study:
    """The sets to compare and what they are tested on, in the distilled set's preprocessed space.

    `train` is what was distilled and `watch` the validation split, which `held_out` says distillation did not see.
    `rho` is that of the corrupted arms, 0 where there are none.
    """

    small: DistilledSet
    arms: tuple[Arm, ...]
    train: LabelledSet
    watch: LabelledSet
    test: LabelledSet
    quick_test: LabelledSet
    held_out: bool
    rho: float


def prepare(
    small: DistilledSet,
    training: tuple[np.ndarray, np.ndarray],
    test: tuple[np.ndarray, np.ndarray],
    *,
    corruption: float | None = None,
    seeds: int = 5,
    validation_size: int = 2000,
) -> Study:
    """Recreate the split that `small` was distilled with, and the arms: raw points and class codes go in.

    Where nothing was held out, a tenth of the training set, which distillation saw, becomes the validation split.
    """
    if len(training[0]) != small.original_size:
        raise ValueError(
            f"the set was distilled from data of {small.original_size:,} points, held-out ones included, but there are "
            f"{len(training[0]):,}; give those that it was distilled from"
        )
    known = {field.name for field in dataclasses.fields(Options)}
    options = Options(**{name: value for name, value in small.config.items() if name in known})
    held_out = options.validation > 0
    if not held_out:
        options = dataclasses.replace(options, validation=UNSEEN_SHARE)
    (x, codes), classes = training, len(small.classes)
    rows, unseen = split(codes, classes, options)
    if len(rows) < len(small):
        raise ValueError(f"there are {len(rows)} natural points for a set of {len(small)}; leave more of them")
    if not len(unseen):
        raise ValueError(
            f"the validation split is empty: {options.validation:.2%} of no class is a whole point; "
            "distil with a larger `validation`"
        )
    if len(unseen) > validation_size:
        unseen = unseen[
            balanced(codes[unseen], classes, validation_size, key=generator(options.seed, Stream.EVALUATE, 2))
        ]

    def points(raw: np.ndarray, codes: np.ndarray) -> LabelledSet:
        return LabelledSet(small.preprocess.apply(raw), one_hot(codes, classes))

    train, whole = points(x[rows], codes[rows]), points(*test)
    quick = whole
    if len(whole) > GRID_TEST:
        quick = whole.take(balanced(whole.codes, classes, GRID_TEST, key=generator(options.seed, Stream.EVALUATE, 3)))
    noise = _noise(small, corruption)
    arms = _arms(small, train, noise, options.seed, seeds)
    return Study(small, arms, train, points(x[unseen], codes[unseen]), whole, quick, held_out, noise.rho)


def _noise(small: DistilledSet, corruption: float | None) -> Corruption:
    """How arms are corrupted: a set learned with noise is compared at its own ρ."""
    rho = small.corruption.rho
    if rho and corruption is not None and corruption != rho:
        raise ValueError(f"`corruption` is {corruption} but the set was learned with {rho}; leave it out")
    return dataclasses.replace(small.corruption, rho=rho if corruption is None else corruption)


def _arms(small: DistilledSet, train: LabelledSet, noise: Corruption, seed: int, seeds: int) -> tuple[Arm, ...]:
    """The distilled set and natural images, one draw per seed; and each with noise, where there is a ρ to compare at.

    A distilled set that was learned without noise gets it afterwards.
    """
    rho = small.corruption.rho
    draws = [
        train.take(balanced(train.codes, train.y.shape[1], len(small), key=generator(seed, Stream.BASELINE, draw)))
        for draw in range(seeds)
    ]
    distilled = LabelledSet(small.x, small.y)
    arms = [Arm("distilled corrupted" if rho else "distilled", (distilled,)), Arm("natural", tuple(draws))]
    if noise.rho:
        if not rho:
            arms.append(Arm("distilled corrupted", (LabelledSet(noise.apply(small.x, key=seed)[0], small.y),)))
        noisy = [LabelledSet(noise.apply(each.x, key=seed + i)[0], each.y) for i, each in enumerate(draws)]
        arms.append(Arm("natural corrupted", tuple(noisy)))
    return tuple(arms)
