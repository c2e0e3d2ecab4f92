"""Labelled sets: points with label vectors, mean-centred one-hot labels, and the checks every entry point makes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes. JAX uses an array where it lies if it is aligned so, and copies it otherwise; the copy of a batch can cost
more than the products it is for. A row of most images is a multiple of it, so tiles of an aligned array are aligned."""


LAYOUTS = ("channels-last", "channels-first")
CHANNELS = (1, 3, 4)
"""How many channels pictures have: grey, colour, and colour with transparency."""


def aligned_empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An uninitialised array that JAX takes without a copy."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def same_array(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays have one dtype, one shape and the same values."""
    return a.dtype == b.dtype and np.array_equal(a, b)


@dataclass(frozen=True, eq=False)
class LabelledSet:
    """Points `x`, (n, h, w, ch) or (n, d), with label vectors `y`, (n, c): the paper's D = (X, y).

    Two sets are equal where their arrays are.
    """

    x: np.ndarray
    y: np.ndarray

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"`x` and `y` must be of one length; got {len(self.x)} points and {len(self.y)} labels")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LabelledSet):
            return NotImplemented
        return same_array(self.x, other.x) and same_array(self.y, other.y)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.x)

    def take(self, rows: np.ndarray) -> LabelledSet:
        """The subset at `rows` (indices)."""
        x = aligned_empty((len(rows), *self.x.shape[1:]), self.x.dtype)
        np.take(self.x, rows, axis=0, out=x, mode="clip")  # "raise" would take the rows into a buffer first
        return LabelledSet(x, self.y[rows])

    @property
    def codes(self) -> np.ndarray:
        """The class of each point: the index of its largest label entry."""
        return np.argmax(self.y, axis=1)


def unlabelled(x: np.ndarray) -> LabelledSet:
    """Points whose label vectors have no entries: those of a prediction."""
    return LabelledSet(x, np.zeros((len(x), 0), x.dtype))


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of a labelled set (None: all), taken when they are needed: elsewhere their numbers are enough."""

    source: LabelledSet
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.source) if self.rows is None else len(self.rows)

    @cached_property
    def taken(self) -> LabelledSet:
        """The points and labels themselves."""
        return self.source if self.rows is None else self.source.take(self.rows)

    @property
    def x(self) -> np.ndarray:
        """The points."""
        return self.taken.x

    @property
    def y(self) -> np.ndarray:
        """Their label vectors."""
        return self.taken.y


def one_hot(codes: np.ndarray, classes: int, dtype: Any = np.float32) -> np.ndarray:
    """Mean-centred one-hot labels: 1 − 1/C at the class, −1/C elsewhere (Section 4 of the paper)."""
    y = np.full((len(codes), classes), -1.0 / classes, dtype)
    y[np.arange(len(codes)), codes] += 1
    return y


def encode(labels: Any, classes: Sequence[Any] | None = None, name: str = "y") -> tuple[np.ndarray, tuple[Any, ...]]:
    """Integer codes of `labels` and the classes they index, in sorted order where `classes` is not given."""
    labels = np.asarray(labels)
    if labels.ndim != 1:
        raise ValueError(f"`{name}` must be a vector of labels; got shape {labels.shape}")
    if labels.dtype.kind == "f":
        if not (np.isfinite(labels).all() and np.array_equal(labels, np.round(labels))):
            raise ValueError(f"`{name}` must be integer or string labels, or a matrix of targets; got fractions or NaN")
        labels = labels.astype(np.int64)
    if classes is None:
        found, codes = np.unique(labels, return_inverse=True)
        return codes, tuple(found.tolist())
    if labels.dtype.kind in "iu" and all(isinstance(label, str) for label in classes):
        classes_or_codes: Sequence[Any] = range(len(classes))  # data sets with named classes store their codes
    else:
        classes_or_codes = classes
    index = {label: code for code, label in enumerate(classes_or_codes)}
    unknown = sorted({label for label in labels.tolist() if label not in index}, key=str)
    if unknown:
        raise ValueError(f"`{name}` has the label {unknown[0]!r}, which is not one of the {len(classes)} classes")
    return np.array([index[label] for label in labels.tolist()], np.int64), tuple(classes)


def class_counts(codes: np.ndarray, classes: int) -> np.ndarray:
    """How many points each class has."""
    return np.bincount(codes, minlength=classes)


def check_points(x: Any, name: str) -> np.ndarray:
    """`x` as an array of at least one finite point, or a ValueError that names it."""
    x = np.asarray(x)
    if x.dtype.kind not in "fuib":
        raise ValueError(f"`{name}` must be numbers; got dtype {x.dtype}")
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"`{name}` must be images (n, h, w[, channels]) or vectors (n, d); got shape {x.shape}")
    if 0 in x.shape:
        raise ValueError(f"`{name}` is empty: shape {x.shape}; give at least one point")
    if x.dtype.kind == "f" and not _finite(x):
        bad = int(np.argmax(~np.isfinite(x.reshape(len(x), -1)).all(axis=1)))
        raise ValueError(f"`{name}` holds NaN or infinity (first at row {bad}); remove or fill those values")
    return x


def channels_last(x: np.ndarray, layout: str | None, name: str) -> np.ndarray:
    """Images as (n, h, w, channels), transposed where `layout` is "channels-first"; other arrays as they are.

    `layout` None means channels last too, but refuses images of which the second axis alone can be the channels.
    """
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"`layout` must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    if x.ndim != 4:
        return x
    if layout is None and x.shape[1] in CHANNELS and x.shape[3] not in CHANNELS:
        raise ValueError(
            f"`{name}` must be images (n, h, w, channels); got shape {x.shape}, which looks like (n, channels, h, w). "
            "Pass layout='channels-first' if it is, or layout='channels-last' to take it as it is"
        )
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "channels-first" else x


def _finite(x: np.ndarray) -> bool:
    # The extremes tell, without an array of flags as large as a quarter of the data.
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(x.min()) and np.isfinite(x.max()))


def check_targets(y: Any, points: int, name: str) -> np.ndarray:
    """`y` as a finite (points, c) float matrix of label vectors."""
    y = np.asarray(y)
    if y.ndim != 2 or y.dtype.kind != "f":
        raise ValueError(f"`{name}` must be a float matrix (n, classes); got shape {y.shape}, dtype {y.dtype}")
    if len(y) != points:
        raise ValueError(f"`{name}` has {len(y)} rows for {points} points; give one label vector per point")
    if not np.isfinite(y).all():
        raise ValueError(f"`{name}` holds NaN or infinity; remove those rows")
    return y
