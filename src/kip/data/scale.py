"""The scale of raw images: which values a set was made from, and the refusal of images on another scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

UNIT = 1.0
"""Normalised images lie within −UNIT … UNIT."""

FAR = 8.0
"""Images that reach this value are not normalised: they count to 16, to 255 or further."""

FAINTEST = 0.01
"""Share of the training images whose peak may lie below `Seen.peak`, so that a few dark images do not count."""


@dataclass(frozen=True)
class Seen:
    """Values of the raw training images: the lowest, the highest, and the peak that 99 % of the images reach.

    The peak of an image is its largest absolute value.
    """

    low: float
    high: float
    peak: float

    @classmethod
    def of(cls, x_train: np.ndarray) -> Seen | None:
        """The values of raw images, (n, h, w) or (n, h, w, ch). None for vectors: each column has its own scale."""
        if x_train.ndim == 2:
            return None
        rows = x_train.reshape(len(x_train), -1)
        lows, highs = rows.min(axis=1).astype(np.float64), rows.max(axis=1).astype(np.float64)
        peak = np.quantile(np.maximum(highs, -lows), FAINTEST)
        return cls(float(lows.min()), float(highs.max()), float(peak))

    @classmethod
    def restore(cls, config: Mapping[str, Any]) -> Seen:
        """Rebuild what `config` describes; a ValueError where that is no range of values."""
        low, high, peak = (float(config[name]) for name in ("low", "high", "peak"))
        if not (low <= high and peak >= 0 and all(map(math.isfinite, (low, high, peak)))):
            raise ValueError("seen")
        return cls(low, high, peak)

    def config(self) -> dict[str, float]:
        """Give the three values by name."""
        return asdict(self)

    @property
    def normalised(self) -> bool:
        """Whether all values lay within −1 … 1."""
        return self.low >= -UNIT and self.high <= UNIT

    def __str__(self) -> str:
        return f"{self.low:g} to {self.high:g}"


def check_scale(raw: np.ndarray, seen: Seen, scale: float, reach: Callable[[], float]) -> None:
    """Refuse raw images that cannot be on the scale of the training images; accept where there is doubt.

    Refused are normalised images for a set made from counts, and counts for a set made from normalised images. `scale`
    is what that set divides raw values by. `reach()` gives the largest value of the set's own images, which learning
    may have taken out of the training images' range; it is called only where it decides.
    """
    peak = max(float(raw.max()), -float(raw.min()))
    if 0 < peak <= UNIT and seen.peak >= FAR and raw.dtype.kind in "fb":  # integers count: they are only dark
        remedy = "multiply it by 255 or pass scale=1.0 if it lies in 0…1" if scale != 1 else "bring it to that scale"
        raise ValueError(
            f"`raw` looks normalised (no value beyond {peak:.4g}), but this set was made from images with values from "
            f"{seen}; {remedy}, or pass scale={scale:.1f} to take it as it is"
        )
    if not seen.normalised or peak <= UNIT:
        return
    if raw.dtype == np.uint8 or peak > max(FAR, reach()):
        remedy = (
            "divide it by 255 or pass scale=255 if it counts to 255"
            if scale == 1 and seen.low >= 0
            else "bring it to that scale"
        )
        raise ValueError(
            f"`raw` has values up to {peak:g}, but this set was made from images with values from {seen}; "
            f"{remedy}, or pass scale={scale:.1f} to take it as it is"
        )


def rescale(raw: np.ndarray, given: float, wanted: float) -> np.ndarray:
    """Raw points that are to be divided by `given`, as points that are to be divided by `wanted`."""
    if isinstance(given, bool) or not isinstance(given, (int, float, np.number)) or not 0 < given < math.inf:
        raise ValueError(
            f"`scale` must be a positive number, what raw values are divided by; got {given!r}. "
            "Use 255 for counts to 255, 1.0 for floats in 0…1"
        )
    if given == wanted:
        return raw
    points: np.ndarray = raw.astype(np.float64 if raw.dtype == np.float64 else np.float32)
    return points / float(given) * wanted
