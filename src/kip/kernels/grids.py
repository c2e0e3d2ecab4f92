"""Offset planes: the levels of a network, the axes of their planes as index tables, box means and pooling on them.

The tables are arguments of compiled code, not constants in it: XLA would fold and copy them, and compile longer.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.network import Network


class Level(NamedTuple):
    """The layers between two pools, on planes of one size."""

    layers: tuple[str, ...]
    height: int
    width: int
    radius_y: int
    radius_x: int

    @property
    def zero(self) -> tuple[int, int]:
        """The rows of offset 0 along y and along x."""
        return axis_of(self.height, self.radius_y).zero, axis_of(self.width, self.radius_x).zero

    @property
    def entries(self) -> int:
        """Numbers in the planes of one pair."""
        return (
            min(2 * self.radius_y + 1, self.height) * self.height * min(2 * self.radius_x + 1, self.width) * self.width
        )


def levels(network: Network, shape: tuple[int, ...], *, own: bool = False) -> list[Level]:
    """Split the spatial layers at the pools, with the radius of offsets that reach the read-out at each level.

    With `own`, the offsets that reach offset 0 at the last ReLU: all that an image's own variances need.
    """
    height, width = shape[0], shape[1]
    segments = [tuple(part.split()) for part in " ".join(network.spatial).split("pool")]
    sizes = [(height >> i, width >> i) for i in range(len(segments))]
    if own:
        while segments and "relu" not in segments[-1]:
            segments, sizes = segments[:-1], sizes[:-1]
    out: list[Level] = []
    for layers, (h, w) in zip(reversed(segments), reversed(sizes), strict=True):
        if out:
            ry, rx = (min(2 * r + 1, n - 1) for r, n in ((out[0].radius_y, h), (out[0].radius_x, w)))
        else:
            ry, rx = (h - 1, w - 1) if network.read_in == "gap" and not own else (0, 0)
        out.insert(0, Level(layers, h, w, ry, rx))
    return out


class Run(NamedTuple):
    """Equal layers in a row on one level: `length` times conv, with or without relu."""

    relu: bool
    length: int


def runs(level: Level) -> list[Run]:
    """Group the layers of a level."""
    has_relu = [level.layers[i + 1 : i + 2] == ("relu",) for i, layer in enumerate(level.layers) if layer == "conv"]
    return [Run(relu, len(list(group))) for relu, group in itertools.groupby(has_relu)]


class Axis:
    """One direction, y or x, of a level's planes: entries (o, p) for offset o and pixel p.

    A band of offsets −R … R has `size` entries per offset, those with p + o outside the image not valid. Where the band
    would be wider than the image, offsets o and o − size share a row: every entry is valid, none is wasted.
    """

    def __init__(self, size: int, radius: int) -> None:
        pixel = np.arange(size, dtype=np.int32)
        if 2 * radius + 1 < size:
            other = pixel + np.arange(-radius, radius + 1, dtype=np.int32)[:, None]
            self.zero = radius
        else:
            other = (pixel + pixel[:, None]) % size
            self.zero = 0
        self.size, self.shape = size, other.shape
        self.valid = (other >= 0) & (other < size)
        self.other = np.clip(other, 0, size - 1)
        self.follows = self.valid[:, :-1] & self.valid[:, 1:] & (np.diff(other) == 1)
        self.position = np.full((size, size), -1)
        rows, pixels = np.nonzero(self.valid)
        self.position[pixels, self.other[rows, pixels]] = rows * size + pixels


@functools.cache
def axis_of(size: int, radius: int) -> Axis:
    """Make the axis of this size and radius, once."""
    return Axis(size, radius)


class Pooling(NamedTuple):
    """Average pooling along an axis flattened to (o, p), as two gathers: from it, and back for the adjoint.

    A pair of pooled pixels (q, q′) averages the four pairs (2q + a, 2q′ + b); a pair belongs to at most one. An index
    past the end stands for 0.
    """

    corners: Any
    back: Any

    @classmethod
    def of(cls, source: Axis, target: Axis) -> Pooling:
        """Tabulate the pooling from the axis `source` to `target`."""
        rows, pixels = np.nonzero(target.valid)
        flat = rows * target.size + pixels
        corners = np.full((4, target.valid.size), source.valid.size, np.int32)
        back = np.full(source.valid.size + 1, target.valid.size, np.int32)
        for corner in range(4):
            a, b = divmod(corner, 2)
            corners[corner, flat] = source.position[2 * pixels + a, 2 * target.other[rows, pixels] + b]
            back[corners[corner, flat]] = flat
        return cls(corners, back[:-1])


class AxisTables(NamedTuple):
    """The index arrays of an axis, arguments of compiled code; `valid` is None where every entry is."""

    other: Any
    follows: Any
    valid: Any
    pooling: Pooling | None

    @classmethod
    def of(cls, axis: Axis, before: Axis | None) -> AxisTables:
        """Tabulate an axis; `before` is that of the level before the pool."""
        pooling = None if before is None else Pooling.of(before, axis)
        return cls(axis.other, axis.follows, None if axis.valid.all() else axis.valid, pooling)


class Grid(NamedTuple):
    """The tables of a level's two axes; planes are arrays (o_y, y, o_x, x, n) of n pairs.

    Pairs come last: every gather then copies whole vectors of them, and loops over few pixels vectorise.
    """

    y: AxisTables
    x: AxisTables

    def mask(self, planes: jax.Array) -> jax.Array:
        """`planes` with 0 outside the image."""
        for axis, dim in ((self.y, 0), (self.x, 2)):
            if axis.valid is not None:
                planes = jnp.where(_along(axis.valid, dim), planes, 0)
        return planes

    def second(self, image: jax.Array) -> jax.Array:
        """Look up a map (y, x, …) at p + o; at p it is `first(image)`."""
        return _take(_take(image, self.y.other, 0), self.x.other, 2)

    def shape(self, images: jax.Array) -> tuple[int, ...]:
        """The shape of planes of pairs of `images` (y, x, …, n)."""
        return (*self.y.other.shape, *self.x.other.shape, images.shape[-1])

    @staticmethod
    def first(image: jax.Array) -> jax.Array:
        """A map (y, x, …) at p, broadcast over offsets."""
        return image[None, :, None]

    def box(self, planes: jax.Array) -> jax.Array:
        """Mean over 3×3 neighbours within each plane, zero outside."""
        return _three(_three(planes, self.y.follows, 0), self.x.follows, 2) / 9

    def pool(self, planes: jax.Array) -> jax.Array:
        """Average over 2×2 pixels of both images, from the planes of the level before."""
        rows, columns = self.y.other.shape, self.x.other.shape
        if self.y.pooling is None or self.x.pooling is None:
            raise ValueError("the first level's planes are not pooled from others; tabulate the levels together")
        flat = planes.reshape(math.prod(planes.shape[:2]), math.prod(planes.shape[2:4]), planes.shape[-1])
        flat = _pool(_pool(flat, *self.x.pooling, 1), *self.y.pooling, 0)
        return flat.reshape(*rows, *columns, planes.shape[-1])


def _along(table: Any, dim: int) -> Any:
    """A table (o, p) of the axis at `dim` and `dim + 1` of planes, to broadcast with them."""
    return jnp.expand_dims(table, [d for d in range(5) if d not in (dim, dim + 1)])


def _take(x: jax.Array, index: Any, dim: int) -> jax.Array:
    """Gather along one dimension; an index past the end gives 0."""
    return x.at[(slice(None),) * dim + (index,)].get(mode="fill", fill_value=0, wrap_negative_indices=False)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _pool(k: jax.Array, corners: Any, back: Any, dim: int) -> jax.Array:
    """Average pooling along `dim`; its adjoint is a gather too."""
    del back
    first, *others = (_take(k, corners[c], dim) for c in range(4))
    return 0.25 * functools.reduce(jnp.add, others, first)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _spread(k_bar: jax.Array, corners: Any, back: Any, dim: int) -> jax.Array:
    del corners
    return 0.25 * _take(k_bar, back, dim)


_pool.defvjp(
    lambda k, *tables: (_pool(k, *tables), tables[:2]),
    lambda dim, tables, k_bar: (_spread(k_bar, *tables, dim), None, None),
)
_spread.defvjp(
    lambda k, *tables: (_spread(k, *tables), tables[:2]),
    lambda dim, tables, k_bar: (_pool(k_bar, *tables, dim), None, None),
)


def _three(planes: jax.Array, follows: Any, dim: int) -> jax.Array:
    """Sum of an entry and its two neighbours along the pixels of the axis at `dim`, within the plane."""
    n = planes.shape[dim + 1]
    before, after = (tuple((pad if d == dim + 1 else (0, 0)) for d in range(5)) for pad in ((1, 0), (0, 1)))
    mask = _along(follows, dim)
    ahead = jnp.where(mask, jax.lax.slice_in_dim(planes, 1, n, axis=dim + 1), 0)
    behind = jnp.where(mask, jax.lax.slice_in_dim(planes, 0, n - 1, axis=dim + 1), 0)
    return planes + jnp.pad(ahead, after) + jnp.pad(behind, before)


def tabulate(plan: list[Level]) -> list[Grid]:
    """Compute the tables of the levels of `plan`."""
    grids: list[Grid] = []
    before: tuple[Axis | None, Axis | None] = (None, None)
    for level in plan:
        axes = axis_of(level.height, level.radius_y), axis_of(level.width, level.radius_x)
        grids.append(Grid(*map(AxisTables.of, axes, before)))
        before = axes
    return grids
