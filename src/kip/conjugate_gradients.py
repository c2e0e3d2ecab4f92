"""KRR on a training set too large to factorise: preconditioned conjugate gradients with streamed products.

It solves (K + ridge·I) α = y to a stated tolerance on the residual: the model A_D that ε compares a distilled set with.
K is visited by tiles, half of them by symmetry; they are kept where memory allows and computed again where not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kip import machine
from kip.kernels.base import Kernel
from kip.krr import Ridge, RidgeError, cholesky, cholesky_solve
from kip.sets import LabelledSet

DEFAULT_TOLERANCE = 1e-4
DIRECT_LIMIT = 10_000
"""Up to this many points a factorisation is quicker than iterating."""


@dataclass(frozen=True, eq=False)
class Fit:
    """Coefficients of the full model, with what was reached: the largest relative residual of a label column."""

    alpha: np.ndarray
    residual: float
    iterations: int
    tolerance: float

    @property
    def converged(self) -> bool:
        """Whether the stated tolerance was reached."""
        return self.residual <= self.tolerance


def default_memory() -> int:
    """Bytes that tiles of K may take: two fifths of the memory that this process may hold."""
    return int(0.4 * machine.memory_limit())


class SymmetricProduct:
    """V ↦ K V for K = K(x, x), by tiles of the upper triangle."""

    def __init__(self, kernel: Kernel, x: np.ndarray, *, tile: int = 2048, memory: int | None = None) -> None:
        self.kernel, self.x, self.tile = kernel, x, tile
        memory = default_memory() if memory is None else memory
        # The tile on the diagonal is whole, so the triangle is a little more than half.
        wanted = (len(x) + tile) * len(x) * x.dtype.itemsize // 2
        self._kept: dict[tuple[int, int], np.ndarray] | None = {} if wanted <= memory else None

    def _tiles(self) -> Iterator[tuple[int, int]]:
        starts = range(0, len(self.x), self.tile)
        return ((i, j) for i in starts for j in starts if j >= i)

    def _gram(self, i: int, j: int) -> np.ndarray:
        if self._kept is not None and (i, j) in self._kept:
            return self._kept[i, j]
        first = self.x[i : i + self.tile]
        k = self.kernel.gram(first) if i == j else self.kernel.gram(first, self.x[j : j + self.tile])
        if self._kept is not None:
            self._kept[i, j] = k
        return k

    def __call__(self, v: np.ndarray) -> np.ndarray:
        out = np.zeros(v.shape, np.float64)
        narrow = v.astype(self.x.dtype)
        for i, j in self._tiles():
            k = self._gram(i, j)
            out[i : i + self.tile] += k @ narrow[j : j + self.tile]
            if i != j:
                out[j : j + self.tile] += k.T @ narrow[i : i + self.tile]
        return out


class Nystrom:
    """The preconditioner P = L Lᵀ + μI with L Lᵀ = K_nr K_rr⁻¹ K_rn for `rank` landmarks.

    μ is the mean of what the landmarks leave of the diagonal, so that P⁻¹(K + ridge·I) clusters at 1 on both ends of
    the spectrum; the ridge itself would be far too small.
    """

    def __init__(self, kernel: Kernel, x: np.ndarray, rank: int, ridge: float, *, seed: int = 0) -> None:
        rows = np.random.default_rng(seed).permutation(len(x))[:rank]
        landmarks = x[rows]
        w = kernel.gram(landmarks.astype(np.float64)).copy()
        w.flat[:: len(w) + 1] += 1e-6 * np.trace(w) / len(w)
        lower = cholesky(w)
        self._l = np.empty((len(x), len(rows)), x.dtype)
        for start in range(0, len(x), 4096):
            k = kernel.gram(landmarks, x[start : start + 4096])
            solved = scipy.linalg.solve_triangular(lower.astype(x.dtype), k, lower=True, check_finite=False)
            self._l[start : start + 4096] = solved.T
        left = float(np.mean(kernel.diag(x))) - float(np.mean(np.sum(self._l * self._l, axis=1)))
        self.mu = max(left, ridge)
        inner = (self._l.T @ self._l).astype(np.float64)
        inner.flat[:: len(inner) + 1] += self.mu
        self._inner = cholesky(inner)

    def solve(self, v: np.ndarray) -> np.ndarray:
        """P⁻¹ v, by Woodbury's identity."""
        inner = cholesky_solve(self._inner, (self._l.T @ v.astype(self._l.dtype)).astype(np.float64))
        return (v - self._l @ inner.astype(self._l.dtype)) / self.mu


def fit(
    kernel: Kernel,
    train: LabelledSet,
    ridge: Ridge = Ridge(),
    *,
    tolerance: float = DEFAULT_TOLERANCE,
    rank: int | None = None,
    most_iterations: int = 500,
    memory: int | None = None,
    tile: int = 2048,
    progress: Callable[[int, float], None] | None = None,
    start: np.ndarray | None = None,
    keep: Callable[[np.ndarray], None] | None = None,
) -> Fit:
    """Solve (K + ridge·I) α = y until ‖(K + ridge·I) α − y‖ ≤ tolerance·‖y‖ for every label column.

    `progress` sees the iteration and the largest relative residual. A fit that stops at `most_iterations` says so.
    `keep` is given α after each iteration; a later fit with that `start` continues from there.
    """
    if ridge.value == 0:
        raise ValueError("`ridge` must be positive for an iterative solve; use 1e-6, or a smaller training set")
    x, y = train.x, np.asarray(train.y, np.float64)
    shift = ridge.value * (float(np.mean(kernel.diag(x))) if ridge.scale_invariant else 1.0)
    product = SymmetricProduct(kernel, x, tile=tile, memory=memory)
    preconditioner = Nystrom(kernel, x, rank or min(len(x), 3000), shift)

    def apply(v: np.ndarray) -> np.ndarray:
        return product(v) + shift * v

    alpha, iterations = np.zeros_like(y) if start is None else np.array(start, np.float64), 0
    if alpha.shape != y.shape:
        raise ValueError(f"`start` must have the shape of the labels, {y.shape}; got {alpha.shape}")
    residual = _residual(y if start is None else y - apply(alpha), y)
    # The residual that the recursion carries drifts from the true one by rounding; so once it says "done" the true one
    # is computed, and the iteration started again from there if need be.
    while residual > tolerance and iterations < most_iterations:
        step, taken = _conjugate_gradients(
            apply,
            preconditioner.solve,
            y if iterations == 0 and start is None else y - apply(alpha),
            y,
            tolerance,
            most_iterations - iterations,
            progress,
            None if keep is None else functools.partial(_kept, keep, alpha),
        )
        alpha, iterations = alpha + step, iterations + taken
        before, residual = residual, _residual(y - apply(alpha), y)
        if residual > before / 2:  # rounding, not iterations, is what is left
            break
    return Fit(alpha, residual, iterations, tolerance)


def _kept(keep: Callable[[np.ndarray], None], alpha: np.ndarray, step: np.ndarray) -> None:
    keep(alpha + step)


def _residual(r: np.ndarray, y: np.ndarray) -> float:
    """The largest residual of a column relative to that column of `y`."""
    return float(np.max(np.linalg.norm(r, axis=0) / np.maximum(np.linalg.norm(y, axis=0), np.finfo(np.float64).tiny)))


def _conjugate_gradients(
    apply: Callable[[np.ndarray], np.ndarray],
    precondition: Callable[[np.ndarray], np.ndarray],
    right: np.ndarray,
    y: np.ndarray,
    tolerance: float,
    most: int,
    progress: Callable[[int, float], None] | None,
    keep: Callable[[np.ndarray], None] | None = None,
) -> tuple[np.ndarray, int]:
    """Conjugate gradients on every column of `right` at once, until the residual is small beside `y`."""
    alpha, r = np.zeros_like(right), right.copy()
    z = precondition(r)
    p, rz = z.copy(), _dots(r, z)
    iteration, residual = 0, _residual(r, y)
    while residual > tolerance and iteration < most:
        ap = apply(p)
        curvature = _dots(p, ap)
        if np.any((curvature <= 0) & (rz > 0)):
            raise RidgeError(
                "the kernel of the training set is not positive definite at this precision; raise `ridge`, use "
                "dtype float64, or remove duplicate points"
            )
        length = rz / np.where(curvature > 0, curvature, 1)
        alpha += length * p
        r -= length * ap
        iteration, residual = iteration + 1, _residual(r, y)
        z = precondition(r)
        before, rz = rz, _dots(r, z)
        p = z + rz / np.where(before > 0, before, 1) * p
        if keep is not None:
            keep(alpha)
        if progress is not None:
            progress(iteration, residual)
    return alpha, iteration


def _dots(a: np.ndarray, b: np.ndarray) -> Any:
    return np.sum(a * b, axis=0)
