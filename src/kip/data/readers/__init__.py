"""Readers: a data set by its name or path, whatever its format.

No reader trusts a size before checking it against the file's length and a memory limit, none unpickles, and each fails
with one line that names the file and what to do.
"""

from __future__ import annotations

import gzip
import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kip.data import sources
from kip.data.checks import memory_limit, nearest
from kip.data.readers.base import Dataset, Fit, Kind, Part, Reading, assemble
from kip.data.readers.cifar import CLASSES as CIFAR10_CLASSES
from kip.data.readers.cifar import find_cifar, read_cifar_folder, refuse_pickles
from kip.data.readers.folder import read_image_folder
from kip.data.readers.idx import find_idx, read_idx_folder
from kip.data.readers.npz import read_npz
from kip.data.readers.table import read_csv
from kip.files import as_path, as_text

NAMES = ("digits", "mnist", "fashion-mnist", "cifar10")
"""Data sets that `load` takes by name."""

FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_DIGITS = tuple("0123456789")
USUAL = Reading()

__all__ = ["NAMES", "Dataset", "load", "read_path"]


def load(
    data: str | Path,
    *,
    label: str | int | None = None,
    resize: int | tuple[int, int] | None = None,
    fit: Fit = "crop",
    skip_unreadable: bool = False,
    whole: bool = False,
    source: str | None = None,
    layout: str | None = None,
    memory: int | None = None,
    say: Callable[[str], object] = print,
) -> Dataset:
    """Load the data set called `data`, or read from the path `data`.

    A name is "digits" (bundled), "mnist", "fashion-mnist" or "cifar10" (fetched on first use, see `sources.fetch`, with
    a word to `say`). A path is an .npz file (`layout` says where its images have their channels), a .csv file (`label`
    is its column of classes), or a folder of idx files, of CIFAR-10's binary batches, or of class folders of images
    (`resize` and `fit` bring them to one size, `skip_unreadable` leaves out what cannot be decoded; see `Reading`).
    Where no test part comes with it, a stratified fifth is set aside, always the same; with `whole`, all of it is
    tested. `memory` bounds the bytes filled (see
    `checks.memory_limit`).
    """
    name = str(data).strip().lower()
    if name in NAMES and not _is_path(data):
        return _named(name, source, memory_limit(memory), say)
    return read_path(Path(data), Reading(label, resize, fit, skip_unreadable, whole, layout), memory=memory)


def read_path(path: Path, how: Reading = USUAL, *, memory: int | None = None) -> Dataset:
    """Read the data set in the file or folder `path`."""
    try:
        return _read_path(path, how, memory_limit(memory))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(
            f"{path}: cannot be read ({error.strerror or error}). Check the path and its permissions."
        ) from None


def _read_path(path: Path, how: Reading, limit: int) -> Dataset:
    path = as_path(path).expanduser()
    name = as_text(path.name)
    if path.is_dir():
        return _read_folder(path, how, limit)
    if not path.exists():
        raise FileNotFoundError(
            f"`data` {str(path)!r} is neither a data set's name nor an existing path. {nearest(name, NAMES)}"
        )
    suffix = path.suffix.lower()
    if suffix == ".npz":
        train, test = read_npz(path, limit, how.layout)
        return assemble(name, train, test, whole=how.whole)
    if suffix in (".csv", ".tsv", ".txt"):
        return assemble(name, read_csv(path, limit, how.label), None, whole=how.whole)
    if suffix in (".pkl", ".pickle", ".pt", ".pth") or "python" in path.name:
        raise ValueError(f"{path}: pickles are not read, since they can run code. Save the arrays with numpy.savez.")
    raise ValueError(
        f"{path}: not a format kip reads. Give an .npz or .csv file, or a folder of idx files, of CIFAR-10 binary "
        "batches or of class folders of images."
    )


def _is_path(data: str | Path) -> bool:
    return isinstance(data, Path) or "/" in data or os.sep in data


def _named(name: str, source: str | None, limit: int, say: Callable[[str], object]) -> Dataset:
    if name == "digits":
        return assemble(name, _digits(), None, kind="digits", classes=_DIGITS)
    folder = sources.fetch(name, source=source, say=say)
    if name == "cifar10":
        return assemble(name, *read_cifar_folder(folder, limit), kind="photos", classes=CIFAR10_CLASSES)
    kind: Kind = "digits" if name == "mnist" else "photos"
    classes = _DIGITS if name == "mnist" else FASHION_CLASSES
    return assemble(name, *read_idx_folder(folder, limit), kind=kind, classes=classes)


def _digits() -> Part:
    """Read scikit-learn's bundled 8×8 digits, 0 … 16 a pixel as it has them."""
    package = importlib.util.find_spec("sklearn")
    place = Path(package.origin).parent if package and package.origin else Path()
    table = place / "datasets" / "data" / "digits.csv.gz"
    if table.is_file():  # importing scikit-learn for it would take a second
        with gzip.open(table, "rt", encoding="ascii") as file:
            rows = np.loadtxt(file, delimiter=",", dtype=np.float32)
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.asarray(bunch.images, np.float32), np.asarray(bunch.target, np.int64)


def _read_folder(folder: Path, how: Reading, limit: int) -> Dataset:
    name = as_text(folder.resolve().name)
    if find_idx(folder):
        return assemble(name, *read_idx_folder(folder, limit), whole=how.whole)
    batches = find_cifar(folder)
    if batches is not None:
        return assemble(name, *read_cifar_folder(batches, limit), classes=CIFAR10_CLASSES, whole=how.whole)
    refuse_pickles(folder)
    train, test, notes = read_image_folder(folder, how, limit)
    return assemble(name, train, test, notes=notes, whole=how.whole)
