"""What everything that reads data checks first: names, memory, finite numbers."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np

MEMORY_LIMIT = 4 * 2**30
"""Bytes that one data set may fill when neither an argument nor the variable KIP_MEMORY_LIMIT says otherwise."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def memory_limit(limit: int | None = None) -> int:
    """`limit` if given, else the variable KIP_MEMORY_LIMIT (bytes, or as in 500M, 2G), else `MEMORY_LIMIT`."""
    if limit is not None:
        return int(limit)
    text = os.environ.get("KIP_MEMORY_LIMIT", "").strip().upper().removesuffix("B")
    if not text:
        return MEMORY_LIMIT
    number, unit = (text[:-1], text[-1]) if text[-1] in "KMGT" else (text, "")
    try:
        value = float(number) * _UNITS[unit]
        if not 0 < value < float("inf"):
            raise ValueError
    except ValueError:
        given = os.environ["KIP_MEMORY_LIMIT"]
        raise ValueError(
            f"KIP_MEMORY_LIMIT must be a size such as 500M or 2G; got {given!r}. Unset or mend it."
        ) from None
    return int(value)


def check_memory(path: Path | str, need: int, limit: int, remedy: str = "") -> None:
    """Refuse `path` if reading it would fill `need` bytes, more than `limit`."""
    if need > limit:
        remedy = remedy or "If the file is to be trusted, raise KIP_MEMORY_LIMIT."
        raise ValueError(
            f"{path}: reading it needs {megabytes(need)}, more than the limit of {megabytes(limit)}. {remedy}"
        )


def megabytes(size: int) -> str:
    """`size` in bytes as a short text."""
    return f"{size / 2**20:,.0f} MB" if size >= 2**20 else f"{size:,} bytes"


def nearest(name: str, options: Iterable[str]) -> str:
    """Write a sentence that suggests the option nearest to `name`, or lists them all."""
    options = list(options)
    close = difflib.get_close_matches(str(name).lower(), options, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else f"Choose from {', '.join(options)}."


AUGMENTATIONS = ("none", "digits", "photos", "flips")


def check_augmentation(name: str, option: str = "augment") -> None:
    """Refuse a name that is none of an augmentation, with or without a shift after a colon."""
    stem = name.partition(":")[0]
    if stem not in AUGMENTATIONS:
        raise ValueError(f"`{option}` {name!r} is not known. {nearest(stem, AUGMENTATIONS)}")


def check_finite(x: np.ndarray, name: str) -> None:
    """Refuse NaN and infinity in `x`, naming the first row that holds one."""
    if x.dtype.kind != "f" or np.isfinite(x).all():
        return
    row = int(np.argwhere(~np.isfinite(x))[0][0])
    raise ValueError(f"`{name}` must be finite; row {row} holds NaN or infinity. Remove or fill such values.")


def point_shape(x: np.ndarray, name: str = "x") -> tuple[int, ...]:
    """Give the shape of one point of raw `x`, as it is after preprocessing: (h, w, ch) or (d,)."""
    if x.dtype.kind not in "uifb":
        raise ValueError(f"`{name}` must hold numbers; got dtype {x.dtype}. Convert it to uint8 or float.")
    if x.ndim not in (2, 3, 4) or 0 in x.shape[1:]:
        raise ValueError(
            f"`{name}` must be images (n, h, w) or (n, h, w, channels), or vectors (n, d); got {x.shape}. Reshape it."
        )
    return (*x.shape[1:], 1) if x.ndim == 3 else x.shape[1:]
