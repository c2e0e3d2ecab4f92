"""Convolutional and pooled network kernels on offset planes, in JAX: any device, any order of derivative in reverse.

The covariance of two images between pixels p and p′ is stored by offset o = p′ − p as small planes over p. A
convolution is a 3×3 box mean within each plane, ReLU acts pointwise, and only pooling mixes planes: the pooled offset o
gathers the offsets 2o + {−1, 0, 1}. So only the offsets that reach the read-out are kept. One layer is

    K ← σ_w² box K + σ_b²        Θ ← σ_w² box Θ + a box K_before + b        K, Θ ← ½√(dd′) κ₁(u), ½ κ₀(u) Θ

with a = σ_w², b = σ_b² in NTK parameterisation and a = fan_in, b = 1 in standard parameterisation (Sohl-Dickstein et
al. 2020), d and d′ each image's own variances (K at offset 0 of the image with itself) and u = K/√(dd′).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels import relu
from kip.kernels.base import Bound, Kernel, Params, as_points, on_cpu
from kip.kernels.grids import Grid, Level, levels, runs, tabulate
from kip.kernels.network import Network, fan_ins
from kip.kernels.pairwise import PairForm, PairwiseKernel

__all__ = ["Level", "NetworkKernel", "PlanesKernel", "Recipe", "State", "levels", "read_out"]

TILE_BYTES = 1 << 26
"""On an accelerator the planes of a tile of pairs take about this size; differentiation multiplies it."""

PLANES_BYTES = 1 << 22
"""On a CPU several pairs share a tile where the planes of one layer take at most this size, and so stay near the
caches. Else a tile is one pair: ConvNet-3 on 28×28 images takes 1 ms per pair so, and 1.7 ms with 4 pairs per tile.
Larger tiles also pass the 32 MB from which glibc maps and clears memory anew for every call.
"""

CHEAP_BYTES = 1 << 21
"""Many pairs per tile where their planes are smaller than this: else calls would take longer than the planes."""

OPERATIONS = 40
"""Operations per entry of a plane and layer, about."""


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


def read_out(recipe: Recipe, state: State, v1: Any, v2: Any, shape: tuple[int, ...], params: Params) -> Any:
    """Go through the dense layers to the kernel's value; v1 and v2 are each point's own variance at the read-in."""
    tangents = recipe.tangents(shape, params)[recipe.network.spatial.count("conv") :]
    return _dense_layers(recipe.network, state, v1, v2, tangents, params)


def _dense_layers(
    network: Network, state: State, v1: Any, v2: Any, tangents: list[tuple[Any, Any]], params: Params
) -> Any:
    own, coefficients = [State(v1, None), State(v2, None)], iter(tangents)
    for layer in network.hidden:
        if layer == "dense":
            tangent = next(coefficients)
            state, *own = (s.linear(lambda k: k, params, tangent) for s in (state, *own))
        else:
            state = state.relu(own[0].k, own[1].k)
            own = [s.relu(s.k, s.k) for s in own]
    final = state.linear(lambda k: k, params, (params["weight_variance"], params["bias_variance"]))
    return final.k if final.theta is None else final.theta


class Tables(NamedTuple):
    """Arguments of compiled code that follow from a network and the shape of an image.

    The coefficients of `Recipe.tangents` are a = `fans` + s σ_w² and b = 1 − s + s σ_b², with `learned` s: both
    parameterisations share compiled code.
    """

    grids: list[Grid]
    own: list[Grid]
    fans: Any
    learned: Any

    def tangents(self, params: Params) -> tuple[Any, Any]:
        """Compute a and b of every conv and dense layer but the read-out."""
        sw, sb = params["weight_variance"], params["bias_variance"]
        learned, fans = (jnp.asarray(table, sw.dtype) for table in (self.learned, self.fans))
        return fans + learned * sw, jnp.broadcast_to(1 - learned + learned * sb, fans.shape)


@functools.lru_cache(maxsize=64)
def _tables(network: Network, width: int | None, shape: tuple[int, ...]) -> Tables:
    fans = [0 if width is None else fan for _, fan in fan_ins(network, shape, width or 1)[:-1]]
    grids, own = (tabulate(levels(network, shape, own=own)) for own in (False, True))
    return Tables(grids, own, np.array(fans, np.int32), np.array(width is None, np.int32))


Layer = Callable[[State, Any], tuple[State, Any]]


def _walk(
    plan: list[Level], grids: list[Grid], state: State, layer: Callable[[Level, Grid, bool], Layer], inputs: list[Any]
) -> tuple[State, list[Any]]:
    """Take planes through the levels: a conv, with its ReLU if it has one, is one `layer`.

    Equal layers in a row are one loop of the program, over the entries of the run's `inputs`; what they put out is
    stacked likewise.
    """
    outputs, at = [], 0
    for n, (level, grid) in enumerate(zip(plan, grids, strict=True)):
        if n > 0:
            state = state.map(grid.pool)
        for run in runs(level):
            step = layer(level, grid, run.relu)
            state, output = _repeat(step, state, inputs[at], run.length)
            outputs.append(output)
            at += 1
    return state, outputs


def _repeat(step: Layer, state: State, inputs: Any, count: int) -> tuple[State, Any]:
    if count > 1:
        return jax.lax.scan(jax.checkpoint(step), state, inputs, length=count)
    state, output = step(state, jax.tree.map(lambda x: x[0], inputs))
    return state, jax.tree.map(lambda x: x[None], output)


def _products(grid: Grid, x1: jax.Array, x2: jax.Array) -> jax.Array:
    """Mean over channels of the products of pixels of images (h, w, ch, n), as planes.

    One channel at a time: lookups of all channels at once take 30 times as long, since they do not vectorise.
    """

    def add(total: jax.Array, channel: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + grid.first(channel[0]) * grid.second(channel[1]), None

    channels = jnp.moveaxis(x1, 2, 0), jnp.moveaxis(x2, 2, 0)
    total, _ = jax.lax.scan(add, jnp.zeros(grid.shape(x1), x1.dtype), channels)
    return grid.mask(total / x1.shape[2])


def own_variances(network: Network, x: jax.Array, params: Params, grids: list[Grid]) -> list[jax.Array]:
    """Compute the variances of images (h, w, ch, n) at every spatial ReLU: per run of equal layers (L, h_l, w_l, n)."""
    plan = levels(network, x.shape[:3], own=True)
    if not plan:
        return []

    def layer(level: Level, grid: Grid, has_relu: bool) -> Layer:
        def step(state: State, _: Any) -> tuple[State, Any]:
            state = state.linear(grid.box, params, (0.0, 0.0))
            d = state.k[level.zero[0], :, level.zero[1]]
            state = state.relu(grid.first(d), grid.second(d)) if has_relu else state
            return state.map(grid.mask), d if has_relu else None

        return step

    none = [None for level in plan for _ in runs(level)]
    _, found = _walk(plan, grids, State(_products(grids[0], x, x), None), layer, none)
    return [d for d in found if d is not None]


class Images(NamedTuple):
    """Images (n, h, w, ch) with their own variances (n, L, h_l, w_l) per run of layers, and that at the read-in."""

    x: jax.Array
    d: list[jax.Array]
    v: jax.Array


@dataclass(frozen=True)
class PlanesForm(PairForm):
    """The kernel as pure functions of points and of matched pairs of points.

    `width` enters by `tables` alone, so that forms which differ in nothing else share compiled code.
    """

    network: Network
    nngp: bool
    width: int | None = field(default=None, compare=False)

    # By default XLA compiles every fused loop of a program, and parts of the rest, into an object file of its own, each
    # with several mappings. One file per program has a tenth of them, and compiles in 0.6 of the time; it runs as fast.
    compiler_options = MappingProxyType(
        {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
    )

    def tables(self, shape: tuple[int, ...]) -> Tables:
        return _tables(self.network, self.width, _image(shape))

    def of_points(self) -> PlanesForm:
        return dataclasses.replace(self, nngp=True)

    def represent_tile(self, params: Params, x: Any, tables: Tables) -> Images:
        x = jnp.asarray(x).reshape(len(x), *_image(x.shape[1:]))
        pixels = jnp.moveaxis(x, 0, -1)
        d = own_variances(self.network, pixels, params, tables.own)
        if "relu" in self.network.hidden:
            v = _at_read_in(self.network, pixels, pixels, d, d, params, tables, True).k
        else:
            v = jnp.zeros(len(x), x.dtype)
        return Images(x, [jnp.moveaxis(m, -1, 0) for m in d], v)

    def matched_tile(self, params: Params, first: Images, second: Images, tables: Tables) -> jax.Array:
        (x1, d1, v1), (x2, d2, v2) = (
            (jnp.moveaxis(side.x, 0, -1), [jnp.moveaxis(m, 0, -1) for m in side.d], side.v) for side in (first, second)
        )
        state = _at_read_in(self.network, x1, x2, d1, d2, params, tables, self.nngp)
        dense = self.network.spatial.count("conv")
        tangents = list(zip(*(t[dense:] for t in tables.tangents(params)), strict=True))
        return _dense_layers(self.network, state, v1, v2, tangents, params)

    def rows(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
        plan = levels(self.network, _image(shape)) or [Level((), 1, 1, 0, 0)]
        largest = max(level.entries for level in plan) * np.dtype(dtype).itemsize
        if not on_cpu():
            return (max(1, TILE_BYTES // (4 * largest)),)
        if 256 * largest <= CHEAP_BYTES:
            return (256, 16)
        return (16, 4) if 16 * largest <= PLANES_BYTES else (1,)


def _image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an image; that of a vector is (1, 1, d)."""
    return shape if len(shape) == 3 else (1, 1, *shape)


def _at_read_in(
    network: Network,
    x1: jax.Array,
    x2: jax.Array,
    d1: list[jax.Array],
    d2: list[jax.Array],
    params: Params,
    tables: Tables,
    nngp: bool,
) -> State:
    """K and Θ of pairs where images have become vectors, given both images' own variances."""
    plan, grids = levels(network, x1.shape[:3]), tables.grids
    weights, biases = tables.tangents(params)
    inputs, at, pairs = [], 0, iter(zip(d1, d2, strict=True))
    for run in (run for level in plan for run in runs(level)):
        part = slice(at, at := at + run.length)
        inputs.append((next(pairs) if run.relu else None, (weights[part], biases[part])))

    def layer(_: Level, grid: Grid, has_relu: bool) -> Layer:
        def step(state: State, given: Any) -> tuple[State, Any]:
            variances, tangent = given
            state = state.linear(grid.box, params, tangent)
            if has_relu:
                state = state.relu(grid.first(variances[0]), grid.second(variances[1]))
            return state.map(grid.mask), None

        return step

    k = _products(grids[0], x1, x2)
    state, _ = _walk(plan, grids, State(k, None if nngp else jnp.zeros_like(k)), layer, inputs)
    y, x = plan[-1].zero
    if network.read_in == "flatten":
        return state.map(lambda k: k[y, :, x].mean((0, 1)))
    return state.map(lambda k: k.sum((0, 1, 2, 3)) / (plan[-1].height * plan[-1].width) ** 2)


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


class PlanesKernel(NetworkKernel, PairwiseKernel):
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
    def form(self) -> PlanesForm:
        return PlanesForm(self.network, self.nngp, None if self.nngp else self.width)  # an NNGP has no width

    def gram(self, x1: Any, x2: Any = None) -> Any:
        self.network.check(as_points(x1, "x1").shape[1:])
        return super().gram(x1, x2)

    def bind(self, x_support: Any) -> Bound:
        self.network.check(as_points(x_support, "x_support").shape[1:])
        return super().bind(x_support)

    def diag(self, x: Any) -> Any:
        self.network.check(as_points(x).shape[1:])
        return super().diag(x)
