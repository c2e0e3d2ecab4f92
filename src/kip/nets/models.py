"""Networks by name: FC-m, Conv-m and layer lists as the kernels have them, ConvNet, LeNet, AlexNet, WideResNet.

`build("lenet", (28, 28, 1), 10, seed=0)` gives a flax NNX module that maps points (n, …) to outputs (n, classes).
"""

from __future__ import annotations

import difflib
import importlib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from kip.kernels.network import Network, Parameterisation, convolve, finite, named, pooled

NAMES = ("fc1", "fc2", "fc3", "conv1", "conv2", "conv3", "convnet", "lenet", "alexnet", "wideresnet")
"""Examples of what `build` knows; fcM, convM, convnetM, myrtleN and layer lists spelt with dashes are more."""

FC_WIDTH, CONV_WIDTH = 1024, 128
"""Hidden units of FC-m and channels of everything convolutional, where no width is given."""


FAULTS = (TypeError, ValueError, LookupError, AttributeError)
"""What one's own network may fail with where its points are not of the shape, or its call not of the form, it takes."""


class Factory(Protocol):
    """One's own network: a module class, or a function that gives a module."""

    def __call__(self, shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        """A fresh network for points of `shape`."""


class Layers(nnx.Module):
    """The finite network of a layer list, in NTK or standard parameterisation; the kernels read the same list."""

    def __init__(
        self,
        network: Network,
        shape: Sequence[int],
        classes: int,
        *,
        width: int,
        parameterisation: Parameterisation,
        rngs: nnx.Rngs,
    ) -> None:
        self.network, self.classes, self.width, self.parameterisation = network, classes, width, parameterisation
        init, _ = self._functions()
        weights = init(rngs.params(), tuple(shape))
        self.depth = len(weights)
        for i, layer in enumerate(weights):
            setattr(self, f"w{i}", nnx.Param(layer["w"]))
            setattr(self, f"b{i}", nnx.Param(layer["b"]))

    def _functions(self) -> tuple[Any, Any]:
        return finite(self.network, width=self.width, classes=self.classes, parameterisation=self.parameterisation)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs (n, classes)."""
        _, apply = self._functions()
        weights = [{"w": getattr(self, f"w{i}")[...], "b": getattr(self, f"b{i}")[...]} for i in range(self.depth)]
        return apply(weights, x)


class ConvNet(nnx.Module):
    """Blocks of 3×3 convolution, instance norm, ReLU and 2×2 average pool, then a dense read-out (Zhao et al.)."""

    def __init__(
        self, shape: Sequence[int], classes: int, *, width: int = CONV_WIDTH, depth: int = 3, rngs: nnx.Rngs
    ) -> None:
        _need("convnet", shape, 2**depth)
        self.depth = depth
        channels = shape[2]
        for i in range(depth):
            setattr(self, f"conv{i}", _conv(channels, width, 3, rngs))
            setattr(self, f"norm{i}", nnx.InstanceNorm(width, epsilon=1e-5, rngs=rngs))
            channels = width
        self.read_out = _dense(width * (shape[0] >> depth) * (shape[1] >> depth), classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs (n, classes)."""
        for i in range(self.depth):
            x = getattr(self, f"norm{i}")(getattr(self, f"conv{i}")(x))
            x = pooled(nnx.relu(x))
        return self.read_out(x.reshape(len(x), -1))


class LeNet(nnx.Module):
    """LeNet-5 (LeCun et al.) with ReLU and max pool: 6 and 16 filters of 5×5, then dense layers of 120 and 84."""

    def __init__(self, shape: Sequence[int], classes: int, *, rngs: nnx.Rngs) -> None:
        _need("lenet", shape, 12)
        self.conv0 = _conv(shape[2], 6, 5, rngs)
        self.conv1 = _conv(6, 16, 5, rngs, "VALID")
        rows, columns = ((size // 2 - 4) // 2 for size in shape[:2])
        self.dense0 = _dense(16 * rows * columns, 120, rngs)
        self.dense1 = _dense(120, 84, rngs)
        self.read_out = _dense(84, classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs (n, classes)."""
        for conv in (self.conv0, self.conv1):
            x = pooled(nnx.relu(conv(x)), jnp.max)
        x = nnx.relu(self.dense0(x.reshape(len(x), -1)))
        return self.read_out(nnx.relu(self.dense1(x)))


class AlexNet(nnx.Module):
    """AlexNet for small images: five convolutions, three of them max-pooled, and a dense read-out."""

    FILTERS = ((128, 5, True), (192, 5, True), (256, 3, False), (192, 3, False), (192, 3, True))
    """Channels, size and whether a pool follows."""

    def __init__(self, shape: Sequence[int], classes: int, *, rngs: nnx.Rngs) -> None:
        _need("alexnet", shape, 8)
        channels = shape[2]
        for i, (units, size, _) in enumerate(self.FILTERS):
            setattr(self, f"conv{i}", _conv(channels, units, size, rngs))
            channels = units
        self.read_out = _dense(channels * (shape[0] >> 3) * (shape[1] >> 3), classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs (n, classes)."""
        for i, (_, _, pool) in enumerate(self.FILTERS):
            x = nnx.relu(getattr(self, f"conv{i}")(x))
            x = pooled(x, jnp.max) if pool else x
        return self.read_out(x.reshape(len(x), -1))


class BatchNorm(nnx.Module):
    """Batch norm without a memory: the statistics are those of the batch at hand, in training and in testing."""

    def __init__(self, channels: int, *, epsilon: float = 1e-5) -> None:
        self.scale, self.shift = nnx.Param(jnp.ones(channels)), nnx.Param(jnp.zeros(channels))
        self.epsilon = epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """The batch at mean zero and variance one in each channel, scaled and shifted."""
        axes = tuple(range(x.ndim - 1))
        mean, variance = x.mean(axes), x.var(axes)
        return (x - mean) * jax.lax.rsqrt(variance + self.epsilon) * self.scale[...] + self.shift[...]


class Block(nnx.Module):
    """Two convolutions, each after batch norm and ReLU, beside a shortcut (WideResNet's basic block)."""

    def __init__(self, channels: int, units: int, stride: int, *, rngs: nnx.Rngs) -> None:
        self.norm0, self.norm1 = BatchNorm(channels), BatchNorm(units)
        self.conv0 = _conv(channels, units, 3, rngs, stride=stride, bias=False)
        self.conv1 = _conv(units, units, 3, rngs, bias=False)
        self.widens = channels != units or stride != 1
        if self.widens:
            self.shortcut = _conv(channels, units, 1, rngs, stride=stride, bias=False)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The block's input, or its shortcut, with what the block adds."""
        active = nnx.relu(self.norm0(x))
        straight = self.shortcut(active) if self.widens else x
        return straight + self.conv1(nnx.relu(self.norm1(self.conv0(active))))


class WideResNet(nnx.Module):
    """WideResNet of `depth` layers and `width` times the channels (Zagoruyko and Komodakis), batch norm stateless."""

    def __init__(self, shape: Sequence[int], classes: int, *, depth: int = 16, width: int = 1, rngs: nnx.Rngs) -> None:
        _need("wideresnet", shape, 4)
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"the depth of a WideResNet must be 6n + 4, such as 10, 16 or 28; got {depth}")
        self.conv = _conv(shape[2], 16, 3, rngs, bias=False)
        self.blocks = 0
        channels = 16
        for group, stride in enumerate((1, 2, 2)):
            units = 16 * width * 2**group
            for _ in range((depth - 4) // 6):
                setattr(self, f"block{self.blocks}", Block(channels, units, stride, rngs=rngs))
                self.blocks += 1
                channels, stride = units, 1
        self.norm = BatchNorm(channels)
        self.read_out = _dense(channels, classes, rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Outputs (n, classes)."""
        x = self.conv(x)
        for i in range(self.blocks):
            x = getattr(self, f"block{i}")(x)
        return self.read_out(nnx.relu(self.norm(x)).mean((1, 2)))


def build(
    name: str | Factory,
    shape: Sequence[int],
    classes: int,
    *,
    seed: int,
    width: int | None = None,
    parameterisation: str = "standard",
) -> nnx.Module:
    """The network called `name` for points of `shape`, with weights drawn from `seed`.

    Names: fcM, convM, convnetM, myrtleN and layer lists such as "conv-relu-pool-conv-relu-gap", which are the finite
    networks of the kernels of that name; "convnet" (instance norm; "convnet3" has none), "lenet", "alexnet",
    "wideresnet" or "wideresnet28-2" (depth and factor of widths). A width may follow a colon: "conv2:512". `name` may
    be one's own module class or function, called with (shape, classes, rngs=…), or where to import it from:
    "package.module:Name".
    """
    if parameterisation not in ("ntk", "standard"):
        raise ValueError(f"`parameterisation` must be 'ntk' or 'standard'; got {parameterisation!r}")
    spelt = _spelt(name)
    width = width if spelt.width is None else spelt.width
    if width is not None and width < 1:
        raise ValueError(f"`width` must be at least 1; got {width}")
    shape, rngs = tuple(shape), nnx.Rngs(jax.random.key(seed))
    if spelt.own is not None:
        if width is not None or parameterisation != "standard":
            raise ValueError(f"{_origin(spelt.own)} is built as it is; leave `width` and `parameterisation` out")
        return _made(spelt.own, shape, classes, rngs)
    return _named(spelt.stem, shape, classes, width, parameterisation, rngs)


def check(name: str | Factory, shape: Sequence[int], classes: int) -> None:
    """Refuse one's own network that cannot be built, or does not map points (n, …) to outputs (n, classes)."""
    own = _spelt(name).own
    if own is None:
        return
    points = (2, *shape)

    def called() -> Any:
        model: Any = build(own, shape, classes, seed=0)
        model.train()
        try:
            return model(jnp.zeros(points))
        except FAULTS as error:
            raise ValueError(f"{_origin(own)} fails on points of shape {points}: {_first_line(error)}") from error

    found = getattr(nnx.eval_shape(called), "shape", None)
    if found != (2, classes):
        raise ValueError(f"{_origin(own)} must map points of shape {points} to (2, {classes}); it gives {found}")


def parameterised(name: str | Factory) -> bool:
    """Whether a network comes in NTK and in standard parameterisation: those built from layer lists do."""
    spelt = _spelt(name)
    return spelt.own is None and spelt.stem not in _OTHERS and named(spelt.stem) is not None


class _Spelt(NamedTuple):
    """What a network is called by: a name with a width after the colon, if any, or one's own."""

    stem: str
    width: int | None = None
    own: Factory | None = None


def _spelt(name: str | Factory) -> _Spelt:
    if not isinstance(name, str):
        return _Spelt("", own=name)
    stem, colon, tail = name.strip().partition(":")
    if colon and not tail.isdigit():
        return _Spelt("", own=_imported(stem, tail))
    return _Spelt(stem.lower(), int(tail) if colon else None)


def silenced(model: nnx.Module) -> nnx.Module:
    """The network with a last layer of zeros, so that its outputs start at zero.

    That layer is what a network calls `read_out`; one that has nothing of the name is left as it is.
    """
    for param in _read_out(model):
        param[...] = jnp.zeros_like(param[...])
    return model


def has_read_out(model: nnx.Module) -> bool:
    """Whether `silenced` knows the last layer."""
    return bool(_read_out(model))


def _read_out(model: nnx.Module) -> list[Any]:
    if isinstance(model, Layers):
        return [getattr(model, f"{kind}{model.depth - 1}") for kind in "wb"]
    named_so = nnx.state(model.read_out, nnx.Param) if hasattr(model, "read_out") else {}
    return jax.tree.leaves(named_so, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))


def count(model: nnx.Module) -> int:
    """How many parameters a network has."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))


_OTHERS: dict[str, Callable[..., nnx.Module]] = {"convnet": ConvNet, "lenet": LeNet, "alexnet": AlexNet}
_WIDE = re.compile(r"(?:wideresnet|wrn)(?:(\d+)-(\d+))?")


def _named(
    name: str, shape: tuple[int, ...], classes: int, width: int | None, parameterisation: str, rngs: nnx.Rngs
) -> nnx.Module:
    wide = _WIDE.fullmatch(name)
    network = None if wide or name in _OTHERS else named(name)
    if network is not None:
        units = width or (CONV_WIDTH if "conv" in network.layers else FC_WIDTH)
        kind: Any = parameterisation
        return Layers(network, shape, classes, width=units, parameterisation=kind, rngs=rngs)
    if wide is None and name not in _OTHERS:
        near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown network {name!r}{hint} (known: {', '.join(NAMES)}, a layer list, or module:Name)")
    if parameterisation != "standard":
        raise ValueError(f"network {name!r} has the standard parameterisation only; fcM and convM have both")
    if wide:
        if width is not None:
            raise ValueError(f"the width of {name!r} is a factor, and part of the name: write wideresnet16-4")
        depth, factor = (int(part) if part else None for part in wide.groups())
        return WideResNet(shape, classes, depth=depth or 16, width=factor or 1, rngs=rngs)
    if width is not None and name != "convnet":
        raise ValueError(f"network {name!r} has widths of its own; leave `width` out")
    more = {} if width is None else {"width": width}
    return _OTHERS[name](shape, classes, **more, rngs=rngs)


def _imported(module: str, name: str) -> Factory:
    """What `name` is in `module`, which may lie in the working folder."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"network '{module}:{name}' cannot be imported ({error}); give module:Name") from None
    finally:
        sys.path.remove(here)


def _made(own: Factory, shape: tuple[int, ...], classes: int, rngs: nnx.Rngs) -> nnx.Module:
    try:
        model = own(shape, classes, rngs=rngs)
    except FAULTS as error:
        call = f"(shape={shape}, classes={classes}, rngs=…)"
        raise ValueError(f"{_origin(own)} cannot be built with {call}: {_first_line(error)}") from error
    if not isinstance(model, nnx.Module):
        raise ValueError(f"{_origin(own)} must give a flax NNX module; it gave {type(model).__name__}")
    return model


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _origin(own: Factory) -> str:
    return f"network {getattr(own, '__qualname__', repr(own))!r}"


def _need(name: str, shape: Sequence[int], least: int) -> None:
    if len(shape) != 3:
        raise ValueError(f"network {name!r} needs images (n, h, w, channels); got points of shape {tuple(shape)}")
    if min(shape[:2]) < least:
        raise ValueError(
            f"network {name!r} needs images of at least {least}×{least}; got {shape[0]}×{shape[1]}. Use fc1 or conv2"
        )


def _conv(
    channels: int,
    units: int,
    size: int,
    rngs: nnx.Rngs,
    padding: str = "SAME",
    *,
    stride: int = 1,
    bias: bool = True,
) -> nnx.Conv:
    return nnx.Conv(
        channels,
        units,
        (size, size),
        strides=stride,
        padding=padding,
        use_bias=bias,
        kernel_init=nnx.initializers.he_normal(),
        conv_general_dilated=_convolution,
        rngs=rngs,
    )


def _dense(inputs: int, units: int, rngs: nnx.Rngs) -> nnx.Linear:
    return nnx.Linear(inputs, units, kernel_init=nnx.initializers.he_normal(), rngs=rngs)


def _convolution(x: jax.Array, w: jax.Array, strides: Any, padding: Any, **more: Any) -> jax.Array:
    """What `nnx.Conv` calls: ours, whose gradient is quick on CPUs, wherever the stride is 1."""
    if tuple(strides) == (1, 1):
        return convolve(x, w, padding)
    return jax.lax.conv_general_dilated(x, w, strides, padding, **more)
