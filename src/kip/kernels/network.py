"""Architectures as lists of layer names, and the finite network that a list describes.

The kernels of `planes` and `planes_cpu` read the same list, so a kernel and its finite network cannot drift apart.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

LAYERS = ("conv", "norm", "relu", "pool", "flatten", "gap", "dense")
"""3×3 SAME convolution · instance norm, which has no exact kernel · ReLU · 2×2 average pool, stride 2, VALID · flatten
· global average pool · dense."""

MYRTLE_BLOCKS = {5: (2, 1, 1), 7: (2, 2, 2), 10: (3, 3, 3)}
"""Convolutions in each of the three blocks of Myrtle-N."""

Parameterisation = Literal["ntk", "standard"]
Weights = list[dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True)
class Network:
    """A feed-forward network as the tuple of its layer names, checked on construction.

    The order is: any of conv, norm, relu, pool; then one read-in to vectors, flatten or gap; then dense and relu; last
    the dense read-out, which is appended where it is left out. ReLU acts on pre-activations, so it follows conv, norm
    or dense; norm follows conv.
    """

    layers: tuple[str, ...]

    def __post_init__(self) -> None:
        layers = tuple(self.layers)
        _check_names(layers)
        if layers[-1] != "dense":
            layers = (*layers, "dense")
        _check_order(layers)
        object.__setattr__(self, "layers", layers)

    @property
    def _read_in(self) -> int:
        return next(i for i, layer in enumerate(self.layers) if layer in ("flatten", "gap"))

    @property
    def spatial(self) -> tuple[str, ...]:
        """The layers before images become vectors."""
        return self.layers[: self._read_in]

    @property
    def read_in(self) -> str:
        """How images become vectors: "flatten" or "gap"."""
        return self.layers[self._read_in]

    @property
    def hidden(self) -> tuple[str, ...]:
        """The dense and relu layers between the vectors and the final read-out, which is left out."""
        return self.layers[self._read_in + 1 : -1]

    @property
    def name(self) -> str:
        """The shortest string from which `named` gives this network back."""
        for family, builder in _FAMILIES.items():
            depth = sum(layer == "relu" for layer in self.layers) + (family == "myrtle")
            if depth in (MYRTLE_BLOCKS if family == "myrtle" else range(1, depth + 1)) and self == builder(depth):
                return f"{family}{depth}"
        # a read-out that follows a hidden dense cannot be left to be appended
        return "-".join(self.layers if self.layers[-2] == "dense" else self.layers[:-1])

    def check(self, shape: Sequence[int]) -> None:
        """Raise ValueError unless one point of `shape`, without its leading axis, can go through the layers."""
        shape = tuple(shape)
        if len(shape) == 1 and not self.spatial and self.read_in == "flatten":
            return
        if len(shape) != 3:
            raise ValueError(f"`{self.name}` needs images (n, h, w, channels); got points of shape {shape}")
        if min(shape) < 1:
            raise ValueError(f"`{self.name}` needs images with at least one pixel and one channel; got {shape}")
        need = 2 ** self.spatial.count("pool")
        if min(shape[:2]) < need:
            raise ValueError(
                f"`{self.name}` pools {self.spatial.count('pool')} times and needs images of at least {need}×{need}; "
                f"got {shape[0]}×{shape[1]}. Use larger images or fewer pools."
            )


def _check_names(layers: tuple[str, ...]) -> None:
    if not layers:
        raise ValueError("`layers` is empty; a network needs at least 'flatten' or 'gap', then its dense read-out")
    for layer in layers:
        if layer not in LAYERS:
            nearest = difflib.get_close_matches(str(layer), LAYERS, n=1, cutoff=0.4)
            hint = f"Did you mean '{nearest[0]}'?" if nearest else f"Layers are {', '.join(LAYERS)}."
            raise ValueError(f"unknown layer '{layer}' in `layers`. {hint}")


def _check_order(layers: tuple[str, ...]) -> None:
    said = "-".join(layers)
    read_ins = [i for i, layer in enumerate(layers) if layer in ("flatten", "gap")]
    if len(read_ins) != 1:
        raise ValueError(
            f"`layers` must hold exactly one 'flatten' or 'gap' before the dense read-out; got {said}. "
            + ("End it with flatten or gap." if not read_ins else "Keep one of them.")
        )
    for i, layer in enumerate(layers):
        if layer in ("conv", "norm", "pool") and i > read_ins[0]:
            raise ValueError(f"'{layer}' cannot follow '{layers[read_ins[0]]}' in `layers`; got {said}")
        if layer == "dense" and i < read_ins[0]:
            raise ValueError(f"'dense' needs 'flatten' or 'gap' before it in `layers`; got {said}")
        if layer == "relu" and (i == 0 or layers[i - 1] not in ("conv", "norm", "dense")):
            raise ValueError(f"'relu' must follow a 'conv', 'norm' or 'dense' directly in `layers`; got {said}")
        if layer == "norm" and (i == 0 or layers[i - 1] != "conv"):
            raise ValueError(f"'norm' must follow a 'conv' directly in `layers`; got {said}")


def _fc(depth: int) -> Network:
    return Network(("flatten", *("dense", "relu") * depth))


def _conv(depth: int) -> Network:
    return Network((*("conv", "relu") * depth, "flatten"))


def _convnet(depth: int) -> Network:
    return Network((*("conv", "relu", "pool") * depth, "flatten"))


def _myrtle(depth: int) -> Network:
    first, second, third = (("conv", "relu") * n for n in MYRTLE_BLOCKS[depth])
    return Network((*first, "pool", *second, "pool", *third, "gap"))


_FAMILIES: dict[str, Callable[[int], Network]] = {"fc": _fc, "conv": _conv, "convnet": _convnet, "myrtle": _myrtle}


def named(name: str) -> Network | None:
    """Look up the network called `name`; None where the name is not of a network.

    Names are fcM, convM, convnetM (M ≥ 1 hidden layers), myrtle5, myrtle7, myrtle10, and a list of layers spelt with
    dashes, such as "conv-relu-pool-conv-relu-gap".
    """
    match = re.fullmatch(r"(fc|convnet|conv|myrtle)(\d+)", name)
    if match:
        family, depth = match[1], int(match[2])
        if family == "myrtle" and depth not in MYRTLE_BLOCKS:
            raise ValueError(f"Myrtle networks are myrtle5, myrtle7 and myrtle10; got '{name}'")
        if depth < 1:
            raise ValueError(f"'{family}' needs at least one hidden layer; got '{name}'. Use '{family}1'.")
        return _FAMILIES[family](depth)
    parts = tuple(name.split("-"))
    return Network(parts) if any(part in LAYERS for part in parts) else None


Init = Callable[..., Weights]
Apply = Callable[[Weights, jax.Array], jax.Array]


def finite(
    network: Network,
    *,
    width: int,
    classes: int = 1,
    parameterisation: Parameterisation = "ntk",
    weight_variance: float = 2.0,
    bias_variance: float = 1e-4,
) -> tuple[Init, Apply]:
    """Build the finite network of `width` channels and units: `init(key, shape) -> weights`, `apply(weights, x)`.

    A layer computes  σ_w/√fan_in · W x + σ_b b  with W, b ~ N(0, 1) in NTK parameterisation, and W x + b with
    W ~ N(0, σ_w²/fan_in), b ~ N(0, σ_b²) in standard parameterisation; the read-out is always in the former.
    `weight_variance` is σ_w², `bias_variance` σ_b²; `shape` is that of one point; `apply` gives (n, classes), or,
    called with the first few `layers`, what these give.
    """
    if width < 1 or classes < 1:
        raise ValueError(f"`width` and `classes` must be at least 1; got {width} and {classes}")
    if parameterisation not in ("ntk", "standard"):
        raise ValueError(f"`parameterisation` must be 'ntk' or 'standard'; got '{parameterisation}'")
    last = sum(layer in ("conv", "dense") for layer in network.layers) - 1

    def scales(fan_in: int) -> tuple[float, float]:
        return math.sqrt(weight_variance / fan_in), math.sqrt(bias_variance)

    def drawn_unit(index: int) -> bool:
        return parameterisation == "ntk" or index == last

    def init(key: jax.Array, shape: Sequence[int]) -> Weights:
        network.check(shape)
        weights: Weights = []
        for index, (layer, fan_in) in enumerate(fan_ins(network, shape, width)):
            key, key_w, key_b = jax.random.split(key, 3)
            units = classes if index == last else width
            w = jax.random.normal(key_w, (3, 3, fan_in // 9, units) if layer == "conv" else (fan_in, units))
            b = jax.random.normal(key_b, (units,))
            sw, sb = (1.0, 1.0) if drawn_unit(index) else scales(fan_in)
            weights.append({"w": sw * w, "b": sb * b})
        return weights

    def apply(weights: Weights, x: jax.Array, layers: Sequence[str] = network.layers) -> jax.Array:
        index = 0
        for layer in layers:
            if layer in ("conv", "dense"):
                w, b = weights[index]["w"], weights[index]["b"]
                sw, sb = scales(math.prod(w.shape[:-1])) if drawn_unit(index) else (1.0, 1.0)
                x = sw * _LINEAR[layer](x, w) + sb * b
                index += 1
            else:
                x = _PLAIN[layer](x)
        return x

    return init, apply


def fan_ins(network: Network, shape: Sequence[int], width: int) -> list[tuple[str, int]]:
    """Each conv and dense layer with the number of inputs a unit of it sums over, for points of `shape`."""
    size, channels = list(shape[:-1]), shape[-1]
    out = []
    for layer in network.layers:
        if layer == "pool":
            size = [n // 2 for n in size]
        elif layer == "flatten":
            channels *= math.prod(size)
        elif layer in ("conv", "dense"):
            out.append((layer, channels * 9 if layer == "conv" else channels))
            channels = width
    return out


Padding = tuple[tuple[int, int], tuple[int, int]]


def convolve(x: jax.Array, w: jax.Array, padding: str | Padding = "SAME") -> jax.Array:
    """Convolve images (n, h, w, in) with filters (h, w, in, out), stride 1; differentiable in reverse."""
    if isinstance(padding, str):
        sizes = w.shape[:2] if padding == "SAME" else (1, 1)
        padding = (((sizes[0] - 1) // 2, sizes[0] // 2), ((sizes[1] - 1) // 2, sizes[1] // 2))
    return _convolve(x, w, padding)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _convolve(x: jax.Array, w: jax.Array, padding: Padding) -> jax.Array:
    return jax.lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _convolve_forward(x: jax.Array, w: jax.Array, padding: Padding) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _convolve(x, w, padding), (x, w)


def _convolve_backward(
    padding: Padding, kept: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The pullback as a convolution and one matrix product: on CPUs XLA's own takes four times as long."""
    x, w = kept
    height, width, fan, units = w.shape
    (top, bottom), (left, right) = padding
    around = ((height - 1 - top, height - 1 - bottom), (width - 1 - left, width - 1 - right))
    x_bar = _convolve(cotangent, jnp.flip(w, (0, 1)).swapaxes(2, 3), around)
    padded = jnp.pad(x, ((0, 0), *padding, (0, 0)))
    _, rows, columns, _ = cotangent.shape
    shifts = [padded[:, i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    patches = jnp.concatenate(shifts, -1).reshape(-1, height * width * fan)
    return x_bar, (patches.T @ cotangent.reshape(-1, units)).reshape(w.shape)


_convolve.defvjp(_convolve_forward, _convolve_backward)


def pooled(x: jax.Array, reduce: Callable[..., jax.Array] = jnp.mean) -> jax.Array:
    """2×2 pool, stride 2, by reshaping: its gradient is a copy, where that of a window is a scatter."""
    n, h, w, ch = x.shape
    even = x[:, : h // 2 * 2, : w // 2 * 2]
    return reduce(even.reshape(n, h // 2, 2, w // 2, 2, ch), axis=(2, 4))


def normed(x: jax.Array, epsilon: float = 1e-5) -> jax.Array:
    """Instance norm: each channel of each image brought to mean 0 and variance 1."""
    centred = x - x.mean((1, 2), keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean((1, 2), keepdims=True) + epsilon)


_LINEAR: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {"conv": convolve, "dense": jnp.matmul}
_PLAIN: dict[str, Callable[[jax.Array], Any]] = {
    "relu": jax.nn.relu,
    "norm": normed,
    "pool": pooled,
    "flatten": lambda x: x.reshape(x.shape[0], -1),
    "gap": lambda x: x.mean((1, 2)),
}
