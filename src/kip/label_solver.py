"""Label Solve: the best labels for given support points, in closed form, minimum-norm and streaming.

Eq. (label_solve): y_s* = (K_ts A⁻¹)⁺ y_t with A = K_ss + ridge·I, the same A that prediction uses. The QR of
[K_ts | y_t] is folded tile by tile and only its triangle kept, so memory does not grow with the targets; for a family
of kernels the problems are stacked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from scipy.sparse.linalg import LinearOperator, eigsh

from kip.execution import DEFAULT, TILE_ROWS, Execution, Shared, serial
from kip.kernels.base import Kernel
from kip.krr import Factor, Ridge
from kip.sets import LabelledSet
from kip.threads import FEW_POINTS, blas_threads_for

CUTOFF_ULPS = 16
"""Singular values below this many ulps of the largest are noise: of the dtype K_ts was computed in, or of A⁻¹."""

SPECTRUM_LIMIT = 1_000
"""Support points up to which all singular values are computed, which takes over ten times as long as a QR."""

BLOCK = 32
"""Columns that `fold` treats at once; 16 and 64 took as long, or longer."""

LARGEST_TILE = 15_000
"""Rows of a tile at most, for thousands of support points."""

CLEAR = 10.0
"""Where the least singular value is this many times the cutoff there is nothing to cut off, and a triangle will do."""


@dataclass(frozen=True, eq=False)
class Solution:
    """The solved labels, the loss they leave (per target, averaged over the family), and how they were cut off."""

    y: np.ndarray
    loss: float
    rank: int
    cutoff: float


@dataclass(frozen=True, eq=False)
class _Triangle:
    """R of the QR of all rows [K_ts | y_t] seen so far: RᵀR is theirs. Rows fewer than columns stand as they are."""

    r: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether it has as many rows as columns, and so is really a triangle."""
        return len(self.r) == self.r.shape[1]

    def __add__(self, other: _Triangle) -> _Triangle:
        if self.whole:
            return _Triangle(fold(self.r, other.r, triangular=other.whole))
        if other.whole:
            return other + self
        return _folded(np.concatenate([self.r, other.r]))


def _folded(rows: np.ndarray) -> _Triangle:
    columns = rows.shape[1]
    return _Triangle(rows if len(rows) < columns else fold(np.zeros((columns, columns), order="F"), rows))


def fold(r: np.ndarray, rows: np.ndarray, *, triangular: bool = False) -> np.ndarray:
    """The triangle of the QR of `r`, a triangle, and more rows, which may be `triangular` themselves. Uses both up.

    LAPACK passes over the zeros, with which a QR of both, one above the other, would compute: it took three times as
    long.
    """
    zeros = len(rows) if triangular else 0
    return scipy.linalg.lapack.dtpqrt(zeros, min(BLOCK, len(r)), r, rows, overwrite_a=True, overwrite_b=True)[0]


def _triangle(kernel: Kernel, x_support: np.ndarray, targets: LabelledSet, execution: Execution) -> np.ndarray:
    execution = execution.on_host()
    if len(x_support) > FEW_POINTS and execution.executor is None:
        # The QR has work for BLAS's own threads, and a fold costs more than its tile: so larger tiles, one by one.
        rows = max(TILE_ROWS, min(LARGEST_TILE, 3 * len(x_support) // 2))
        execution = replace(execution, executor=serial, tile=execution.tile or rows)
    run = execution.over(kernel, x_support, targets)
    r = run(triangle, _Triangle.__add__).r
    if len(x_support) < len(r) < r.shape[1]:  # too few to have been folded, too many to be all taken for R
        r = scipy.linalg.qr(r, mode="r", check_finite=False)[0]
    return r


def triangle(shared: Shared, rows: slice) -> _Triangle:
    """Of the rows [K_ts | y_t] of one tile."""
    tile, valid = shared.tiles.tile(rows), rows.stop - rows.start
    k_st = shared.bound.gram(tile.x)
    both = np.empty((valid, len(k_st) + tile.y.shape[1]), order="F")  # as LAPACK has its matrices
    both[:, : len(k_st)] = k_st.T[:valid]
    both[:, len(k_st) :] = tile.y[:valid]
    return _folded(both)


def solve_labels(
    kernels: Sequence[Kernel],
    x_support: np.ndarray,
    targets: LabelledSet,
    ridge: Ridge = Ridge(),
    *,
    cutoff: float | None = None,
    execution: Execution = DEFAULT,
) -> Solution:
    """Labels of minimum norm among those that minimise eq. (loss), jointly over `kernels`.

    Singular values of K_ts A⁻¹ below `cutoff` times the largest count as zero; by default that is a few ulps of the
    dtype of `x_support`, in which K_ts is computed, or of float64 times the condition of A where that is more: where
    support points coincide, A⁻¹ carries its own rounding that far.
    """
    with blas_threads_for(len(x_support)):
        return _solved(kernels, x_support, targets, ridge, cutoff, execution)


def _solved(
    kernels: Sequence[Kernel],
    x_support: np.ndarray,
    targets: LabelledSet,
    ridge: Ridge,
    cutoff: float | None,
    execution: Execution,
) -> Solution:
    size = len(x_support)
    operators, right, rest, noise = [], [], 0.0, float(np.finfo(x_support.dtype).eps)
    for kernel in kernels:
        factor = Factor(kernel.gram(np.asarray(x_support, np.float64)), ridge)
        r = _triangle(kernel, x_support, targets, execution)
        top = r[:size]
        operators.append(factor.solve(top[:, :size].T).T)
        right.append(top[:, size:])
        rest += float(np.sum(r[size:, size:] ** 2))  # what no labels can fit
        noise = max(noise, float(np.finfo(np.float64).eps) * factor.condition)
    if cutoff is None:
        cutoff = CUTOFF_ULPS * noise
    operator, rhs = np.concatenate(operators), np.concatenate(right)
    y, rank = _minimum_norm(operator, rhs, cutoff)
    loss = 0.5 * (float(np.sum((operator @ y - rhs) ** 2)) + rest)
    return Solution(y, loss / (len(targets) * len(kernels)), rank, cutoff)


def _minimum_norm(operator: np.ndarray, rhs: np.ndarray, cutoff: float) -> tuple[np.ndarray, int]:
    if operator.shape[1] > SPECTRUM_LIMIT and len(operator) >= operator.shape[1]:
        r = scipy.linalg.qr(np.concatenate([operator, rhs], axis=1), mode="r", overwrite_a=True, check_finite=False)[0]
        triangle = r[: operator.shape[1], : operator.shape[1]]
        least, most = _extremes(triangle)
        if least > CLEAR * cutoff * most:
            right = r[: len(triangle), len(triangle) :]
            return scipy.linalg.solve_triangular(triangle, right, check_finite=False), len(triangle)
    solve = functools.partial(scipy.linalg.svd, full_matrices=False, check_finite=False)
    try:
        u, s, vt = solve(operator)
    except np.linalg.LinAlgError:  # divide and conquer can fail to converge; the plain QR iteration does not
        u, s, vt = solve(operator, lapack_driver="gesvd")
    rank = int(np.sum(s > cutoff * s[0])) if s[0] > 0 else 0
    return vt[:rank].T @ ((u[:, :rank].T @ rhs) / s[:rank, None]), rank


def _extremes(triangle: np.ndarray) -> tuple[float, float]:
    """The least and the greatest singular value of an upper triangle, to a few per cent; 0 for one with none."""
    if not np.diagonal(triangle).all():
        return 0.0, float(np.linalg.norm(triangle))
    back = functools.partial(scipy.linalg.solve_triangular, triangle, check_finite=False)
    start = np.random.default_rng(0).standard_normal(len(triangle))

    def greatest(gram: Callable[[np.ndarray], np.ndarray]) -> float:
        square = LinearOperator(triangle.shape, matvec=gram, dtype=np.float64)
        return float(np.sqrt(eigsh(square, k=1, tol=1e-2, v0=start, return_eigenvectors=False)[0]))

    return 1 / greatest(lambda v: back(back(v, trans="T"))), greatest(lambda v: triangle.T @ (triangle @ v))
