"""Class-balanced sampling, and where random numbers come from."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kip.sets import class_counts


class Stream(IntEnum):
    """What a random number is for: each purpose has its own stream, so that none disturbs another."""

    INIT = 0
    MASK = 1
    NOISE = 2
    KERNEL = 3
    SUPPORT = 4
    TARGET = 5
    AUGMENT = 6
    EVALUATE = 7
    BASELINE = 8
    TRAINING = 9


def generator(key: int, purpose: Stream, step: int = 0) -> np.random.Generator:
    """The random numbers of one purpose at one step: a function of (key, purpose, step) alone.

    Nothing is carried from step to step, so a resumed run draws what an unbroken one would have drawn.
    """
    return np.random.default_rng([key, int(purpose), step])


def allocate(size: int, counts: np.ndarray, there: np.ndarray | int = 0) -> np.ndarray:
    """Sizes per class that add up to `size` and, together with what is `there`, are as equal as the counts allow.

    A class with fewer points than its share gives all it has and the others make up for it; where `size` does not
    divide, the first classes get one more.
    """
    counts, there = np.asarray(counts), np.broadcast_to(there, np.shape(counts))
    if size > counts.sum():
        raise ValueError(f"cannot draw {size} points from {counts.sum()}; ask for at most {counts.sum()}")
    # The highest level to which all classes can be filled: halving, since a batch is drawn at every step.
    level, beyond = 0, int((counts + there).max(initial=0)) + 1
    while beyond - level > 1:
        middle = (level + beyond) // 2
        level, beyond = (middle, beyond) if _filled(counts, there, middle).sum() <= size else (level, middle)
    shares = _filled(counts, there, level)
    shares[np.flatnonzero((shares < counts) & (shares + there == level))[: size - int(shares.sum())]] += 1
    return shares


def _filled(counts: np.ndarray, there: np.ndarray, level: int) -> np.ndarray:
    """What brings each class to `level`, as far as its points go."""
    return np.clip(level - there, 0, counts)


def balanced(codes: np.ndarray, classes: int, size: int, *, key: np.random.Generator) -> np.ndarray:
    """Rows of a class-balanced sample without replacement, ordered by class."""
    shares = allocate(size, class_counts(codes, classes))
    rows = [key.permutation(np.flatnonzero(codes == c))[:share] for c, share in enumerate(shares) if share]
    return np.concatenate(rows)
