"""ReLU's dual activations κ₀ and κ₁ (arc-cosine kernels), right and differentiable up to correlation ±1.

For unit vectors with inner product u, normalised so that both are 1 at u = 1:

    κ₀(u) = 1 − arccos(u)/π            κ₁(u) = (√(1 − u²) + u (π − arccos u))/π            κ₁′ = κ₀

With t = 1 − |u|, κ₁(u) = max(u, 0) + t^{3/2} P(t) and κ₀(u) = [u ≥ 0] ∓ t^{1/2} Q(t) with P and Q smooth, so one square
root and a short polynomial reach float32 accuracy; float64 evaluates the arc-cosine.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

# Correlations this many ulps from ±1 are taken as ±1. κ₀ has a square-root cone there, so rounding of 1e-7 in u would
# otherwise show as 1e-4 in the NTK of identical points; and image initialisation starts exactly on it.
SNAP_ULPS = 8


def _fit(function: Callable[[np.ndarray], np.ndarray], degree: int) -> np.ndarray:
    """Coefficients, lowest first, of the Chebyshev interpolant of `function` on [0, 1]."""
    series = np.polynomial.chebyshev.Chebyshev.interpolate(function, degree, domain=[0, 1])
    return series.convert(kind=np.polynomial.Polynomial).coef


def _arc(t: np.ndarray) -> np.ndarray:
    """arccos(1 − t)/√t, smooth at 0: 2 arcsin(√(t/2))/√t."""
    return 2 * np.arcsin(np.sqrt(t / 2)) / np.sqrt(t)


def _q(t: np.ndarray) -> np.ndarray:
    return _arc(t) / np.pi


def _p(t: np.ndarray) -> np.ndarray:
    """(√(1−u²) − u arccos u)/(π t^{3/2}) at u = 1 − t; its power series where the difference would cancel."""
    with np.errstate(all="ignore"):
        direct = (np.sqrt(2 - t) - (1 - t) * _arc(t)) / (np.pi * t)
    series = np.sqrt(2) / np.pi * (2 / 3 + t / 30 + 3 * t**2 / 560 + 5 * t**3 / 4032 + 35 * t**4 / 101376)
    return np.where(t < 1e-3, series, direct)


P_COEFFICIENTS = tuple(float(c) for c in _fit(_p, 7))
Q_COEFFICIENTS = tuple(float(c) for c in _fit(_q, 7))


def _horner(coefficients: tuple[float, ...], t: jax.Array) -> jax.Array:
    value = jnp.full_like(t, coefficients[-1])
    for c in coefficients[-2::-1]:
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
    if u.dtype == jnp.float64:
        arc = jnp.arccos(1 - t) / jnp.pi
    else:
        arc = jnp.sqrt(t) * _horner(Q_COEFFICIENTS, t)
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
    if u.dtype == jnp.float64:
        c = 1 - t
        rest = (jnp.sqrt(t * (2 - t)) - c * jnp.arccos(c)) / jnp.pi
    else:
        rest = t * jnp.sqrt(t) * _horner(P_COEFFICIENTS, t)
    return jnp.maximum(u, 0) + rest


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
