"""Eq. (loss) and its exact derivatives, streamed over the targets: labels given, or solved in closed form.

    L = ½‖K_ts α − y_t‖²        α = A⁻¹ y_s        A = K_ss + ridge·I

Targets stream past a resident support set, so memory does not grow with them. `loss_of` is a function of (kernel,
support set, targets) alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from kip.execution import DEFAULT, Execution, Shared, Tile, add
from kip.kernels.base import Kernel, Params, Total
from kip.krr import Factor, Ridge, Ridged, RidgeError, cholesky, cholesky_solve
from kip.sets import LabelledSet, Selection, aligned_empty

NOISE_ULPS = 2
"""Singular values of K_ts below this many ulps of its norm are rounding."""


@dataclass(frozen=True, eq=False)
class Gradients:
    """Eq. (loss) and its derivatives with respect to the support set and the kernel's hyper-parameters.

    `loss` is the sum ½‖·‖² over the `targets`, without the damping term; the derivatives include it. `alpha` are the
    coefficients at which it was taken. `y` is None where labels were solved.
    """

    loss: float
    targets: int
    x: np.ndarray
    y: np.ndarray | None
    params: Params
    alpha: np.ndarray

    @property
    def loss_per_target(self) -> float:
        """The loss as it is stored and compared."""
        return self.loss / self.targets


def gradients(
    kernel: Kernel,
    support: LabelledSet,
    targets: LabelledSet | Selection,
    ridge: Ridge,
    execution: Execution = DEFAULT,
) -> Gradients:
    """Loss and gradients for given labels, in one pass.

    Each tile gives r = K_tile α − y_tile, ½‖r‖², β += K_tileᵀ r and the pullback of rαᵀ; then z = A⁻¹β is the cotangent
    of y_s, and −½(zαᵀ + αzᵀ) that of K_ss.
    """
    run = execution.over(kernel, support.x, targets)
    k_ss, pull_own = run.own()
    factor = Factor(k_ss, ridge)
    alpha = factor.solve(support.y)
    terms = run(residual, alpha=alpha.astype(support.x.dtype))
    z = factor.solve(np.asarray(terms.beta, np.float64))
    total = add(terms.total, pull_own(factor.cotangent(alpha, z)))
    return _finished(run.finish(total), terms, len(targets), z, alpha)


def solved_gradients(
    kernel: Kernel,
    x_support: np.ndarray,
    targets: LabelledSet | Selection,
    ridge: Ridge,
    damping: float = 0.0,
    execution: Execution = DEFAULT,
) -> Gradients:
    """Loss and gradient at the best labels for X_s, in two passes; K_ts is kept in between where it fits.

    α minimises ½‖K_ts α − y_t‖² + ½μ⟨α, Aα⟩ with μ = damping · n_t · (1/n_s) tr K_ss. By the envelope theorem it is
    fixed in the derivative; without damping β = 0 and K_ss does not enter at all.
    """
    run = execution.over(kernel, x_support, targets)
    kept = run.keep()
    normal = run(normal_equations, kept=kept)
    k_ss, pull_own = run.own() if damping > 0 else (None, None)
    ridged = None if k_ss is None else Ridged(k_ss, ridge)
    alpha = solve_normal(normal, ridged, damping, len(targets), x_support.dtype)
    terms = run(residual, alpha=alpha.astype(x_support.dtype), kept=kept)
    total = terms.total
    if ridged is not None and pull_own is not None:
        total = add(total, pull_own(_damping_cotangent(ridged, alpha, damping, len(targets))))
    return _finished(run.finish(total), terms, len(targets), None, alpha)


def _finished(
    found: tuple[np.ndarray, Params], terms: Terms, targets: int, y: np.ndarray | None, alpha: np.ndarray
) -> Gradients:
    x_bar, params_bar = found
    return Gradients(float(terms.loss), targets, x_bar, y, jax.tree.map(float, params_bar), alpha)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Terms:
    """What a tile sends home, the size of the support set whatever the tile: ½‖r‖², K r, and the pullback of rαᵀ."""

    loss: Any
    beta: Any
    total: Total


def residual(shared: Shared, rows: slice) -> Terms:
    """The terms of one tile, at the coefficients α."""
    tile = shared.tiles.tile(rows)
    kept = None if shared.kept is None else shared.kept.pop(tile.index, None)
    k_st, pull = kept or shared.bound.tile(tile.x)
    r = tile.masked(k_st.T @ shared.alpha - tile.y)
    return Terms(0.5 * (r * r).sum(dtype=np.float64), k_st @ r, pull(_outer(shared.alpha, r)))


def _outer(alpha: Any, r: Any) -> Any:
    """The cotangent αrᵀ of K_st; on the host in memory that JAX takes without a copy."""
    if not isinstance(alpha, np.ndarray):
        return alpha @ r.T
    return np.matmul(alpha, r.T, out=aligned_empty((len(alpha), len(r)), alpha.dtype))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Normal:
    """K_tsᵀK_ts and K_tsᵀy_t, accumulated in float64.

    The normal equations square the condition number; but the rounding of a float32 K_ts, 1e-7 relative, is itself
    squared in them, to 1e-14, which float64 holds. So within a step they lose nothing that a QR would have kept, at a
    quarter of its time. Label Solve, which publishes, folds a QR.
    """

    gram: Any
    right: Any


def normal_equations(shared: Shared, rows: slice) -> Normal:
    """Those of one tile."""
    tile = shared.tiles.tile(rows)
    if shared.kept is None:
        k_st = shared.bound.gram(tile.x)
    else:
        k_st, _ = shared.kept[tile.index] = shared.bound.tile(tile.x)
    wide = _without_padding(k_st, tile).astype(np.float64)
    return Normal(wide @ wide.T, wide @ tile.y)  # NumPy sees a matrix with itself, and computes half


def _without_padding(k_st: Any, tile: Tile) -> Any:
    return k_st if tile.mask is None else k_st * tile.mask


def solve_normal(
    normal: Normal, ridged: Ridged | None, damping: float, targets: int, dtype: Any = np.float32
) -> np.ndarray:
    """α of the damped least-squares problem, of which K_ts was computed in `dtype`."""
    a = np.array(normal.gram, np.float64)
    if ridged is not None:
        mu = _mu(ridged, damping, targets)
        a += mu * ridged.k_ss
        a.flat[:: len(a) + 1] += mu * ridged.ridge
    # What K_ts does not resolve, and what the triangle needs. Where support points coincide their rows of K_ts may
    # differ by rounding alone, since BLAS rounds a row by where it stands; with less than this α would fit that.
    a.flat[:: len(a) + 1] += max(1e-14, (NOISE_ULPS * float(np.finfo(dtype).eps)) ** 2) * np.trace(a)
    try:
        return cholesky_solve(cholesky(a), np.asarray(normal.right))
    except np.linalg.LinAlgError:
        raise RidgeError(
            "the equations for solved labels are not positive definite: K_ts holds NaN, infinity or nothing but "
            "rounding; raise `damping`, or lower the learning rate"
        ) from None


def _mu(ridged: Ridged, damping: float, targets: int) -> float:
    return damping * targets * float(np.trace(ridged.k_ss)) / len(ridged)


def _damping_cotangent(ridged: Ridged, alpha: np.ndarray, damping: float, targets: int) -> np.ndarray:
    k_bar = _mu(ridged, damping, targets) * ridged.quadratic_cotangent(alpha)
    # μ itself grows with tr K_ss
    k_bar.flat[:: len(k_bar) + 1] += 0.5 * ridged.quadratic(alpha) * damping * targets / len(ridged)
    return k_bar
