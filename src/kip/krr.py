"""Kernel ridge-regression: the ridge, the one inverse of the package, and the exact cotangents of the loss.

With A = K_ss + ridge·I, prediction is K_ts α with α = A⁻¹ y_s, and eq. (loss) is L = ½‖K_ts α − y_t‖². Everything here
is dense, as large as the support set, and in float64 on the host: with λ = 1e-6 the smallest eigenvalue of a float32
K_ss lies below −ridge, and no factorisation can mend that afterwards.
"""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import threadpoolctl

DEFAULT_RIDGE = 1e-6


class RidgeError(ValueError):
    """K_ss + ridge·I could not be inverted."""


@dataclass(frozen=True)
class Ridge:
    """λ, and whether it is scaled by (1/n) tr K_ss (appendix "Tuning KIP"); λ = 0 means the pseudo-inverse."""

    value: float = DEFAULT_RIDGE
    scale_invariant: bool = True

    def __post_init__(self) -> None:
        if not np.isfinite(self.value) or self.value < 0:
            raise ValueError(f"`ridge` must be zero or positive; got {self.value}. The usual value is {DEFAULT_RIDGE}")

    def of(self, k_ss: np.ndarray) -> float:
        """The number added to the diagonal of `k_ss`."""
        return self.value * (float(np.trace(k_ss)) / len(k_ss) if self.scale_invariant else 1.0)


class Ridged:
    """A = K_ss + ridge·I, not factorised: what needs no inverse."""

    def __init__(self, k_ss: np.ndarray, ridge: Ridge) -> None:
        self.k_ss = np.asarray(k_ss, np.float64)
        self.rule = ridge
        if not np.isfinite(self.k_ss).all():  # which LAPACK would factorise without a word
            raise RidgeError(
                "the kernel of the support set holds NaN or infinity; check its points and the kernel's options"
            )
        self.ridge = ridge.of(self.k_ss)

    def __len__(self) -> int:
        return len(self.k_ss)

    def times(self, b: np.ndarray) -> np.ndarray:
        """A b: labels from coefficients."""
        return self.k_ss @ b + self.ridge * b

    def quadratic(self, alpha: np.ndarray) -> float:
        """⟨α, A α⟩, the squared norm that damping penalises."""
        return float(np.vdot(alpha, self.times(alpha)))

    def quadratic_cotangent(self, alpha: np.ndarray) -> np.ndarray:
        """Cotangent of K_ss for ½⟨α, A α⟩ with α held fixed: ½ααᵀ, and the ridge's trace term."""
        return self._with_trace_term(0.5 * alpha @ alpha.T, 0.5 * float(np.vdot(alpha, alpha)))

    def _with_trace_term(self, k_bar: np.ndarray, a_bar_trace: float) -> np.ndarray:
        if self.rule.scale_invariant:
            k_bar.flat[:: len(self) + 1] += self.rule.value / len(self) * a_bar_trace
        return k_bar


class Factor(Ridged):
    """A = K_ss + ridge·I, factorised once and solved with many times."""

    def __init__(self, k_ss: np.ndarray, ridge: Ridge) -> None:
        super().__init__(k_ss, ridge)
        if ridge.value == 0:
            self._pseudo_inverse = scipy.linalg.pinvh(self.k_ss, check_finite=False)
            return
        try:
            self._cholesky = cholesky(self._a())
        except np.linalg.LinAlgError:
            raise RidgeError(_not_definite(self.k_ss, ridge)) from None

    def _a(self) -> np.ndarray:
        a = self.k_ss.copy()
        a.flat[:: len(a) + 1] += self.ridge
        return a

    @property
    def condition(self) -> float:
        """An upper bound of ‖A‖‖A⁻¹‖, by which rounding may be magnified in `solve`."""
        inverse = float(np.linalg.norm(self._pseudo_inverse)) if self.rule.value == 0 else 1 / self.ridge
        return (float(np.linalg.norm(self.k_ss)) + self.ridge) * inverse

    def solve(self, b: np.ndarray) -> np.ndarray:
        """A⁻¹ b, or K_ss⁺ b where λ = 0."""
        b = np.asarray(b, np.float64)
        if self.rule.value == 0:
            return self._pseudo_inverse @ b
        return cholesky_solve(self._cholesky, b)

    def cotangent(self, alpha: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Cotangent of K_ss for a loss whose coefficients are α = A⁻¹ y_s, where z = A⁻¹ β and β is that of α.

        −½(zαᵀ + αzᵀ), and −(λ/n)⟨z, α⟩ I for the scale-invariant ridge's own dependence on K_ss.
        """
        both, swapped = np.concatenate([z, alpha], axis=1), np.concatenate([alpha, z], axis=1)
        return self._with_trace_term((-0.5 * both) @ swapped.T, -float(np.vdot(z, alpha)))


@functools.cache
def _thread_pools() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


def one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """A context in which BLAS works in the thread that calls it, and wakes no other.

    BLAS's own threads spin for a while after each call in case there is another, on the cores that others would use.
    """
    return _thread_pools().limit(limits=1, user_api="blas")


CALM = 1000
"""Support points up to which BLAS's threads cost more than they give: above, a factorisation is worth them."""


def calm_threads(support: int) -> contextlib.AbstractContextManager[Any]:
    """`one_blas_thread` for support sets whose matrices are small.

    A step on 500 points took twice as long with BLAS's threads, Label Solve on 10 points fourteen times as long.
    """
    return contextlib.nullcontext() if support > CALM else one_blas_thread()


def cholesky(a: np.ndarray) -> np.ndarray:
    """The lower triangle L of a symmetric A = LLᵀ; LinAlgError where A is not positive definite. `a` is used up."""
    # LAPACK counts by columns, so that it is the transpose of an array laid out by rows that it need not copy.
    return scipy.linalg.cholesky(a.T, lower=True, overwrite_a=True, check_finite=False)


def cholesky_solve(lower: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A⁻¹ b from the triangle of `cholesky`."""
    return scipy.linalg.cho_solve((lower, True), b, check_finite=False)


def _not_definite(k_ss: np.ndarray, ridge: Ridge) -> str:
    lowest = float(scipy.linalg.eigvalsh(k_ss, subset_by_index=[0, 0])[0])
    unit = ridge.of(k_ss) / ridge.value
    need = 2 * abs(lowest) / unit
    return (
        f"K_ss + ridge is not positive definite in float64: its smallest eigenvalue is {lowest:.1e} and the ridge "
        f"{ridge.of(k_ss):.1e}; raise `ridge` from {ridge.value:g} to {need:.1e} or more, or remove near-duplicates"
    )


def mean_square_loss(prediction: np.ndarray, y: np.ndarray) -> float:
    """½‖f(x) − y‖², averaged over the points."""
    r = np.asarray(prediction, np.float64) - y
    return 0.5 * float(np.vdot(r, r)) / len(r)


def accuracy(prediction: np.ndarray, codes: np.ndarray) -> float:
    """Fraction of points whose largest predicted entry is their class."""
    return float(np.mean(np.argmax(prediction, axis=1) == codes))
