"""KIP_ρ: the coordinates that are noise from the start and never learn, and the certificate that they did not."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from kip.sampling import Stream, generator

FILLS = ("noise", "zeros")

ROUNDING = 1e-9
"""Fractions and counts of coordinates that differ by less are the same number, written in binary."""


@dataclass(frozen=True)
class Corruption:
    """Which fraction ρ of each support point's coordinates is corrupted, and with what.

    `fill` is "noise", U(−1, 1), or "zeros", in preprocessed space. `by_pixel` shares one mask between the channels of a
    pixel.
    """

    rho: float = 0.0
    fill: str = "noise"
    by_pixel: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rho < 1:
            raise ValueError(f"`corruption` must be a fraction in [0, 1); got {self.rho}. Use 0.9 for 90 % noise")
        if self.fill not in FILLS:
            raise ValueError(f"`fill` must be one of {', '.join(FILLS)}; got {self.fill!r}")

    def mask(self, shape: tuple[int, ...], *, key: int) -> np.ndarray:
        """True at the ⌈ρd⌉ corrupted coordinates of each point; a function of the key and the shape alone."""
        rng = generator(key, Stream.MASK)
        inner = shape[1:-1] if self.by_pixel and len(shape) == 4 else shape[1:]
        d = math.prod(inner)
        # ρd = 100·0.29 is 28.999…96 in binary: take what was meant before rounding up.
        count = math.ceil(self.rho * d - ROUNDING)
        order = rng.random((shape[0], d)).argsort(axis=1)
        flat = np.zeros((shape[0], d), bool)
        np.put_along_axis(flat, order[:, :count], True, axis=1)
        mask = flat.reshape(shape[0], *inner)
        return np.broadcast_to(mask[..., None], shape).copy() if mask.ndim < len(shape) else mask

    def values(self, shape: tuple[int, ...], dtype: np.dtype, *, key: int) -> np.ndarray:
        """What stands at a corrupted coordinate; a function of the key and the shape alone, so independent of D."""
        if self.fill == "zeros":
            return np.zeros(shape, dtype)
        return generator(key, Stream.NOISE).uniform(-1, 1, shape).astype(dtype)

    def apply(self, x: np.ndarray, *, key: int) -> tuple[np.ndarray, np.ndarray]:
        """`x` with its corrupted coordinates set, and the mask."""
        mask = self.mask(x.shape, key=key)
        return np.where(mask, self.values(x.shape, x.dtype, key=key), x), mask


@dataclass(frozen=True)
class Certificate:
    """Whether a set is ρ-corrupted (Definition 5) with respect to its mask, and what was found."""

    holds: bool
    rho: float
    fraction: float
    reason: str


def certify(x: np.ndarray, mask: np.ndarray, corruption: Corruption, *, key: int) -> Certificate:
    """Check that every point keeps at least a ρ fraction of coordinates that no data has touched.

    The mask and its values are drawn again from the key, which the data had no part in; the mask must be the same and
    the values must stand in `x` to the bit.
    """
    fraction = float(mask.reshape(len(mask), -1).mean(axis=1).min())
    if x.shape != mask.shape:
        return Certificate(False, corruption.rho, 0.0, f"the mask has shape {mask.shape}, the points {x.shape}")
    if fraction < corruption.rho - ROUNDING:
        return Certificate(False, corruption.rho, fraction, f"a point has only {fraction:.1%} of coordinates masked")
    if not np.array_equal(mask, corruption.mask(x.shape, key=key)):
        return Certificate(False, corruption.rho, fraction, "the mask is not the one the recorded key gives")
    changed = int(np.sum(mask & (x != corruption.values(x.shape, x.dtype, key=key))))
    if changed:
        return Certificate(False, corruption.rho, fraction, f"{changed} corrupted coordinates were changed")
    return Certificate(True, corruption.rho, fraction, "mask and values are those of the recorded key")
