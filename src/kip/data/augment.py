"""Random augmentation of raw image batches, before preprocessing: one affine warp, flips, and a channel shift.

A loop over pixels in Numba: the gathers that JAX makes of a warp took fifteen times as long as the step they were for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numba import njit

from kip import machine
from kip.data.checks import check_augmentation
from kip.threads import on_all_cores


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
    check_augmentation(name)
    stem, colon, amount = name.partition(":")
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
    """Augment `images` into `out`, one share per core; the draws are made already, so the shares do not matter."""
    share = max(1, -(-len(images) // machine.cores()))
    parts = [slice(start, start + share) for start in range(0, len(images), share)]
    list(on_all_cores(lambda part: _augmented(images[part], draws[:, part], out[part]), parts))


@njit(nogil=True, cache=True)
def _augmented(images: np.ndarray, draws: np.ndarray, out: np.ndarray) -> None:
    """Augment images (n, h, w, ch) by the draws (flip, angle, down, right, channel shift) of each."""
    _, h, w, channels = images.shape
    room = np.empty((h + 1) * (w + 1) * channels, np.float32)
    at, a, b = np.empty(h * w, np.int32), np.empty(h * w, np.float32), np.empty(h * w, np.float32)
    for n in range(len(images)):
        flip, angle, down, right, brighter = draws[:, n]
        values = out[n].reshape(-1)
        if angle != 0 or down != 0 or right != 0:
            _pad(images[n].reshape(-1), w * channels, channels, room)
            _find(h, w, channels, angle, down * h, right * w, flip < 0, at, a, b)
            _blend(room, (w + 1) * channels, channels, at, a, b, values)
        elif flip < 0:
            out[n] = images[n, :, ::-1]
        else:
            out[n] = images[n]
        if brighter != 0 and channels > 1:
            _shift(values, brighter)


@njit(nogil=True, cache=True)
def _pad(image: np.ndarray, width: int, channels: int, room: np.ndarray) -> None:
    """Copy an image into a larger room, where its last column and row come twice, as what is next to themselves."""
    # Indices without a sign, here and below: Numba would ask of every other whether it counts from the end.
    wide, pixel = np.uint64(width), np.uint64(channels)
    source = goal = np.uint64(0)
    while source < np.uint64(len(image)):
        for k in range(wide):
            room[goal + k] = image[source + k]
        source, goal = source + wide, goal + wide
        for k in range(pixel):
            room[goal + k] = room[goal + k - pixel]
        goal += pixel
    for k in range(wide + pixel):
        room[goal + k] = room[goal + k - wide - pixel]


@njit(nogil=True, cache=True, error_model="numpy", fastmath={"nnan", "nsz"})
def _find(
    h: int,
    w: int,
    channels: int,
    angle: float,
    down: float,
    right: float,
    mirror: bool,
    at: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
) -> None:
    """Where each pixel is read: the place in the room of what is above and before it, and how far it is beyond.

    What lands at offset p from the middle is read at R(angle) M p + (down, right), where M mirrors the second
    coordinate. Beyond the border is the border.
    """
    cos, sin = math.cos(angle), math.sin(angle)
    turn = -1.0 if mirror else 1.0
    bottom, last = h - 1.0, w - 1.0
    below, after = np.int32((w + 1) * channels), np.int32(channels)
    for i in range(h):
        y = i - bottom / 2
        at_row, a_row, b_row = at[i * w : (i + 1) * w], a[i * w : (i + 1) * w], b[i * w : (i + 1) * w]
        for j in range(w):
            x: float = (np.int32(j) - last / 2) * turn
            row = cos * y - sin * x + down + bottom / 2
            column = sin * y + cos * x + right + last / 2
            # Not min and max, which mind NaN and keep a loop from being vectorised.
            row = row if row > 0.0 else 0.0
            row = row if row < bottom else bottom
            column = column if column > 0.0 else 0.0
            column = column if column < last else last
            above, before = np.int32(row), np.int32(column)
            at_row[j] = above * below + before * after
            a_row[j], b_row[j] = np.float32(row - above), np.float32(column - before)


@njit(nogil=True, cache=True)
def _blend(
    room: np.ndarray, row: int, channels: int, at: np.ndarray, a: np.ndarray, b: np.ndarray, out: np.ndarray
) -> None:
    """Interpolate all pixels bilinearly."""
    below, after = np.uint64(row), np.uint64(channels)
    if channels == 1:  # the same without the loop over channels, which takes half of the time
        for j in range(len(at)):
            out[j] = _read(room, np.uint64(at[j]), below, after, a[j], b[j])
        return
    goal = np.uint64(0)
    for j in range(len(at)):
        for c in range(after):
            out[goal + c] = _read(room, np.uint64(at[j]) + c, below, after, a[j], b[j])
        goal += after


@njit(nogil=True, cache=True, inline="always")
def _read(room: np.ndarray, k: Any, below: Any, after: Any, a: float, b: float) -> Any:
    """What lies between the number at `k`, the next one, and those below."""
    top = room[k] + b * (room[k + after] - room[k])
    k += below
    bottom = room[k] + b * (room[k + after] - room[k])
    return top + a * (bottom - top)


@njit(nogil=True, cache=True, fastmath={"nnan", "nsz"})
def _shift(values: np.ndarray, amount: float) -> None:
    """Add `amount` of an image's own range to all its values, kept within that range."""
    low = high = values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    add = np.float32(amount * (high - low))
    for k in range(len(values)):
        moved = max(values[k] + add, low)
        values[k] = min(moved, high)
