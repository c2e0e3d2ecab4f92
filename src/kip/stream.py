"""A pass over target tiles: memory is one tile and the support set, whatever the number of targets.

A pass maps a function over tiles and combines what comes back by an associative operation, in tile order. The functions
below say what KIP, Label Solve and evaluation compute on a tile; an `Executor` says where.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from kip import machine
from kip.kernels.base import Kernel, Params
from kip.krr import Factor, Ridge, Ridged, calm_threads, cholesky, cholesky_solve, one_blas_thread
from kip.sets import LabelledSet, aligned_empty

T = TypeVar("T")

DEFAULT_MEMORY = 256 * 2**20
"""Bytes a pass may take beside the data and the support set."""

TILE_ROWS = 2048
"""Rows of a tile at most. Larger ones leave the cache: measured slower, and no better otherwise."""

THREAD_ROWS = 1024
"""Rows at most where tiles are visited side by side. Whatever the machine: a tile sets how sums round."""

SIDE_BY_SIDE = 4
"""Tiles that half of the memory must hold at once, where they are visited side by side."""

SMALL_PASS = 2**27
"""Multiplications in K_ts below which a pass keeps to one thread: handing out tiles takes longer than it saves."""

NOISE_ULPS = 2
"""Singular values of K_ts below this many ulps of its norm are rounding."""

TILE_MULTIPLE = 16
"""Tiles are multiples of this, the widest SIMD vector of float32."""


class Executor(Protocol):
    """Where a pass runs: maps over tiles and combines the results in tile order."""

    def __call__(self, fn: Callable[[Tile], T], tiles: Iterable[Tile], combine: Callable[[T, T], T]) -> T:
        """combine(… combine(fn(tile₀), fn(tile₁)) …, fn(tileₙ)), grouped as the executor likes."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Targets of one tile, the first of them that at `start`; rows from `valid` on are padding to the common shape."""

    index: int
    start: int
    x: Any
    y: np.ndarray | None
    valid: int

    @property
    def labels(self) -> np.ndarray:
        """The label vectors of the targets, without padding."""
        assert self.y is not None
        return self.y[: self.valid]


def serial(fn: Callable[[Tile], T], tiles: Iterable[Tile], combine: Callable[[T, T], T]) -> T:
    """One tile after the other, in this thread."""
    return functools.reduce(combine, map(fn, tiles))


def threaded(threads: int, fn: Callable[[Tile], T], tiles: Iterable[Tile], combine: Callable[[T, T], T]) -> T:
    """Tiles side by side in so many threads, combined in tile order whichever is done first.

    BLAS keeps to the thread that calls it, so that every core has one tile, from its first product to its last.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined]  # JAX's settings belong to a thread

    def visit(tile: Tile) -> T:
        with jax.default_device(device):
            return fn(tile)

    tiles = list(tiles)
    with one_blas_thread():
        visited = map(fn, tiles) if min(threads, len(tiles)) == 1 else _pool(threads, os.getpid()).map(visit, tiles)
        return functools.reduce(combine, visited)


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that wait from pass to pass: to start them took longer than a step on small data does.

    A process has its own, since threads do not survive a fork.
    """
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="kip-tile")


@dataclass(frozen=True)
class Plan:
    """How a pass is run: the memory it may take, where it runs, and a tile size where one is wanted."""

    memory: int = DEFAULT_MEMORY
    executor: Executor = field(default=serial, compare=False)
    tile: int | None = None

    def rows(self, targets: int, support: int, width: int, itemsize: int) -> int:
        """Rows of a tile: as many as memory and cache allow, then evened out over the targets."""
        most = self.tile or min(TILE_ROWS, max(1, self.memory // _row_bytes(support, width, itemsize)))
        count = -(-targets // most)
        even = -(-targets // count)
        return min(-(-even // TILE_MULTIPLE) * TILE_MULTIPLE, max(targets, 1))

    def side_by_side(self, kernel: Kernel, x_support: np.ndarray, targets: int) -> Plan:
        """Return this plan with one tile a core, where `kernel` gains by it and no other executor was chosen.

        Half of the memory is for the tiles in work, half for what is kept between two visits.
        """
        if self.executor is not serial or not kernel.concurrent:
            return self
        row = _row_bytes(len(x_support), int(np.prod(x_support.shape[1:])), x_support.dtype.itemsize)
        rows = self.tile or min(THREAD_ROWS, max(1, self.memory // (2 * SIDE_BY_SIDE * row)))
        small = targets * x_support.size < SMALL_PASS
        threads = 1 if small else max(1, min(machine.cores(), self.memory // (2 * rows * row)))
        return replace(self, tile=rows, executor=functools.partial(threaded, threads))

    def tiles(self, x: Any, y: np.ndarray | None, support: int) -> list[Tile]:
        """The targets cut into tiles of one shape, so that each kernel compiles once."""
        return list(_cut(x, y, self.rows(len(x), support, int(np.prod(x.shape[1:])), x.dtype.itemsize)))


def _row_bytes(support: int, width: int, itemsize: int) -> int:
    """A target's row takes its point, and four entries a support point: K, its residuals, and two cotangents."""
    return itemsize * (4 * support + 2 * width)


def _cut(x: Any, y: np.ndarray | None, rows: int) -> Iterator[Tile]:
    for index, start in enumerate(range(0, len(x), rows)):
        part = x[start : start + rows]
        label = None if y is None else y[start : start + rows]
        valid = len(part)
        if valid < rows:
            part = _pad(part, rows)
            label = None if label is None else _pad(label, rows)
        yield Tile(index, start, part, label, valid)


def _pad(rows: np.ndarray, to: int) -> np.ndarray:
    # With copies of the last row, not with zeros: padding must be as harmless to a kernel as the data is.
    padded = aligned_empty((to, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)], padded[len(rows) :] = rows, rows[-1]
    return padded


@dataclass(frozen=True, eq=False)
class Gradients:
    """Eq. (loss) and its derivatives with respect to the support set and the kernel's hyper-parameters.

    `loss` is the sum ½‖·‖² over the `targets`, without the damping term; the derivatives include it. `alpha` are the
    coefficients it was taken at.
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
    x_support: np.ndarray,
    y_support: np.ndarray,
    targets: LabelledSet,
    ridge: Ridge,
    plan: Plan = Plan(),
) -> Gradients:
    """Loss and gradients with the labels given: one visit a tile.

    Each tile gives r = K_tile α − y_tile, ½‖r‖², β += K_tileᵀ r and the pullback of rαᵀ; then z = A⁻¹β is the cotangent
    of y_s, and that of K_ss is pulled back doubled, since X_s enters it twice.
    """
    plan = plan.side_by_side(kernel, x_support, len(targets))
    factor = Factor(_k_ss(kernel, x_support), ridge)
    alpha = factor.solve(y_support)
    visit = functools.partial(_visit, kernel, x_support, alpha.astype(x_support.dtype), {})
    terms = plan.executor(visit, plan.tiles(targets.x, targets.y, len(x_support)), _add)
    z = factor.solve(terms.beta)
    terms = _add_k_ss(terms, kernel, x_support, factor.cotangent(alpha, z), plan)
    return Gradients(terms.loss, len(targets), np.asarray(terms.x_bar, np.float64), z, terms.params_bar, alpha)


def solved_gradients(
    kernel: Kernel,
    x_support: np.ndarray,
    targets: LabelledSet,
    ridge: Ridge,
    damping: float = 0.0,
    plan: Plan = Plan(),
) -> Gradients:
    """Loss and gradient to X_s at the best labels for X_s: two visits a tile, K_ts kept between them where it fits.

    α minimises ½‖K_ts α − y_t‖² + ½μ⟨α, Aα⟩ with μ = damping · n_t · (1/n_s) tr K_ss. By the envelope theorem it is
    held fixed in the derivative; without damping β = 0 and K_ss does not enter at all.
    """
    plan = plan.side_by_side(kernel, x_support, len(targets))
    tiles = plan.tiles(targets.x, targets.y, len(x_support))
    kept_bytes = 2 * len(x_support) * len(targets) * x_support.dtype.itemsize
    kept: dict[int, Any] | None = {} if kept_bytes <= plan.memory // 2 else None
    normal = plan.executor(functools.partial(_normal, kernel, x_support, kept), tiles, _add)
    ridged = Ridged(_k_ss(kernel, x_support), ridge) if damping > 0 else None
    alpha = solve_normal(normal, ridged, damping, len(targets), x_support.dtype)
    terms = plan.executor(
        functools.partial(_visit, kernel, x_support, alpha.astype(x_support.dtype), kept or {}), tiles, _add
    )
    if ridged is not None:
        k_bar = _damping_cotangent(ridged, alpha, damping, len(targets))
        terms = _add_k_ss(terms, kernel, x_support, k_bar, plan)
    return Gradients(terms.loss, len(targets), np.asarray(terms.x_bar, np.float64), None, terms.params_bar, alpha)


@dataclass(frozen=True, eq=False)
class Normal:
    """K_tsᵀK_ts and K_tsᵀy_t, accumulated in float64.

    The normal equations square the condition number; but the rounding of a float32 K_ts, 1e-7 relative, is itself
    squared in them, to 1e-14, which float64 holds. So within a step they lose nothing that a QR would have kept, at a
    quarter of its time. Label Solve, which publishes, folds a QR.
    """

    gram: np.ndarray
    right: np.ndarray

    def __add__(self, other: Normal) -> Normal:
        # In place: a pass owns what it combines, and a fresh sum of this size costs more than the adding.
        np.add(self.gram, other.gram, out=self.gram)
        return Normal(self.gram, self.right + other.right)


def solve_normal(
    normal: Normal, ridged: Ridged | None, damping: float, targets: int, dtype: Any = np.float32
) -> np.ndarray:
    """α of the damped least-squares problem, of which K_ts was computed in `dtype`."""
    a = normal.gram.copy()
    if ridged is not None:
        mu = _mu(ridged, damping, targets)
        a += mu * ridged.k_ss
        a.flat[:: len(a) + 1] += mu * ridged.ridge
    # What K_ts does not resolve, and what the triangle needs. Where support points coincide their rows of K_ts may
    # differ by rounding alone, since BLAS rounds a row by where it stands; with less than this α would fit that.
    a.flat[:: len(a) + 1] += max(1e-14, (NOISE_ULPS * float(np.finfo(dtype).eps)) ** 2) * np.trace(a)
    return cholesky_solve(cholesky(a), normal.right)


def _mu(ridged: Ridged, damping: float, targets: int) -> float:
    return damping * targets * float(np.trace(ridged.k_ss)) / len(ridged)


def _damping_cotangent(ridged: Ridged, alpha: np.ndarray, damping: float, targets: int) -> np.ndarray:
    k_bar = _mu(ridged, damping, targets) * ridged.quadratic_cotangent(alpha)
    # μ itself grows with tr K_ss
    k_bar.flat[:: len(k_bar) + 1] += 0.5 * ridged.quadratic(alpha) * damping * targets / len(ridged)
    return k_bar


@dataclass(frozen=True, eq=False)
class _Terms:
    """What a tile sends home: the size of the support set, whatever the tile."""

    loss: float
    beta: np.ndarray
    x_bar: np.ndarray
    params_bar: Params

    def __add__(self, other: _Terms) -> _Terms:
        params_bar = jax.tree.map(np.add, self.params_bar, other.params_bar)
        x_bar = np.add(self.x_bar, other.x_bar, dtype=np.float64)
        return _Terms(self.loss + other.loss, self.beta + other.beta, x_bar, params_bar)


def _add(left: Any, right: Any) -> Any:
    return left + right


def _visit(kernel: Kernel, x_support: np.ndarray, alpha: np.ndarray, kept: dict[int, Any], tile: Tile) -> _Terms:
    k_st, pull = kept.pop(tile.index, None) or kernel.vjp(x_support, tile.x)
    r = np.zeros((k_st.shape[1], alpha.shape[1]), alpha.dtype)  # padding leaves no residual
    np.subtract((k_st.T @ alpha)[: tile.valid], tile.labels, out=r[: tile.valid], casting="same_kind")
    beta = np.asarray(k_st @ r, np.float64)
    x_bar, params_bar = pull(np.matmul(alpha, r.T, out=aligned_empty(k_st.shape, alpha.dtype)))
    return _Terms(0.5 * float(np.vdot(r, r)), beta, x_bar, jax.tree.map(float, params_bar))


def _normal(kernel: Kernel, x_support: np.ndarray, kept: dict[int, Any] | None, tile: Tile) -> Normal:
    if kept is None:
        k_st = kernel.gram(x_support, tile.x)
    else:
        k_st, _ = kept[tile.index] = kernel.vjp(x_support, tile.x)
    wide = k_st[:, : tile.valid].astype(np.float64)
    return Normal(wide @ wide.T, wide @ tile.labels)  # NumPy sees a matrix with itself, and computes half


def _k_ss(kernel: Kernel, x_support: np.ndarray) -> np.ndarray:
    return kernel.gram(np.asarray(x_support, np.float64))


def _add_k_ss(terms: _Terms, kernel: Kernel, x_support: np.ndarray, k_bar: np.ndarray, plan: Plan) -> _Terms:
    """The terms, and those of K_ss: a pass in which the support points are the targets as well."""
    # The inverse needs K_ss in float64; its pullback does not: in float32 it errs no more than the tiles' own (measured
    # 1e-5 to 1e-4 of the gradient at 100 to 1,500 points), and in half the time.
    k_bar = k_bar.astype(x_support.dtype)

    def visit(tile: Tile) -> _Terms:
        _, pull = kernel.vjp(x_support, tile.x)
        cotangent = np.zeros((len(k_bar), len(tile.x)), k_bar.dtype)
        cotangent[:, : tile.valid] = k_bar[:, tile.start : tile.start + tile.valid]
        x_bar, params_bar = pull(cotangent)
        # X_s is both arguments of K_ss, the hyper-parameters enter once.
        return _Terms(0.0, np.zeros_like(terms.beta), 2 * x_bar, jax.tree.map(float, params_bar))

    most = min(plan.tile or len(k_bar), -(-len(k_bar) // SIDE_BY_SIDE)) if kernel.concurrent else plan.tile
    return terms + plan.executor(visit, replace(plan, tile=most).tiles(x_support, None, len(k_bar)), _add)


def predict(kernel: Kernel, x_support: np.ndarray, alpha: np.ndarray, x: np.ndarray, plan: Plan = Plan()) -> np.ndarray:
    """K(x, X_s) α, tile by tile."""
    plan = plan.side_by_side(kernel, x_support, len(x))
    alpha = np.asarray(alpha, x_support.dtype)

    def visit(tile: Tile) -> list[np.ndarray]:
        return [(kernel.gram(x_support, tile.x).T @ alpha)[: tile.valid]]

    return np.concatenate(plan.executor(visit, plan.tiles(x, None, len(x_support)), _add))


def coefficients(kernel: Kernel, x_support: np.ndarray, y_support: np.ndarray, ridge: Ridge) -> np.ndarray:
    """α = A⁻¹ y_s, all that prediction needs beside X_s."""
    with calm_threads(len(x_support)):
        return Factor(_k_ss(kernel, x_support), ridge).solve(y_support)
