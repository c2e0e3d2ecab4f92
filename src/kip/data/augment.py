"""Random augmentation of raw image batches, before preprocessing: one affine warp, flips, and a channel shift."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.ndimage import map_coordinates

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

    def __call__(self, key: Any, images_raw: Any) -> np.ndarray:
        """Augment images (n, h, w) or (n, h, w, ch), each by its own draw.

        The result is float32 in the scale given (0 to 255 for uint8), and a function of `key` and
        `images_raw` alone. Compiled once for each shape and `Augment`.
        """
        images = np.asarray(images_raw)
        if images.ndim not in (3, 4):
            raise ValueError(
                f"only images (n, h, w) or (n, h, w, channels) can be augmented; got shape {images.shape}."
            )
        if images.dtype != np.uint8:
            images = images.astype(np.float32, copy=False)
        with jax.enable_x64(False):
            out = _augmented(key, images.reshape(*images.shape[:3], -1), self)
        return np.asarray(out).reshape(images.shape)


def named(name: str) -> Augment | None:
    """Give the augmentation called "digits", "photos" or "flips", or None for "none"."""
    if name not in NAMES:
        raise ValueError(f"`augment` {name!r} is not known. {nearest(name, NAMES)}")
    return None if name == "none" else getattr(Augment, name)()


@partial(jax.jit, static_argnames="augment")
def _augmented(key: Any, images: jax.Array, augment: Augment) -> jax.Array:
    """Apply `augment` to images (n, h, w, ch), whose draws do not depend on which of its parts are switched on."""
    n, _, _, channels = images.shape
    images = images.astype(jnp.float32)
    draws = jax.random.uniform(key, (5, n), jnp.float32, minval=-1.0, maxval=1.0)
    mirror = jnp.where(draws[0] < 0, -1.0, 1.0) if augment.flip else jnp.ones(n)
    if augment.shift or augment.rotation:
        angle = draws[1] * math.radians(augment.rotation)
        images = jax.vmap(_warped)(images, angle, draws[2] * augment.shift, draws[3] * augment.shift, mirror)
    elif augment.flip:
        images = jnp.where(mirror[:, None, None, None] < 0, images[:, :, ::-1], images)
    if augment.channel_shift and channels > 1:
        images = jax.vmap(_shifted)(images, draws[4] * augment.channel_shift)
    return images


def _warped(image: jax.Array, angle: Any, down: Any, right: Any, mirror: Any) -> jax.Array:
    """Warp one image: what lands at offset p from the middle is read, bilinearly, at R(angle) M p + (down h, right w).

    M mirrors the second coordinate where `mirror` is −1.
    """
    h, w, _ = image.shape
    y = jnp.arange(h, dtype=jnp.float32)[:, None] - (h - 1) / 2
    x = (jnp.arange(w, dtype=jnp.float32)[None, :] - (w - 1) / 2) * mirror
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    rows = cos * y - sin * x + down * h + (h - 1) / 2
    columns = sin * y + cos * x + right * w + (w - 1) / 2
    read = partial(map_coordinates, coordinates=[rows, columns], order=1, mode="nearest")
    return jax.vmap(read, in_axes=-1, out_axes=-1)(image)


def _shifted(image: jax.Array, amount: Any) -> jax.Array:
    """Add `amount` of the image's own range to all its channels, kept within that range."""
    low, high = image.min(), image.max()
    return jnp.clip(image + amount * (high - low), low, high)
