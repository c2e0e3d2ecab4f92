"""Kernels that are functions of inner products: linear, RBF, and fully-connected networks FC-m.

Each is a profile k = φ(q, n₁, n₂) of q = ⟨x₁, x₂⟩/d, n₁ = ‖x₁‖²/d and n₂ = ‖x₂‖²/d, applied entry by entry. So the Gram
matrix costs one matrix product and its pullback one more, and a new kernel of this kind is one small function.

JAX compiles the profile and its derivatives. The products between are BLAS's on a CPU: measured against XLA's there, on
the shapes of a step, they take 0.7 to 0.9 of the time, and a product of a matrix with itself half of that.
"""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.base import (
    Bound,
    Params,
    Pull,
    Total,
    as_points,
    common_points,
    number,
    on_cpu,
    on_this_device,
    precision,
)
from kip.kernels.relu import relu
from kip.kernels.traced import Form, TracedKernel, is_traced
from kip.sets import aligned_empty
from kip.threads import on_all_cores

Profile = Callable[[Params, jax.Array, jax.Array, jax.Array, int], jax.Array]
"""φ(params, q, n₁, n₂, d), written for arrays that broadcast."""

WEIGHT_VARIANCE = 2.0
BIAS_VARIANCE = 1e-4

PARTS = 4
"""Parts into which the pullback of K_ss is cut. Fixed on every machine, since it determines the order of sums."""

SMALL_PRODUCT = 2**27
"""Multiplications below which the parts stay in one thread: handing them out takes longer than it saves."""


class InnerProductKernel(TracedKernel):
    """A kernel given by its `profile`; subclasses choose the profile and its parameters."""

    @property
    @abc.abstractmethod
    def profile(self) -> Profile:
        """φ, equal and of equal hash for every kernel that shares compiled code."""

    @property
    def form(self) -> Form:
        return _InnerForm(self.profile)

    @property
    def concurrent(self) -> bool:
        return on_cpu()

    def gram(self, x1: Any, x2: Any = None) -> Any:
        x1, x2_ = common_points(x1, x1 if x2 is None else x2)
        if _elsewhere(x1, x2_, self.params):
            return super().gram(x1, x2)
        with precision(x1.dtype):
            if x2 is None:
                inner = _own_products(_rows(x1))
                return np.asarray(_symmetrised(_profiled(self.profile, inner.d, self.params, *inner.terms)))
            inner = _inner_products(_rows(x1), _squares(_rows(x1)), _rows(x2_))
            return np.asarray(_profiled(self.profile, inner.d, self.params, *inner.terms))

    def from_products(self, x1x2: Any, x1x1: Any, x2x2: Any, d: int) -> np.ndarray:
        """K(x1, x2) from ⟨x1, x2⟩, ‖x1‖² and ‖x2‖² of points with d coordinates, in the dtype of ⟨x1, x2⟩."""
        with precision(x1x2.dtype):
            return np.asarray(_profiled(self.profile, d, self.params, x1x2, x1x1[:, None], x2x2[None, :]))

    def bind(self, x_support: Any) -> Bound:
        x = as_points(x_support, "x_support")
        if _elsewhere(x, self.params):
            return super().bind(x)
        return _HostBound(self.profile, self.params, self._learned, x)


def _elsewhere(*values: Any) -> bool:
    """Whether the arrays, or JAX's default device, are not of this processor."""
    return is_traced(*values) or not on_cpu()


class _HostBound(Bound):
    """The support set as rows with its squared norms; products are BLAS's, profiles JAX's."""

    def __init__(self, profile: Profile, params: Params, learned: bool, x: np.ndarray) -> None:
        self.profile, self.params, self.learned, self.x = profile, params, learned, x
        self.rows = _rows(x)
        self.squares = _squares(self.rows)

    def tile(self, x_tile: Any) -> tuple[np.ndarray, Pull]:
        rows = _rows(as_points(x_tile, "x_tile"))
        with precision(self.x.dtype):
            inner = _inner_products(self.rows, self.squares, rows)
            k = _profiled(self.profile, inner.d, self.params, *inner.terms)

        def pull(cotangent: np.ndarray) -> _Bars:
            # Only q is kept from the forward pass: the profile is cheaper to evaluate again than its residuals to read.
            with precision(self.x.dtype):
                q_bar, squares_bar, params_bar = self._pull(inner, cotangent)
                return _Bars(_product(q_bar, rows), np.asarray(squares_bar), jax.tree.map(np.asarray, params_bar))

        return np.asarray(k), pull

    def own(self) -> tuple[np.ndarray, Pull]:
        wide = self.rows.astype(np.float64, copy=False)
        with precision(np.float64):
            inner = _own_products(wide)
            k_ss = np.asarray(_symmetrised(_profiled(self.profile, inner.d, self.params, *inner.terms)))
        # The inverse needs K_ss in float64; its pullback does not: in float32 it errs no more than the tiles' own
        # (measured 1e-5 to 1e-4 of the gradient at 100 to 1,500 points), and in half the time.
        narrow = [np.asarray(term, self.x.dtype) for term in inner.terms]

        def pull(k_bar: np.ndarray) -> _Bars:
            n, doubled = len(k_bar), np.multiply(k_bar, 2, dtype=self.x.dtype, casting="same_kind")
            parts = [slice(start, start + -(-n // PARTS)) for start in range(0, n, -(-n // PARTS))]
            x_bar = aligned_empty(self.rows.shape, self.x.dtype)

            @on_this_device
            def visit(part: slice) -> tuple[Any, Params]:
                terms = _InnerProducts(narrow[0][part], narrow[1][part], narrow[2], inner.d)
                with precision(self.x.dtype):
                    q_bar, squares_bar, params_bar = self._pull(terms, doubled[part])
                np.matmul(np.asarray(q_bar), self.rows, out=x_bar[part])
                return np.asarray(squares_bar), jax.tree.map(np.asarray, params_bar)

            found = list(on_all_cores(visit, parts, threads=1 if n * n * inner.d < SMALL_PRODUCT else None))
            # X_s is both arguments of K_ss, the hyper-parameters enter once.
            params_bar = jax.tree.map(lambda *bars: sum(bars) / 2, *(each for _, each in found))
            return _Bars(x_bar, np.concatenate([each for each, _ in found]), params_bar)

        return k_ss, pull

    def _pull(self, inner: _InnerProducts, cotangent: np.ndarray) -> tuple[Any, Any, Params]:
        return _pull(self.profile, inner.d, self.learned, self.params, *inner.terms, cotangent)

    def finish(self, total: Total) -> tuple[np.ndarray, Params]:
        x_bar = total.x + total.squares * self.rows
        return x_bar.astype(self.x.dtype, copy=False).reshape(self.x.shape), total.params


class _Bars(NamedTuple):
    """Cotangents of the support set through its inner products, of its squared norms (halved, doubled), and of θ."""

    x: np.ndarray
    squares: np.ndarray
    params: Params


@dataclass(frozen=True)
class _InnerForm(Form):
    """A profile as two pure functions: a point is represented by itself and its squared norm."""

    profile: Profile

    def represent(self, params: Params, x: Any, tables: Any) -> tuple[Any, Any]:
        del params, tables
        rows = jnp.reshape(x, (len(x), -1))
        return rows, jnp.sum(rows * rows, axis=1)

    def pairs(self, params: Params, first: Any, second: Any, tables: Any) -> Any:
        del tables
        (x1, n1), (x2, n2) = first, second
        d = x1.shape[1]
        q = jnp.matmul(x1, x2.T, precision="highest") / d
        return self.profile(params, q, n1[:, None] / d, n2[None, :] / d, d)


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
        return _FullyConnected(self.depth, self.nngp, self.width)

    def cost(self, shape: tuple[int, ...]) -> float:
        return self.depth * super().cost(shape)


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


@dataclass(frozen=True)
class _FullyConnected:
    """The profile of FC-m: a class, not a closure, so that a bound kernel can be pickled."""

    depth: int
    nngp: bool
    width: int | None

    def __call__(self, params: Params, q: jax.Array, n1: jax.Array, n2: jax.Array, d: int) -> jax.Array:
        weight, bias = params["weight_variance"], params["bias_variance"]
        k12, k11, k22 = (weight * k + bias for k in (q, n1, n2))
        theta = k12 if self.width is None else d * q + 1
        for layer in range(self.depth):
            k12, slope = relu(k12, k11, k22)
            k11, k22 = k11 / 2, k22 / 2
            before = k12
            k12, k11, k22 = (weight * k + bias for k in (k12, k11, k22))
            read_out = layer == self.depth - 1
            theta = weight * slope * theta + (k12 if self.width is None or read_out else self.width * before + 1)
        return k12 if self.nngp else theta


class _InnerProducts(NamedTuple):
    """⟨x₁, x₂⟩ as a matrix, ‖x₁‖² as a column and ‖x₂‖² as a row, of points of width d."""

    x1x2: Any
    x1x1: Any
    x2x2: Any
    d: int

    @property
    def terms(self) -> tuple[Any, Any, Any]:
        return self.x1x2, self.x1x1, self.x2x2


def _inner_products(x1: np.ndarray, x1x1: np.ndarray, x2: np.ndarray) -> _InnerProducts:
    return _InnerProducts(_product(x1, x2.T), x1x1, np.vecdot(x2, x2)[None, :], x1.shape[1])


def _squares(x: np.ndarray) -> np.ndarray:
    return np.vecdot(x, x)[:, None]


def _own_products(x: np.ndarray) -> _InnerProducts:
    xx = _product(x, x.T)
    n = np.diagonal(xx)  # from the same product, so that a point's correlation with itself is 1 without rounding
    return _InnerProducts(xx, n[:, None], n[None, :], x.shape[1])


@jax.jit
def _symmetrised(k: jax.Array) -> jax.Array:
    # Compiled by itself: fused with the profile, the sum would compute it twice, the second time across its rows.
    return (k + k.T) / 2


def _rows(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), math.prod(x.shape[1:]))  # of no points too


def _product(a: Any, b: Any) -> np.ndarray:
    """A b by BLAS, aligned so that JAX takes it without a copy."""
    a, b = np.asarray(a), np.asarray(b)
    return np.matmul(a, b, out=aligned_empty((len(a), b.shape[1]), a.dtype))


def _per_coordinate(
    d: int, x1x2: jax.Array, x1x1: jax.Array, x2x2: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    return x1x2 / d, x1x1 / d, x2x2 / d


@functools.partial(jax.jit, static_argnums=(0, 1))
def _profiled(profile: Profile, d: int, params: Params, *inner: jax.Array) -> jax.Array:
    return profile(params, *_per_coordinate(d, *inner), d)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _pull(
    profile: Profile,
    d: int,
    learned: bool,
    params: Params,
    x1x2: jax.Array,
    x1x1: jax.Array,
    x2x2: jax.Array,
    cotangent: jax.Array,
) -> tuple[jax.Array, jax.Array, Params]:
    """Q̄/d, 2n̄₁/d and θ̄: x̄₁ is the first times x₂, plus the second times x₁.

    The derivatives of φ are taken forwards, entry by entry, and summed by a product: XLA fuses a sum with all that it
    sums over, into loops that compute the profile again for each and do not vectorise.
    """
    q, n1, n2 = _per_coordinate(d, x1x2, x1x1, x2x2)
    q_slope = _slope(lambda q: profile(params, q, n1, n2, d), q)
    n1_slope = _slope(lambda n1: profile(params, q, n1, n2, d), n1)
    n1_bar = (cotangent * n1_slope) @ jnp.full((len(n2.T), 1), 2 / d, q.dtype)

    def param_bar(name: str) -> jax.Array:
        slope = _slope(lambda value: profile({**params, name: value}, q, n1, n2, d), params[name])
        return jnp.vdot(cotangent, slope)

    return cotangent * q_slope / d, n1_bar, {name: param_bar(name) for name in params} if learned else {}


def _slope(function: Callable[[jax.Array], jax.Array], at: jax.Array) -> jax.Array:
    """The derivative of an elementwise function."""
    return jax.jvp(function, (at,), (jnp.ones_like(at),))[1]
