"""Convolutional and pooled network kernels on offset planes, in JAX: any device, any order of derivative in reverse.

The covariance of two images between pixels p and p′ is stored by offset o = p′ − p as small planes over p. A
convolution is a 3×3 box mean within each plane, ReLU acts pointwise, and only pooling mixes planes: the pooled offset o
gathers the offsets 2o + {−1, 0, 1}. So only the offsets that reach the read-out are kept. One layer is

    K ← σ_w² box K + σ_b²        Θ ← σ_w² box Θ + a box K_before + b        K, Θ ← ½√(dd′) κ₁(u), ½ κ₀(u) Θ

with a = σ_w², b = σ_b² in NTK parameterisation and a = fan_in, b = 1 in standard parameterisation (Sohl-Dickstein et
al. 2020), d and d′ each image's own variances (K at offset 0 of the image with itself) and u = K/√(dd′).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels import relu
from kip.kernels.base import Bound, Kernel, Params, as_points, common_points
from kip.kernels.network import Network, fan_ins
from kip.kernels.traced import Form, TracedKernel

TILE_BYTES = 1 << 26
"""The planes of a tile of pairs are kept to about this size; differentiation multiplies it by the layers of a level."""


OPERATIONS = 40
"""Of an entry of a plane per layer, about."""


class Level(NamedTuple):
    """The layers between two pools, on planes of one size."""

    layers: tuple[str, ...]
    height: int
    width: int
    radius_y: int
    radius_x: int

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


class Axis:
    """One direction, y or x, of a level's planes: entries (o, p) for offset o and pixel p.

    A band of offsets −R … R has `size` entries an offset, those with p + o outside the image not valid. Where the band
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
        self.size, self.radius, self.shape = size, radius, other.shape
        self.valid = (other >= 0) & (other < size)
        self.other = np.clip(other, 0, size - 1)
        self.follows = np.zeros(other.shape, bool)
        self.follows[:, :-1] = self.valid[:, :-1] & self.valid[:, 1:] & (np.diff(other) == 1)
        self.position = np.full((size, size), -1)
        rows, pixels = np.nonzero(self.valid)
        self.position[pixels, self.other[rows, pixels]] = rows * size + pixels


@functools.cache
def axis_of(size: int, radius: int) -> Axis:
    """Make the axis of this size and radius, once."""
    return Axis(size, radius)


@functools.cache
def _pooling(size: int, radius: int, pooled_radius: int) -> Callable[[jax.Array], jax.Array]:
    """Average pooling along an axis flattened to the last dimension, whose adjoint is a gather too.

    A pair of pooled pixels (q, q′) averages the four pairs (2q + a, 2q′ + b); a pair belongs to at most one.
    """
    source, target = axis_of(size, radius), axis_of(size // 2, pooled_radius)
    rows, pixels = np.nonzero(target.valid)
    flat = rows * target.size + pixels
    absent = source.valid.size
    index = np.full((4, target.valid.size), absent, np.int32)
    back = np.full(absent + 1, target.valid.size, np.int32)
    for corner in range(4):
        a, b = divmod(corner, 2)
        index[corner, flat] = source.position[2 * pixels + a, 2 * target.other[rows, pixels] + b]
        back[index[corner, flat]] = flat
    back = back[:-1]

    def pad(k: jax.Array) -> jax.Array:
        return jnp.concatenate([k, jnp.zeros((*k.shape[:-1], 1), k.dtype)], -1)

    @jax.custom_vjp
    def pool(k: jax.Array) -> jax.Array:
        k = pad(k)
        return 0.25 * (k[..., index[0]] + k[..., index[1]] + k[..., index[2]] + k[..., index[3]])

    @jax.custom_vjp
    def spread(k_bar: jax.Array) -> jax.Array:
        return 0.25 * pad(k_bar)[..., back]

    pool.defvjp(lambda k: (pool(k), None), lambda _, k_bar: (spread(k_bar),))
    spread.defvjp(lambda k: (spread(k), None), lambda _, k_bar: (pool(k_bar),))
    return pool


class Grid(NamedTuple):
    """The two axes of a level; planes are arrays (o_y, y, o_x, x)."""

    y: Axis
    x: Axis

    @classmethod
    def of(cls, level: Level) -> Grid:
        """Look up the axes of a level."""
        return cls(axis_of(level.height, level.radius_y), axis_of(level.width, level.radius_x))

    def mask(self, planes: jax.Array) -> jax.Array:
        """`planes` with 0 outside the image."""
        if self.y.valid.all() and self.x.valid.all():
            return planes
        return jnp.where(self.y.valid[:, :, None, None], jnp.where(self.x.valid, planes, 0), 0)

    def second(self, image: jax.Array) -> jax.Array:
        """Look up a map (y, x, …) at p + o; at p it is `image[:, None]`, broadcast over offsets."""
        return image[self.y.other[:, :, None, None], self.x.other]

    def box(self, planes: jax.Array) -> jax.Array:
        """Mean over 3×3 neighbours within each plane, zero outside."""
        return _three(_three(planes, self.y.follows[:, :-1, None, None], 1), self.x.follows[:, :-1], 3) / 9

    def pool(self, planes: jax.Array, pooled: Grid) -> jax.Array:
        """Average over 2×2 pixels of both images."""
        pool_y, pool_x = (_pooling(a.size, a.radius, b.radius) for a, b in zip(self, pooled, strict=True))
        planes = pool_x(planes.reshape(self.y.valid.size, -1))
        planes = pool_y(planes.T).reshape(*pooled.x.shape, *pooled.y.shape)
        return planes.transpose(2, 3, 0, 1)


def _three(planes: jax.Array, follows: np.ndarray, dim: int) -> jax.Array:
    """Sum of an entry and its two neighbours along the pixel dimension `dim`, within the plane."""
    n = planes.shape[dim]
    before, after = (tuple((pad if d == dim else (0, 0)) for d in range(4)) for pad in ((1, 0), (0, 1)))
    ahead = jnp.where(follows, jax.lax.slice_in_dim(planes, 1, n, axis=dim), 0)
    behind = jnp.where(follows, jax.lax.slice_in_dim(planes, 0, n - 1, axis=dim), 0)
    return planes + jnp.pad(ahead, after) + jnp.pad(behind, before)


class Recipe(NamedTuple):
    """What of a kernel is fixed at compilation."""

    network: Network
    nngp: bool
    width: int | None

    def tangents(self, shape: tuple[int, ...], params: Params) -> list[tuple[Any, Any]]:
        """List (a, b) of Θ ← σ_w² box Θ + a box K_before + b, for every conv and dense layer but the read-out."""
        fans = fan_ins(self.network, shape, self.width or 1)[:-1]
        if self.width is None:
            return [(params["weight_variance"], params["bias_variance"])] * len(fans)
        return [(float(fan_in), 1.0) for _, fan_in in fans]


class State(NamedTuple):
    """K and Θ of one pair at some layer, as planes or, after the read-in, as numbers."""

    k: jax.Array
    theta: jax.Array | None

    def map(self, function: Callable[[jax.Array], jax.Array]) -> State:
        """Apply a linear function to both."""
        return State(function(self.k), None if self.theta is None else function(self.theta))

    def linear(self, box: Callable[[jax.Array], jax.Array], params: Params, tangent: tuple[Any, Any]) -> State:
        """Go through a conv or dense layer."""
        sw, sb = params["weight_variance"], params["bias_variance"]
        k = box(self.k)
        theta = None if self.theta is None else sw * box(self.theta) + tangent[0] * k + tangent[1]
        return State(sw * k + sb, theta)

    def relu(self, d1: jax.Array, d2: jax.Array) -> State:
        """Go through a ReLU, given the variances at p and at p′."""
        k, slope = relu.relu(self.k, d1, d2)
        return State(k, None if self.theta is None else slope * self.theta)


def _walk(
    plan: list[Level],
    x1: jax.Array,
    x2: jax.Array,
    params: Params,
    tangents: Iterable[tuple[Any, Any]] | None,
    variances: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
) -> tuple[State, Grid]:
    """Take one pair of images (h, w, ch) through the levels; without `tangents`, K alone.

    `variances` is called at each ReLU with the plane of offset 0, and gives d and d′ as maps (y, x).
    """
    grid = Grid.of(plan[0])
    k = grid.mask(jnp.mean(x1[:, None] * grid.second(x2), -1))
    state = State(k, None if tangents is None else jnp.zeros_like(k))
    coefficients = iter(tangents or ())
    for i, level in enumerate(plan):
        if i > 0:
            pooled = Grid.of(level)
            state, grid = state.map(functools.partial(grid.pool, pooled=pooled)), pooled
        for layer in level.layers:
            if layer == "conv":
                state = state.linear(grid.box, params, next(coefficients, (0.0, 0.0)))
            else:
                d1, d2 = variances(state.k[grid.y.zero, :, grid.x.zero])
                state = state.relu(d1[:, None], grid.second(d2))
            state = state.map(grid.mask)
    return state, grid


def own_variances(network: Network, x: jax.Array, params: Params) -> list[jax.Array]:
    """Compute the variances of one image `x` (h, w, ch) at every spatial ReLU, each (h_l, w_l)."""
    out: list[jax.Array] = []

    def record(d: jax.Array) -> tuple[jax.Array, jax.Array]:
        out.append(d)
        return d, d

    plan = levels(network, x.shape, own=True)
    if plan:
        _walk(plan, x, x, params, None, record)
    return out


def _at_read_in(
    recipe: Recipe, x1: jax.Array, x2: jax.Array, d1: list[jax.Array], d2: list[jax.Array], params: Params, nngp: bool
) -> State:
    """K and Θ of one pair where images have become vectors, given both images' own variances."""
    pairs = iter(zip(d1, d2, strict=True))
    tangents = None if nngp else recipe.tangents(x1.shape, params)
    plan = levels(recipe.network, x1.shape)
    state, grid = _walk(plan, x1, x2, params, tangents, lambda _: next(pairs))
    if recipe.network.read_in == "flatten":
        return state.map(lambda k: k[grid.y.zero, :, grid.x.zero].mean())
    return state.map(lambda k: k.sum() / (grid.y.size * grid.x.size) ** 2)


def read_out(recipe: Recipe, state: State, v1: jax.Array, v2: jax.Array, shape: tuple[int, ...], params: Params) -> Any:
    """Go through the dense layers to the kernel's value; v1 and v2 are each point's own variance at the read-in."""
    tangents = recipe.tangents(shape, params)[recipe.network.spatial.count("conv") :]
    own = [State(v1, None), State(v2, None)]
    for layer in recipe.network.hidden:
        if layer == "dense":
            tangent = tangents.pop(0)
            state, *own = (s.linear(lambda k: k, params, tangent) for s in (state, *own))
        else:
            state = state.relu(own[0].k, own[1].k)
            own = [s.relu(s.k, s.k) for s in own]
    final = state.linear(lambda k: k, params, (params["weight_variance"], params["bias_variance"]))
    return final.k if final.theta is None else final.theta


class Images(NamedTuple):
    """Images (n, h, w, ch) with their own variances at every spatial ReLU, and that at the read-in."""

    x: jax.Array
    d: list[jax.Array]
    v: jax.Array


@dataclass(frozen=True)
class PlanesForm(Form):
    """The kernel as two pure functions, whose memory is bounded by tiles of images and of pairs."""

    recipe: Recipe

    def represent(self, params: Params, x: Any, tables: Any) -> Images:
        del tables
        recipe, x = self.recipe, jnp.asarray(x)
        x = x if x.ndim == 4 else x[:, None, None]

        @jax.checkpoint
        def own(image: jax.Array) -> tuple[list[jax.Array], jax.Array]:
            d = own_variances(recipe.network, image, params)
            if "relu" not in recipe.network.hidden:
                return d, jnp.zeros((), x.dtype)
            return d, _at_read_in(recipe, image, image, d, d, params, True).k

        return Images(x, *_map_tiles(own, x, self._tile(x)))

    def pairs(self, params: Params, first: Images, second: Images, tables: Any) -> jax.Array:
        del tables
        n1, n2 = len(first.x), len(second.x)
        i, j = jnp.divmod(jnp.arange(n1 * n2), n2)
        return self._of(params, first, second, i, j).reshape(n1, n2)

    def own(self, params: Params, representation: Images, tables: Any) -> jax.Array:
        """Computed by half."""
        del tables
        n = len(representation.x)
        i, j = jnp.triu_indices(n)
        k = self._of(params, representation, representation, i, j)
        return jnp.zeros((n, n), k.dtype).at[i, j].set(k).at[j, i].set(k)

    def diag(self, params: Params, representation: Images, tables: Any) -> jax.Array:
        del tables
        i = jnp.arange(len(representation.x))
        return self._of(params, representation, representation, i, i)

    def _of(self, params: Params, first: Images, second: Images, i: Any, j: Any) -> jax.Array:
        """K(first[i], second[j]) for arrays of indices."""
        recipe, shape = self.recipe, first.x.shape[1:]

        @jax.checkpoint
        def pair(index: tuple[jax.Array, jax.Array]) -> jax.Array:
            (a, d1, v1), (b, d2, v2) = (_point(side, n) for side, n in zip((first, second), index, strict=True))
            state = _at_read_in(recipe, a, b, d1, d2, params, recipe.nngp)
            return read_out(recipe, state, v1, v2, shape, params)

        return _map_tiles(pair, (i, j), self._tile(first.x))

    def _tile(self, x: jax.Array) -> int:
        entries = sum(level.entries for level in levels(self.recipe.network, x.shape[1:]))
        return max(1, TILE_BYTES // (4 * entries * x.dtype.itemsize))


def _point(side: Any, n: jax.Array) -> Any:
    return jax.tree.map(lambda m: m[n], side)


def _map_tiles(function: Callable[[Any], Any], points: Any, tile: int) -> Any:
    """Map over the leading axis of `points`, `tile` at a time; the last tile is filled up with the first point."""
    n = jax.tree.leaves(points)[0].shape[0]
    tile = min(tile, n)
    count = -(-n // tile)

    def tiled(x: jax.Array) -> jax.Array:
        filler = jnp.broadcast_to(x[:1], (count * tile - n, *x.shape[1:]))
        return jnp.concatenate([x, filler]).reshape(count, tile, *x.shape[1:])

    out = jax.lax.map(jax.vmap(function), jax.tree.map(tiled, points))
    return jax.tree.map(lambda x: x.reshape(count * tile, *x.shape[2:])[:n], out)


class NetworkKernel(Kernel):
    """What the kernels of a network share whatever computes them: their name, options and checks."""

    def cost(self, shape: tuple[int, ...]) -> float:
        image = shape if len(shape) == 3 else (1, 1, *shape)
        layers = levels(self.network, image)
        return sum(level.entries * OPERATIONS * len(level.layers) for level in layers) * (1 if self.nngp else 2)

    def __init__(
        self,
        network: Network,
        *,
        nngp: bool = False,
        width: int | None = None,
        weight_variance: Any = 2.0,
        bias_variance: Any = 1e-4,
    ) -> None:
        if width is not None and width < 1:
            raise ValueError(f"`width` of the standard parameterisation must be at least 1; got {width}")
        for name, value, least in (
            ("weight_variance", weight_variance, "positive"),
            ("bias_variance", bias_variance, "0 or more"),
        ):
            if not isinstance(value, jax.core.Tracer) and not (value > 0 or (value == 0 and name == "bias_variance")):
                raise ValueError(f"`{name}` must be {least}; got {value}")
        self.network, self.nngp, self.width = network, nngp, width
        self.weight_variance, self.bias_variance = weight_variance, bias_variance

    @property
    def spec(self) -> str:
        """The canonical string: name[:nngp][:standard=W][:weight_variance=…][:bias_variance=…], defaults left out."""
        parts = [self.network.name]
        parts += ["nngp"] if self.nngp else []
        parts += [f"standard={self.width}"] if self.width is not None else []
        for name, default in (("weight_variance", 2.0), ("bias_variance", 1e-4)):
            value = float(getattr(self, name))
            parts += [f"{name}={value:.17g}"] if value != default else []
        return ":".join(parts)


class PlanesKernel(NetworkKernel, TracedKernel):
    """The NTK or NNGP kernel of a network of infinite width, in JAX.

    `width` asks for the standard parameterisation with that many channels and units per hidden layer; the read-out is
    always in NTK parameterisation. σ_w² and σ_b² are learnable.
    """

    @property
    def params(self) -> Params:
        """σ_w² and σ_b²."""
        return {"weight_variance": self.weight_variance, "bias_variance": self.bias_variance}

    def with_params(self, params: Mapping[str, Any]) -> PlanesKernel:
        """Return this kernel with other variances."""
        if set(params) != set(self.params):
            raise ValueError(f"`params` must hold {sorted(self.params)}; got {sorted(params)}")
        return PlanesKernel(self.network, nngp=self.nngp, width=self.width, **params)

    @property
    def form(self) -> Form:
        return PlanesForm(Recipe(self.network, self.nngp, None if self.nngp else self.width))  # an NNGP has no width

    def gram(self, x1: Any, x2: Any = None) -> Any:
        x1, x2_ = common_points(x1, x1 if x2 is None else x2)
        self.network.check(x1.shape[1:])
        if 0 in (len(x1), len(x2_)):
            return np.zeros((len(x1), len(x2_)), x1.dtype)
        return super().gram(x1, x2)

    def bind(self, x_support: Any) -> Bound:
        self.network.check(as_points(x_support, "x_support").shape[1:])
        return super().bind(x_support)

    def diag(self, x: Any) -> Any:
        self.network.check(as_points(x).shape[1:])
        return super().diag(x)
