"""ReLU's dual activations κ₀ and κ₁ (arc-cosine kernels), right and differentiable up to correlation ±1.

For unit vectors with inner product u, normalised so that both are 1 at u = 1:

    κ₀(u) = 1 − arccos(u)/π            κ₁(u) = (√(1 − u²) + u (π − arccos u))/π            κ₁′ = κ₀

With t = 1 − |u|, κ₁(u) = max(u, 0) + t^{3/2} P(t) and κ₀(u) = [u ≥ 0] ∓ t^{1/2} Q(t). P and Q are smooth on [0, 1], so
one square root and a polynomial reach the accuracy of the dtype, and vectorise where an arc-cosine would not.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

# Correlations this many ulps from ±1 are taken as ±1. κ₀ has a square-root cone there, so rounding of 1e-7 in u would
# otherwise show as 1e-4 in the NTK of identical points; and image initialisation starts exactly on it.
SNAP_ULPS = 8


DEGREES = {"float32": 7, "float64": 20}
"""Of the polynomials for P and Q: their singularity, at t = 2, lets each degree win 0.77 of a digit."""

_TERMS = 60


def _series() -> np.ndarray:
    """aₙ of arccos(1 − t) = √(2t) Σ aₙtⁿ: (2n)! / (8ⁿ n!² (2n + 1)), all positive, so that sums lose nothing."""
    n = np.arange(1, _TERMS)
    return np.concatenate([[1.0], np.cumprod((2 * n - 1) / (4 * n))]) / (2 * np.arange(_TERMS) + 1)


def _fit(coefficients: np.ndarray, degree: int) -> tuple[float, ...]:
    """Coefficients, lowest first, of the Chebyshev interpolant on [0, 1] of a power series."""
    function = np.polynomial.Polynomial(coefficients)
    series = np.polynomial.chebyshev.Chebyshev.interpolate(function, degree, domain=[0, 1])
    return tuple(float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef)


_Q_SERIES = np.sqrt(2) / np.pi * _series()
_P_SERIES = _Q_SERIES / (np.arange(_TERMS) + 1.5)  # κ₁′ = κ₀, term by term
Q_COEFFICIENTS = {dtype: _fit(_Q_SERIES, degree) for dtype, degree in DEGREES.items()}
P_COEFFICIENTS = {dtype: _fit(_P_SERIES, degree) for dtype, degree in DEGREES.items()}


def _polynomial(coefficients: dict[str, tuple[float, ...]], t: jax.Array) -> jax.Array:
    *rest, last = coefficients[t.dtype.name]
    value = jnp.full_like(t, last)
    for c in reversed(rest):
        value = value * t + c
    return value


def _gap(u: jax.Array) -> jax.Array:
    """T = 1 − |u|, snapped to 0 within rounding of it."""
    t = 1 - jnp.abs(u)
    return jnp.where(t > SNAP_ULPS * jnp.finfo(u.dtype).eps, t, 0)


@jax.custom_jvp
def kappa0(u: jax.Array) -> jax.Array:
    """κ₀(u), the step function's dual activation; its derivative at u = ±1 is taken as 0."""
    t = _gap(u)
    arc = jnp.sqrt(t) * _polynomial(Q_COEFFICIENTS, t)
    return jnp.where(u >= 0, 1 - arc, arc)


@kappa0.defjvp
def _kappa0_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (u,), (du,) = primals, tangents
    t = _gap(u)
    slope = jnp.where(t > 0, 1 / (jnp.pi * jnp.sqrt(jnp.where(t > 0, t * (2 - t), 1))), 0)
    return kappa0(u), slope * du


@jax.custom_jvp
def kappa1(u: jax.Array) -> jax.Array:
    """κ₁(u), ReLU's dual activation."""
    t = _gap(u)
    return jnp.maximum(u, 0) + t * jnp.sqrt(t) * _polynomial(P_COEFFICIENTS, t)


@kappa1.defjvp
def _kappa1_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    (u,), (du,) = primals, tangents
    return kappa1(u), kappa0(u) * du


def correlation(k12: jax.Array, k11: jax.Array, k22: jax.Array) -> tuple[jax.Array, jax.Array]:
    """√(k₁₁k₂₂) and u = k₁₂/√(k₁₁k₂₂); where a variance is 0 both are 0, with derivative 0."""
    product = k11 * k22
    positive = product > 0
    norm = jnp.sqrt(jnp.where(positive, product, 1))
    return jnp.where(positive, norm, 0), jnp.where(positive, k12 / norm, 0)


def relu(k12: jax.Array, k11: jax.Array, k22: jax.Array) -> tuple[jax.Array, jax.Array]:
    """E[φ(a) φ(b)] and E[φ′(a) φ′(b)] for (a, b) Gaussian with covariances k: ½√(k₁₁k₂₂) κ₁(u) and ½ κ₀(u)."""
    norm, u = correlation(k12, k11, k22)
    return 0.5 * norm * kappa1(u), 0.5 * kappa0(u)
