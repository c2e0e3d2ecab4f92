"""Kernel ridge-regression: the ridge, the factor of A = K_ss + ridge·I, and the model that predicts with it.

Prediction is K_ts α with α = A⁻¹ y_s, and eq. (loss) is L = ½‖K_ts α − y_t‖². What has the size of the support set is
in float64 on the host: with λ = 1e-6 the smallest eigenvalue of a float32 K_ss lies below −ridge, and no factorisation
can mend that afterwards. K_ts is in the dtype of the points, unless coefficients are so large that its rounding would
show (`KernelRidge`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.linalg

from kip.execution import DEFAULT, Execution, Shared, concatenate
from kip.kernels.base import Kernel
from kip.options import SetOptions
from kip.sets import LabelledSet, Selection, unlabelled
from kip.threads import blas_threads_for

DEFAULT_RIDGE = SetOptions.ridge


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
        """Cotangent of K_ss for ½⟨α, A α⟩ with α fixed: ½ααᵀ, and the ridge's trace term."""
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
    if unit <= 0:
        return "the kernel of the support set is zero, so it cannot be inverted; use points or a kernel that are not"
    need = 2 * abs(lowest) / unit
    return (
        f"K_ss + ridge is not positive definite in float64: its smallest eigenvalue is {lowest:.1e} and the ridge "
        f"{ridge.of(k_ss):.1e}; raise `ridge` from {ridge.value:g} to {need:.1e} or more, or remove near-duplicates"
    )


NOISE = 1e-3
"""Rounding of float32, in units of the labels, above which a prediction is computed in float64 instead."""


class KernelRidge:
    """Kernel ridge-regression on a support set: predictions K_ts A⁻¹ y_s, averaged over a family of kernels.

    The one model of the package: checkpoints are evaluated by it, published sets predict by it, and so do baselines.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        support: LabelledSet,
        ridge: Ridge = Ridge(),
        execution: Execution = DEFAULT,
        coefficients: Sequence[np.ndarray] | None = None,
    ) -> None:
        self.kernels, self.support, self.ridge, self.execution = tuple(kernels), support, ridge, execution
        if coefficients is not None:  # of a system too large to factorise
            self.__dict__["coefficients"] = tuple(coefficients)

    @cached_property
    def coefficients(self) -> tuple[np.ndarray, ...]:
        """α = A⁻¹ y_s of every kernel, in float64."""
        x = np.asarray(self.support.x, np.float64)
        with blas_threads_for(len(x)):
            return tuple(Factor(kernel.gram(x), self.ridge).solve(self.support.y) for kernel in self.kernels)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Predicted label vectors of preprocessed points, averaged over the family."""
        return np.mean(list(self.predict_each(unlabelled(x))), axis=0)

    def predict_each(self, targets: LabelledSet | Selection) -> Iterator[np.ndarray]:
        """Predicted label vectors of the targets, kernel by kernel."""
        for kernel, alpha in zip(self.kernels, self.coefficients, strict=True):
            dtype = self._dtype(kernel, alpha)
            if len(targets) == 0:
                yield np.zeros((0, alpha.shape[1]), dtype)
                continue
            run = self.execution.over(kernel, self.support.x.astype(dtype, copy=False), targets)
            rows = run(_prediction, concatenate, alpha=alpha.astype(dtype, copy=False))
            yield np.concatenate(rows)[: len(targets)]

    def loss(self, targets: LabelledSet | Selection) -> float:
        """Eq. (loss) per target, averaged over the family."""
        points = targets if isinstance(targets, Selection) else Selection(targets)
        return float(np.mean([mean_square_loss(found, targets.y) for found in self.predict_each(points)]))

    def accuracy(self, x: np.ndarray, codes: np.ndarray) -> float:
        """Fraction of points whose class is predicted."""
        return accuracy(self.predict(x), codes)

    @cached_property
    def needs_float64(self) -> bool:
        """Whether the rounding of a float32 K_ts would show in what any of the kernels predicts."""
        pairs = zip(self.kernels, self.coefficients, strict=True)
        return any(self._dtype(kernel, alpha) == np.float64 for kernel, alpha in pairs)

    def _dtype(self, kernel: Kernel, alpha: np.ndarray) -> np.dtype:
        """The dtype of the points, or float64 where the rounding of K_ts, magnified by α, would exceed `NOISE`.

        Roundings of single entries add up like random ones: to √Σⱼ kⱼⱼ k_tt αⱼ² ulps. A typical support point stands
        for the targets.
        """
        x = self.support.x
        if x.dtype == np.float64:
            return x.dtype
        diagonal = kernel.diag(x).astype(np.float64)
        spread = np.sqrt(np.max(diagonal @ np.square(alpha), initial=0.0) * np.mean(diagonal))
        return np.dtype(np.float64) if spread * np.finfo(x.dtype).eps > NOISE else x.dtype


def _prediction(shared: Shared, rows: slice) -> list[np.ndarray]:
    tile = shared.tiles.tile(rows)
    return [shared.bound.gram(tile.x).T @ shared.alpha]


def mean_square_loss(prediction: np.ndarray, y: np.ndarray) -> float:
    """½‖f(x) − y‖², averaged over the points."""
    r = np.asarray(prediction, np.float64) - y
    return 0.5 * float(np.vdot(r, r)) / len(r)


def accuracy(prediction: np.ndarray, codes: np.ndarray) -> float:
    """Fraction of points whose largest predicted entry is their class."""
    return float(np.mean(np.argmax(prediction, axis=1) == codes))
