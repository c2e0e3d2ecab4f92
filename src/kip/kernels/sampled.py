"""Networks of finite width with random weights as kernels: a cost per point instead of per pair.

With φ the units before the read-out of a network of D such units,

    K(x, x′) = σ_w² ⟨φ(x), φ(x′)⟩ / D + σ_b²

is a noisy look at the network's NNGP kernel: unbiased for one hidden layer, with a bias that falls with width for
more. As an object the kernel is a fixed ensemble of drawn networks, rebuilt from its numbers alone; `at` gives the
networks of one step, drawn anew. Targets go through a network forward only; the support set goes forward once and
backward once per step, whatever the number of tiles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.base import Bound, Kernel, Params, Pull, Total, as_points, common_points, number, precision
from kip.kernels.network import Network, Weights, finite

CHUNK = 100
"""Images that go through a network at once: their activations stay within tens of megabytes."""

ENSEMBLE, NETS = 8, 1
"""Networks of the fixed ensemble, and networks drawn per step."""

FIXED, STEP = 0, 1
"""What the seeds of networks begin with: those of the ensemble, those of a step."""


@dataclass(frozen=True)
class Sampled:
    """A network's form: its layers, width and variances. Compiled code is shared by all draws."""

    network: Network
    width: int
    weight_variance: float
    bias_variance: float

    def draw(self, seed: tuple[int, ...], shape: tuple[int, ...]) -> Weights:
        """The weights of one network for points of `shape`, a function of the seed alone."""
        state = int(np.random.SeedSequence(seed).generate_state(1)[0])
        init, _ = self._finite
        with precision(np.float32):
            return jax.tree.map(np.asarray, init(jax.random.key(state), shape)[:-1])  # without the read-out

    @functools.cached_property
    def _finite(self) -> Any:
        return finite(
            self.network, width=self.width, weight_variance=self.weight_variance, bias_variance=self.bias_variance
        )

    def features(self, weights: Weights, x: Any) -> Any:
        """σ_w φ(x)/√D of points (n, …)."""
        _, apply = self._finite
        phi = apply(weights, x, layers=self.network.layers[:-1])
        return phi * math.sqrt(self.weight_variance / phi.shape[1])


class SampledKernel(Kernel):
    """The mean kernel of `ensemble` networks with random weights; `draw` says which."""

    def __init__(
        self,
        network: Network,
        width: int,
        *,
        ensemble: int = ENSEMBLE,
        draw: int = 0,
        nets: int = NETS,
        weight_variance: float = 2.0,
        bias_variance: float = 1e-4,
        seed: tuple[int, ...] | None = None,
    ) -> None:
        for name, value in (("sampled", width), ("ensemble", ensemble), ("nets", nets)):
            if value < 1:
                raise ValueError(f"`{name}` of a sampled kernel must be at least 1; got {value}")
        if draw < 0:
            raise ValueError(f"`draw` of a sampled kernel must be 0 or more; got {draw}")
        if not {"conv", "dense"} & set(network.layers[:-1]):
            raise ValueError(f"a sampled kernel needs a hidden layer; got '{network.name}'")
        self.form = Sampled(network, width, float(weight_variance), float(bias_variance))
        self.ensemble, self.draw, self.nets = ensemble, draw, nets
        self.seed = (FIXED, draw) if seed is None else seed

    @property
    def spec(self) -> str:
        parts = [self.form.network.name, f"sampled={self.form.width}"]
        usual = {"ensemble": ENSEMBLE, "draw": 0, "nets": NETS}
        parts += [f"{name}={getattr(self, name)}" for name, value in usual.items() if getattr(self, name) != value]
        for name, value in (("weight_variance", 2.0), ("bias_variance", 1e-4)):
            given = getattr(self.form, name)
            parts += [f"{name}={number(given)}"] if given != value else []
        return ":".join(parts)

    @property
    def _identity(self) -> Any:
        return self.spec, self.seed

    def at(self, *, key: int, step: int) -> Kernel:
        """The kernel of one step: `nets` networks, drawn anew from (key, step)."""
        form = self.form
        return SampledKernel(
            form.network,
            form.width,
            ensemble=self.nets,
            draw=self.draw,
            nets=self.nets,
            weight_variance=form.weight_variance,
            bias_variance=form.bias_variance,
            seed=(STEP, key, step),
        )

    def cost(self, shape: tuple[int, ...]) -> float:
        """As if a point were in one pair: a network's cost is per point, and dwarfs what pairs cost."""
        return 18.0 * self.form.width**2 * math.prod(shape[:2])

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        x1, x2_ = common_points(x1, x1 if x2 is None else x2)
        first = self._features(x1)
        k = first @ (first if x2 is None else self._features(x2_)).T
        return k + k.dtype.type(self.form.bias_variance)

    def diag(self, x: Any) -> np.ndarray:
        features = self._features(as_points(x))
        return np.vecdot(features, features) + features.dtype.type(self.form.bias_variance)

    def bind(self, x_support: Any) -> Bound:
        return _BoundFeatures(self, as_points(x_support, "x_support"))

    def _weights(self, shape: tuple[int, ...]) -> tuple[Weights, ...]:
        self.form.network.check(shape)
        return tuple(_drawn(self.form, (*self.seed, n), shape) for n in range(self.ensemble))

    def _features(self, x: np.ndarray) -> np.ndarray:
        """Features of points, those of all networks side by side: K is their product."""
        parts = [self._of(weights, x) for weights in self._weights(x.shape[1:])]
        return np.concatenate(parts, axis=1) / x.dtype.type(math.sqrt(self.ensemble))

    def _of(self, weights: Weights, x: np.ndarray) -> np.ndarray:
        with precision(x.dtype):
            return np.concatenate([np.asarray(_forward(self.form, weights, part))[:n] for part, n in _chunks(x)])


class _BoundFeatures(Bound):
    """The support set with its features; a total is the cotangent of these."""

    def __init__(self, kernel: SampledKernel, x: np.ndarray) -> None:
        self.kernel, self.x = kernel, x
        self.features = kernel._features(x)
        if len(x) > self.features.shape[1]:
            raise ValueError(
                f"kernel '{kernel.spec}' has {self.features.shape[1]} features for a support set of {len(x)} points, "
                "so K_ss is singular; use a larger width"
            )

    def gram(self, x_tile: Any) -> np.ndarray:
        return self.tile(x_tile)[0]

    def tile(self, x_tile: Any) -> tuple[np.ndarray, Pull]:
        targets = self.kernel._features(as_points(x_tile, "x_tile"))
        k = self.features @ targets.T + self.features.dtype.type(self.kernel.form.bias_variance)
        return k, lambda cotangent: cotangent @ targets

    def own(self) -> tuple[np.ndarray, Pull]:
        wide = self.features.astype(np.float64)  # computed once, in float32; multiplied in float64
        # X_s is both arguments of K_ss.
        return wide @ wide.T + self.kernel.form.bias_variance, lambda k_bar: 2 * (k_bar @ wide)

    def finish(self, total: Total) -> tuple[np.ndarray, Params]:
        kernel, x = self.kernel, self.x
        bars = np.split(total.astype(x.dtype) / x.dtype.type(math.sqrt(kernel.ensemble)), kernel.ensemble, axis=1)
        x_bar = np.zeros(x.shape, np.float64)
        with precision(x.dtype):
            for weights, bar in zip(kernel._weights(x.shape[1:]), bars, strict=True):
                pairs = zip(_chunks(x), _chunks(bar), strict=True)
                parts = [np.asarray(_backward(kernel.form, weights, a, b))[:n] for (a, n), (b, _) in pairs]
                x_bar += np.concatenate(parts)
        return x_bar.astype(x.dtype), {}


@functools.lru_cache(maxsize=2 * ENSEMBLE)
def _drawn(form: Sampled, seed: tuple[int, ...], shape: tuple[int, ...]) -> Weights:
    return form.draw(seed, shape)


def _chunks(rows: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of one size, the last filled up with zeros, and how many rows of each count."""
    size = min(CHUNK, max(len(rows), 1))
    for start in range(0, len(rows), size):
        part = rows[start : start + size]
        missing = size - len(part)
        filled = np.concatenate([part, np.zeros((missing, *part.shape[1:]), part.dtype)]) if missing else part
        yield filled, len(part)


@functools.partial(jax.jit, static_argnums=0)
def _forward(form: Sampled, weights: Weights, x: Any) -> Any:
    return form.features(_cast(weights, x.dtype), x)


@functools.partial(jax.jit, static_argnums=0)
def _backward(form: Sampled, weights: Weights, x: Any, bar: Any) -> Any:
    _, back = jax.vjp(lambda x: form.features(_cast(weights, x.dtype), x), x)
    return back(bar)[0]


def _cast(weights: Weights, dtype: Any) -> Weights:
    return jax.tree.map(lambda w: jnp.asarray(w, dtype), weights)
