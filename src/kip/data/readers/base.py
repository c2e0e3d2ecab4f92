"""The raw data set every reader gives, the coding of its labels, and the split where no test part comes with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np

from kip.data.checks import check_finite, point_shape

Kind = Literal["digits", "photos"]

Fit = Literal["crop", "pad", "stretch"]

Part = tuple[np.ndarray, np.ndarray]
"""Points and their labels."""

TEST_FRACTION = 0.2
SPLIT_SEED = 0

LONGEST_NAME = 256
"""Letters in the name of a class; arrays of texts take the room of the longest for each."""


MOST_NAMED = 10
"""Files or classes that one message lists by name; the others are counted."""


@dataclass(frozen=True)
class Reading:
    """How a file or folder is read.

    `label` is the class column of a csv file. `resize`, a side or (height, width), brings the images of a folder to one
    size, and `fit` says how: "crop" scales each image to cover that size and cuts its centre out, "pad" scales it to
    fit inside and centres it on black, "stretch" ignores its proportions. `skip_unreadable` leaves out images that
    cannot be decoded. `whole`: the data set is only tested; without a test part of its own it is not split, all of
    it is the test part. `layout` says where images of an .npz have their channels.
    """

    label: str | int | None = None
    resize: int | tuple[int, int] | None = None
    fit: Fit = "crop"
    skip_unreadable: bool = False
    whole: bool = False
    layout: str | None = None

    def __post_init__(self) -> None:
        if self.fit not in get_args(Fit):
            raise ValueError(f"`fit` must be one of {', '.join(get_args(Fit))}; got {self.fit!r}. Use fit='crop'.")


@dataclass(frozen=True, eq=False)
class Dataset:
    """A labelled data set as it was found: raw points, integer codes of their classes, and the classes' names.

    `x_train`, `x_test` are uint8 images (n, h, w) or (n, h, w, 3), float images, or vectors (n, d); `y_train`, `y_test`
    index `classes`. `kind` chooses the augmentation; `notes` says what the reader left out or decided. `test_given`
    says whether the test part came with the data set, rather than being set aside from it. A data set that was read
    whole, to be tested only, has no training points.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: tuple[str, ...]
    kind: Kind | None = None
    notes: tuple[str, ...] = field(default=())
    test_given: bool = False

    def __repr__(self) -> str:
        shape = "×".join(str(n) for n in self.x_train.shape[1:])
        return (
            f"Dataset({self.name!r}: {len(self.x_train):,} training and {len(self.x_test):,} test points of {shape}, "
            f"{len(self.classes)} classes)"
        )


def assemble(
    name: str,
    train: Part,
    test: Part | None,
    *,
    kind: Kind | None = None,
    notes: tuple[str, ...] = (),
    classes: tuple[str, ...] | None = None,
    whole: bool = False,
) -> Dataset:
    """Make a checked `Dataset` from points and labels; `test` left out is split off the training part.

    `classes`, if given, names the labels 0, 1, …; otherwise the labels are the names. With `whole` there are no
    training points: `test` is tested, or where it is left out every point.
    """
    parts = {"train": train} if test is None else {"test": test} if whole else {"train": train, "test": test}
    for part, (x, labels) in parts.items():
        _check_part(name, part, x, labels)
    if test is not None and not whole and train[0].shape[1:] != test[0].shape[1:]:
        raise ValueError(
            f"{name}: training points are {train[0].shape[1:]}, test points {test[0].shape[1:]}. Give both one shape."
        )
    if classes is None:
        classes, codes = encode(name, *(labels for _, labels in parts.values()))
    else:
        codes = tuple(_coded(name, labels, len(classes)) for _, labels in parts.values())
    if whole:
        ((x, _),) = parts.values()
        return Dataset(name, x[:0], codes[0][:0], x, codes[0], classes, kind, notes, test_given=test is not None)
    if len(classes) < 2:
        raise ValueError(f"{name}: a data set needs at least two classes; found only {classes[0]!r}. Check the labels.")
    if test is None:
        return split(name, train[0], codes[0], classes, kind=kind, notes=notes)
    _check_trained(name, codes[0], classes)
    return Dataset(name, train[0], codes[0], test[0], codes[1], classes, kind, notes, test_given=True)


def encode(name: str, *labels: np.ndarray) -> tuple[tuple[str, ...], tuple[np.ndarray, ...]]:
    """Class names and, for each array of labels, int64 codes that index them.

    Integers are ordered as numbers, texts that all read as integers too, other texts by letter.
    """
    values = np.unique(np.concatenate([_plain(name, part) for part in labels]))
    order = sorted(values.tolist(), key=_order(values))
    rank = {value: code for code, value in enumerate(order)}
    lookup = np.array([rank[value] for value in values.tolist()], np.int64)
    codes = tuple(lookup[np.searchsorted(values, _plain(name, part))] for part in labels)
    return tuple(str(value) for value in order), codes


def split(
    name: str,
    x: np.ndarray,
    codes: np.ndarray,
    classes: tuple[str, ...],
    *,
    kind: Kind | None = None,
    notes: tuple[str, ...] = (),
    fraction: float = TEST_FRACTION,
    seed: int = SPLIT_SEED,
) -> Dataset:
    """Set a stratified `fraction` aside as the test part, the same one every time; a class keeps one training point."""
    rng = np.random.default_rng(seed)
    counts = np.bincount(codes, minlength=len(classes))
    takes = np.round(fraction * counts).astype(int)
    if not takes.any():  # tiny classes only: one of each that can spare it
        takes[:] = 1
    takes = np.clip(takes, 0, np.maximum(counts - 1, 0))
    in_test = np.zeros(len(codes), bool)
    for code, take in enumerate(takes):
        in_test[rng.permutation(np.flatnonzero(codes == code))[:take]] = True
    if not in_test.any():
        raise ValueError(
            f"{name}: {len(codes)} points in {len(classes)} classes are too few to set a test part aside. "
            "Add points, give a test part, or check which column or folder holds the labels."
        )
    notes = (*notes, *_untested(counts, takes, classes))
    return Dataset(name, x[~in_test], codes[~in_test], x[in_test], codes[in_test], classes, kind, notes)


def _untested(counts: np.ndarray, takes: np.ndarray, classes: tuple[str, ...]) -> tuple[str, ...]:
    """A note on the classes that are too small to spare a test point."""
    small = [(classes[code], int(counts[code])) for code in np.flatnonzero((takes == 0) & (counts > 0))]
    if not small:
        return ()
    if len(small) == 1:
        subject = f"class {small[0][0]!r} has {_points(small[0][1])}"
    else:
        subject = f"classes {listed([f'{name!r} ({_points(count)})' for name, count in small])} are small"
    return (f"{subject}: all are used for training, none for testing",)


def _points(count: int) -> str:
    return f"{count} point" if count == 1 else f"{count} points"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> listed([f"{n}.png" for n in range(12)])
    '0.png, 1.png, 2.png, 3.png, 4.png, 5.png, 6.png, 7.png, 8.png, 9.png, and 2 more'
    """
    more = [f"and {len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([*names[:MOST_NAMED], *more])


def _check_part(name: str, part: str, x: np.ndarray, labels: np.ndarray) -> None:
    if len(x) == 0:
        raise ValueError(f"{name}: the {part} part holds no points. Check the file.")
    if len(x) != len(labels):
        raise ValueError(f"{name}: the {part} part has {len(x):,} points but {len(labels):,} labels. Check the files.")
    try:
        point_shape(x, f"x_{part}")
        check_finite(x, f"x_{part}")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _check_trained(name: str, codes: np.ndarray, classes: tuple[str, ...]) -> None:
    absent = np.setdiff1d(np.arange(len(classes)), codes)
    if absent.size:
        named = ", ".join(repr(classes[code]) for code in absent[:5])
        raise ValueError(f"{name}: no training point of class {named}. Remove its test points or add training points.")


def _plain(name: str, labels: Any) -> np.ndarray:
    """Labels as a flat array of integers or texts."""
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "uibfUS":
        raise ValueError(
            f"{name}: labels must be one integer or text a point; got dtype {labels.dtype}, shape {labels.shape}. "
            "Pass class labels, not one-hot rows."
        )
    if labels.dtype.kind in "US" and labels.dtype.itemsize > 4 * LONGEST_NAME:
        raise ValueError(f"{name}: a class has a name of more than {LONGEST_NAME} letters. Shorten it.")
    if labels.dtype.kind == "f":
        if not (np.isfinite(labels).all() and (np.abs(labels) < 2**53).all() and (labels == np.round(labels)).all()):
            raise ValueError(f"{name}: labels are fractions; kip needs classes. Give integer or text labels.")
        return labels.astype(np.int64)
    if labels.dtype.kind == "S":
        return np.char.decode(labels, "utf-8", "replace")
    if labels.dtype.kind == "u" and labels.size and labels.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name}: a label is {labels.max()}, too large for a class. Check the labels.")
    return labels if labels.dtype.kind == "U" else labels.astype(np.int64)


def _order(values: np.ndarray) -> Any:
    if values.dtype.kind != "U":
        return None
    try:
        return {value: (int(value), value) for value in values.tolist()}.__getitem__
    except ValueError:
        return None


def _coded(name: str, labels: np.ndarray, classes: int) -> np.ndarray:
    labels = _plain(name, labels)
    if labels.dtype.kind != "i" or (labels.size and not 0 <= labels.min() <= labels.max() < classes):
        raise ValueError(
            f"{name}: labels must lie in 0 … {classes - 1}; got others. The file is damaged: fetch it again."
        )
    return labels
