"""Kernels that are functions of inner products: linear, RBF, and fully-connected networks FC-m.

Each is a profile k = φ(q, n₁, n₂) of q = ⟨x₁, x₂⟩/d, n₁ = ‖x₁‖²/d and n₂ = ‖x₂‖²/d, applied entry by entry. So the Gram
matrix costs one matrix product and its pullback one more, and a new kernel of this kind is one small function.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.base import Kernel, Params, Pull, common_points, number, precision
from kip.kernels.relu import relu

Profile = Callable[[Params, jax.Array, jax.Array, jax.Array, int], jax.Array]
"""φ(params, q, n₁, n₂, d), written for arrays that broadcast."""

WEIGHT_VARIANCE = 2.0
BIAS_VARIANCE = 1e-4


class InnerProductKernel(Kernel):
    """A kernel given by its `profile`; subclasses choose the profile and its parameters."""

    @property
    @abc.abstractmethod
    def profile(self) -> Profile:
        """φ, the same function object for every kernel that shares compiled code."""

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        if isinstance(x1, jax.core.Tracer) or isinstance(x2, jax.core.Tracer):
            return _gram(self.profile, self.params, x1, x1 if x2 is None else x2)
        x1, x2_ = common_points(x1, x1 if x2 is None else x2)
        with precision(x1.dtype):
            if x2 is None:
                return np.asarray(_symmetric_gram(self.profile, self.params, x1))
            return np.asarray(_gram(self.profile, self.params, x1, x2_))

    def vjp(self, x1: Any, x2: Any) -> tuple[np.ndarray, Pull]:
        x1, x2 = common_points(x1, x2)
        with precision(x1.dtype):
            k, q = _gram_and_products(self.profile, self.params, x1, x2)

        def pull(cotangent: np.ndarray) -> tuple[np.ndarray, Params]:
            with precision(x1.dtype):
                x_bar, params_bar = _pull(self.profile, self.params, x1, x2, q, cotangent)
            return np.asarray(x_bar), params_bar

        return np.asarray(k), pull

    def diag(self, x: Any) -> np.ndarray:
        x, _ = common_points(x, x)
        with precision(x.dtype):
            return np.asarray(_diag(self.profile, self.params, x))


class Linear(InnerProductKernel):
    """K(x₁, x₂) = ⟨x₁, x₂⟩, the kernel of the paper's theorems."""

    spec = "linear"

    @property
    def profile(self) -> Profile:
        return _linear


class RBF(InnerProductKernel):
    """K(x₁, x₂) = exp(−γ‖x₁ − x₂‖²/d), eq. (rbf); γ may be learned."""

    def __init__(self, gamma: float = 1.0) -> None:
        self.gamma = _positive("gamma", gamma)

    @property
    def spec(self) -> str:
        return "rbf" if self.gamma == 1 else f"rbf:gamma={number(self.gamma)}"

    @property
    def params(self) -> Params:
        return {"gamma": self.gamma}

    def with_params(self, params: Mapping[str, Any]) -> RBF:
        return RBF(params["gamma"])

    @property
    def profile(self) -> Profile:
        return _rbf


class FC(InnerProductKernel):
    """The kernel of a fully-connected ReLU network with `depth` hidden layers, NTK or NNGP.

    A dense layer maps K ← σ_w²K + σ_b² and, in NTK parameterisation, Θ ← σ_w²Θ + K; in standard parameterisation with
    hidden layers of `width`, Θ ← σ_w²Θ + fan_in·K_before + 1. The read-out is always in NTK parameterisation.
    """

    def __init__(
        self,
        depth: int,
        *,
        nngp: bool = False,
        width: int | None = None,
        weight_variance: float = WEIGHT_VARIANCE,
        bias_variance: float = BIAS_VARIANCE,
    ) -> None:
        if depth < 1:
            raise ValueError(f"a fully-connected kernel needs at least one hidden layer, 'fc1'; got depth {depth}")
        if width is not None and width < 1:
            raise ValueError(f"`standard` is the width of the hidden layers, at least 1; got {width}")
        self.depth, self.nngp, self.width = depth, nngp, width
        self.weight_variance = _positive("weight_variance", weight_variance)
        self.bias_variance = _positive("bias_variance", bias_variance, zero=True)

    @property
    def spec(self) -> str:
        return network_spec(f"fc{self.depth}", self.nngp, self.width, self.weight_variance, self.bias_variance)

    @property
    def params(self) -> Params:
        return {"weight_variance": self.weight_variance, "bias_variance": self.bias_variance}

    def with_params(self, params: Mapping[str, Any]) -> FC:
        return FC(self.depth, nngp=self.nngp, width=self.width, **params)

    @property
    def profile(self) -> Profile:
        return _fully_connected(self.depth, self.nngp, self.width)


def network_spec(name: str, nngp: bool, width: int | None, weight_variance: float, bias_variance: float) -> str:
    """The canonical string of a network kernel, with every default left out."""
    parts = [name]
    if nngp:
        parts.append("nngp")
    if width is not None:
        parts.append(f"standard={width}")
    if weight_variance != WEIGHT_VARIANCE:
        parts.append(f"weight_variance={number(weight_variance)}")
    if bias_variance != BIAS_VARIANCE:
        parts.append(f"bias_variance={number(bias_variance)}")
    return ":".join(parts)


def _positive(name: str, value: Any, *, zero: bool = False) -> float:
    value = float(value)
    if not np.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ValueError(f"`{name}` must be a {'non-negative' if zero else 'positive'} number; got {value}")
    return value


def _linear(params: Params, q: jax.Array, n1: jax.Array, n2: jax.Array, d: int) -> jax.Array:
    del params, n1, n2
    return q * d


def _rbf(params: Params, q: jax.Array, n1: jax.Array, n2: jax.Array, d: int) -> jax.Array:
    del d
    return jnp.exp(-params["gamma"] * (n1 + n2 - 2 * q))


@functools.cache
def _fully_connected(depth: int, nngp: bool, width: int | None) -> Profile:
    def profile(params: Params, q: jax.Array, n1: jax.Array, n2: jax.Array, d: int) -> jax.Array:
        weight, bias = params["weight_variance"], params["bias_variance"]
        k12, k11, k22 = (weight * k + bias for k in (q, n1, n2))
        theta = k12 if width is None else d * q + 1
        for layer in range(depth):
            k12, slope = relu(k12, k11, k22)
            k11, k22 = k11 / 2, k22 / 2
            before = k12
            k12, k11, k22 = (weight * k + bias for k in (k12, k11, k22))
            read_out = layer == depth - 1
            theta = weight * slope * theta + (k12 if width is None or read_out else width * before + 1)
        return k12 if nngp else theta

    return profile


def _products(x1: jax.Array, x2: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, int]:
    x1, x2 = x1.reshape(len(x1), -1), x2.reshape(len(x2), -1)
    d = x1.shape[1]
    q = jnp.matmul(x1, x2.T, precision="highest") / d
    return q, jnp.sum(x1 * x1, axis=1)[:, None] / d, jnp.sum(x2 * x2, axis=1)[None, :] / d, d


@functools.partial(jax.jit, static_argnums=0)
def _gram(profile: Profile, params: Params, x1: jax.Array, x2: jax.Array) -> jax.Array:
    return profile(params, *_products(x1, x2))


@functools.partial(jax.jit, static_argnums=0)
def _symmetric_gram(profile: Profile, params: Params, x: jax.Array) -> jax.Array:
    q, *_, d = _products(x, x)
    n = jnp.diagonal(q)  # from the same product, so that a point's correlation with itself is 1 without rounding
    k = profile(params, q, n[:, None], n[None, :], d)
    return (k + k.T) / 2


@functools.partial(jax.jit, static_argnums=0)
def _diag(profile: Profile, params: Params, x: jax.Array) -> jax.Array:
    x = x.reshape(len(x), -1)
    d = x.shape[1]
    n = jnp.sum(x * x, axis=1) / d
    return profile(params, n, n, n, d)


@functools.partial(jax.jit, static_argnums=0)
def _gram_and_products(
    profile: Profile, params: Params, x1: jax.Array, x2: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    q, n1, n2, d = _products(x1, x2)
    return profile(params, q, n1, n2, d), (q, n1, n2)


@functools.partial(jax.jit, static_argnums=0)
def _pull(
    profile: Profile,
    params: Params,
    x1: jax.Array,
    x2: jax.Array,
    products: tuple[jax.Array, jax.Array, jax.Array],
    cotangent: jax.Array,
) -> tuple[jax.Array, Params]:
    # Only q is kept from the forward pass: the profile is cheaper to evaluate again than its residuals are to read.
    q, n1, n2 = products
    shape = x1.shape
    x1, x2 = x1.reshape(len(x1), -1), x2.reshape(len(x2), -1)
    d = x1.shape[1]
    _, pull = jax.vjp(lambda p, q, n1: profile(p, q, n1, n2, d), params, q, n1)
    params_bar, q_bar, n1_bar = pull(cotangent)
    x_bar = (jnp.matmul(q_bar, x2, precision="highest") + 2 * n1_bar * x1) / d
    return x_bar.reshape(shape), params_bar
