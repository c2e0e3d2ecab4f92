"""Random augmentation of raw image batches, before preprocessing: one affine warp, flips, and a channel shift.

A loop over pixels in Numba: the gathers that JAX makes of a warp took fifteen times as long as the step they were for.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit

from kip import machine
from kip.data.checks import nearest

NAMES = ("none", "digits", "photos", "flips")


@dataclass(frozen=True)
class Augment:
    """What is done at random to each image of a batch, as the paper's "Tuning KIP" describes it.

    `flip` mirrors left and right, half of the time. `shift` moves the image by up to that fraction of its height and
    width. `rotation` turns it about its middle, by up to so many degrees. `channel_shift` adds one number to all
    channels of a colour image, up to that fraction of the image's own range and kept within it; grey images are left
    alone. All draws are uniform; what comes into view beyond the border repeats the border.
    """

    flip: bool = False
    shift: float = 0.0
    rotation: float = 0.0
    channel_shift: float = 0.0

    def __post_init__(self) -> None:
        limits = {"shift": 1.0, "rotation": 180.0, "channel_shift": 1.0}
        for name, most in limits.items():
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"`{name}` must lie in [0, {most:g}]; got {getattr(self, name)}. Use 0 for none.")

    @classmethod
    def digits(cls) -> Augment:
        """Shifts and rotations, no flip: a mirrored digit is another sign, or none."""
        return cls(shift=0.1, rotation=10.0)

    @classmethod
    def photos(cls) -> Augment:
        """Flips, shifts, rotations and, in colour, channel shifts."""
        return cls(flip=True, shift=0.1, rotation=10.0, channel_shift=0.1)

    @classmethod
    def flips(cls) -> Augment:
        """Flips only."""
        return cls(flip=True)

    def __call__(self, rng: np.random.Generator, images_raw: Any) -> np.ndarray:
        """Augment images (n, h, w) or (n, h, w, ch), each by its own draw.

        The result is float32 in the scale given (0 to 255 for uint8), and a function of the state of `rng` and
        of `images_raw` alone.
        """
        images = np.asarray(images_raw)
        if images.ndim not in (3, 4):
            raise ValueError(
                f"only images (n, h, w) or (n, h, w, channels) can be augmented; got shape {images.shape}."
            )
        if images.dtype != np.uint8:
            images = images.astype(np.float32, copy=False)
        # As many draws whatever is switched on, so that one part does not disturb another.
        draws = rng.uniform(-1, 1, (5, len(images)))
        amounts = np.array([self.flip, math.radians(self.rotation), self.shift, self.shift, self.channel_shift])
        out = np.empty((*images.shape[:3], images.shape[3] if images.ndim == 4 else 1), np.float32)
        _on_all_cores(np.ascontiguousarray(images).reshape(out.shape), draws * amounts[:, None], out)
        return out.reshape(images.shape)


def named(name: str) -> Augment | None:
    """Give the augmentation called "digits", "photos" or "flips", or None for "none".

    A number after a colon is how far it shifts: "digits:0.05", a twentieth of the height and width at most.
    """
    stem, colon, amount = name.partition(":")
    if stem not in NAMES:
        raise ValueError(f"`augment` {name!r} is not known. {nearest(stem, NAMES)}")
    found = None if stem == "none" else getattr(Augment, stem)()
    if not colon:
        return found
    if found is None or not found.shift:
        raise ValueError(f"`augment` {name!r} gives a shift to what shifts nothing; write {stem!r}, or digits:0.05")
    try:
        return replace(found, shift=float(amount))
    except ValueError:
        raise ValueError(f"`augment` {name!r} must end with a shift between 0 and 1, as in digits:0.05") from None


def _on_all_cores(images: np.ndarray, draws: np.ndarray, out: np.ndarray) -> None:
    """Augment `images` into `out`, a share to a core; the draws are made already, so the shares do not matter."""
    cores = machine.cores()
    share = max(1, -(-len(images) // cores))
    parts = [slice(start, start + share) for start in range(0, len(images), share)]
    with ThreadPoolExecutor(cores) as pool:
        list(pool.map(lambda part: _augmented(images[part], draws[:, part], out[part]), parts))


@njit(nogil=True, cache=True)
def _augmented(images: np.ndarray, draws: np.ndarray, out: np.ndarray) -> None:
    """Augment images (n, h, w, ch) by the draws (flip, angle, down, right, channel shift) of each."""
    for n in range(len(images)):
        flip, angle, down, right, brighter = draws[:, n]
        if angle != 0 or down != 0 or right != 0:
            _warped(images[n], angle, down, right, flip < 0, out[n])
        elif flip < 0:
            out[n] = images[n, :, ::-1]
        else:
            out[n] = images[n]
        if brighter != 0 and images.shape[3] > 1:
            _shifted(out[n], brighter)


@njit(nogil=True, cache=True)
def _warped(image: np.ndarray, angle: float, down: float, right: float, mirror: bool, out: np.ndarray) -> None:
    """Warp one image: what lands at offset p from the middle is read, bilinearly, at R(angle) M p + (down h, right w).

    M mirrors the second coordinate. Beyond the border is the border.
    """
    h, w, channels = image.shape
    cos, sin = math.cos(angle), math.sin(angle)
    turn = -1.0 if mirror else 1.0
    for i in range(h):
        y = i - (h - 1) / 2
        for j in range(w):
            x = (j - (w - 1) / 2) * turn
            row = min(max(cos * y - sin * x + down * h + (h - 1) / 2, 0.0), h - 1.0)
            column = min(max(sin * y + cos * x + right * w + (w - 1) / 2, 0.0), w - 1.0)
            above, before = int(row), int(column)
            below, after = min(above + 1, h - 1), min(before + 1, w - 1)
            a, b = np.float32(row - above), np.float32(column - before)
            for c in range(channels):
                top = image[above, before, c] + b * (np.float32(image[above, after, c]) - image[above, before, c])
                bottom = image[below, before, c] + b * (np.float32(image[below, after, c]) - image[below, before, c])
                out[i, j, c] = top + a * (bottom - top)


@njit(nogil=True, cache=True)
def _shifted(image: np.ndarray, amount: float) -> None:
    """Add `amount` of the image's own range to all its channels, kept within that range."""
    low, high = image.min(), image.max()
    add = np.float32(amount * (high - low))
    flat = image.reshape(-1)
    for k in range(len(flat)):
        flat[k] = min(max(flat[k] + add, low), high)
