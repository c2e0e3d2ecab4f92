"""A short calibration: pieces of a run timed on this machine, at the sizes asked for or near them.

Points are random, since times do not depend on them. Every function gets its clock handed in.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from kip import kip as algorithm
from kip.data.preprocess import fit
from kip.kernels import Kernel
from kip.kernels.inner import InnerProductKernel
from kip.kip import Config, Problem, State
from kip.krr import calm_threads
from kip.labels import fold
from kip.plan import FRESH, Pace, Rates, Work
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet, aligned_empty, one_hot
from kip.stream import coefficients, predict

Clock = Callable[[], float]

MOST_SUPPORT = 1000
"""Points of a support set that are measured as they are; from there on products and factors only grow."""

LONG = 0.25
"""Seconds that one measurement of a convolutional kernel should take, about: enough to be told from overheads."""

REPEATS, PATIENCE = 4, 0.6
"""A call is timed so often at most, and no longer than so many seconds after the first; the best counts."""

ORDER, SAMPLE, POINTS, CENTROIDS, PASSES = 300, 16 * 2**20, 2048, 4, 50
"""The order of dense matrices, bytes of points; for k-means points, centroids, and the passes that it makes."""


@dataclass(frozen=True)
class Points:
    """What the points of a run are like."""

    shape: tuple[int, ...]
    dtype: str
    raw_dtype: str
    preprocess: str
    augment: str


def timed(call: Callable[[], Any], clock: Clock) -> tuple[float, float]:
    """Seconds of a first call and of the best of those after it."""
    start = clock()
    call()
    first, best, spent = clock() - start, float("inf"), 0.0
    for _ in range(REPEATS):
        start = clock()
        call()
        took = max(clock() - start, 1e-9)
        best, spent = min(best, took), spent + took
        if spent > PATIENCE:
            break
    return first, best


def measure_rates(kernel: Kernel, work: Work, points: Points, clock: Clock) -> Rates:
    """The rates of `kernel`; convolutional ones at sizes that grow until a step takes long enough to be trusted."""
    if isinstance(kernel, InnerProductKernel):
        support = max(work.classes, min(work.support, MOST_SUPPORT))
        return _rates(kernel, work, points, support, work.rows, clock)
    found = None
    for support, rows in _growing(work):
        found = _rates(kernel, work, points, support, rows, clock)
        if found.step + found.tile > LONG:
            break
    assert found is not None
    return found


def _growing(work: Work) -> Iterator[tuple[int, int]]:
    """Support points and rows of a tile, from few to those asked for."""
    most = max(work.support, work.classes)
    support, rows = min(most, max(10, work.classes)), min(work.rows, 32)
    yield support, rows
    while (support, rows) != (most, work.rows):
        if rows < work.rows and (rows < 16 * support or support == most):
            rows = min(work.rows, 4 * rows)
        else:
            support = min(most, 4 * support)
        yield support, rows


def _rates(kernel: Kernel, work: Work, points: Points, support: int, rows: int, clock: Clock) -> Rates:
    bench = _Bench(kernel, work, points, support, rows)
    first_step, one = timed(bench.step_on(rows), clock)
    _, two = timed(bench.step_on(2 * rows), clock)
    tile = max(two - one, 0.1 * one)
    first_system, system = timed(bench.coefficients, clock)
    first_forward, forward = timed(bench.forward, clock)
    first = first_step - one + first_system - system + first_forward - forward
    pairs = not isinstance(kernel, InnerProductKernel)
    return Rates(support, rows, max(one - tile, 0.0), tile, forward, system, max(first, 0.0), pairs)


class _Bench:
    """A problem of random points, small enough to be timed."""

    def __init__(self, kernel: Kernel, work: Work, points: Points, support: int, rows: int) -> None:
        self.kernel, self.work, self.points, self.rows = kernel, work, points, rows
        self.rng = np.random.default_rng(0)
        self.config = Config(
            (kernel,), support, 1000, algorithm.adam(0.01, 1000), labels="solved" if work.solved else "learned"
        )
        self.state = self._start(support)
        self.alpha = np.zeros((support, work.classes))

    def _start(self, support: int) -> State:
        problem = self._problem(max(support, self.work.classes))
        return algorithm.init(problem, self.config, key=0)

    def _problem(self, count: int) -> Problem:
        codes = np.arange(count) % self.work.classes
        y = one_hot(codes, self.work.classes, np.dtype(self.points.dtype))
        return Problem(LabelledSet(self._images(count), y), codes, self.work.classes)

    def _images(self, count: int) -> np.ndarray:
        shape = (count, *self.points.shape)
        x = aligned_empty((count, int(np.prod(self.points.shape))), np.dtype(self.points.dtype)).reshape(shape)
        x[...] = self.rng.standard_normal(shape, np.float32)
        return x

    def step_on(self, targets: int) -> Callable[[], Any]:
        """A step on so many targets: others each time where they are augmented and the kernel remembers images."""
        fresh = self.work.augmented and not isinstance(self.kernel, InnerProductKernel)
        problems = itertools.cycle([self._problem(targets) for _ in range(REPEATS + 1 if fresh else 1)])
        return lambda: algorithm.step(self.state, next(problems), self.config)

    def coefficients(self) -> Any:
        """A⁻¹ y_s."""
        return coefficients(self.kernel, self.state.x, self.state.y, self.config.ridge)

    @property
    def forward(self) -> Callable[[], Any]:
        """Predictions of a tile that was not seen before."""
        tiles = iter([self._images(self.rows) for _ in range(REPEATS + 1)])
        return lambda: predict(self.kernel, self.state.x, self.alpha, next(tiles), self.config.plan)


def measure_pace(work: Work, points: Points, clock: Clock, drawn: float, resident: int) -> Pace:
    """What no kernel enters; `drawn` and `resident` are known from elsewhere."""
    rng = np.random.default_rng(0)
    order = min(work.size + work.classes, ORDER)
    height = max(2 * order, min(work.rows_of(work.training), work.training))
    matrix = np.asfortranarray(rng.standard_normal((height, order)))
    _, folded = timed(lambda: fold(np.zeros((order, order), order="F"), matrix.copy(order="F")), clock)
    _, svd = timed(lambda: scipy.linalg.svd(matrix[:order], full_matrices=False, check_finite=False), clock)
    prepared, applied = _preprocessing(work, points, rng, clock)
    flat = rng.standard_normal((_sample(work), work.width), np.float32)
    passes, means, seeding = _k_means(flat[:POINTS], clock)
    return Pace(
        order=order,
        rows=height,
        fold=folded,
        svd=svd,
        eigen=_eigen(work, rng, clock),
        prepared=prepared,
        augmented=_augmentation(work, points, rng, clock) + applied if work.augmented else 0.0,
        sampled=_sampling(work, flat, clock),
        touched=_touching(clock),
        passes=passes,
        means=means,
        seeding=seeding,
        drawn=drawn,
        resident=resident,
    )


def _touching(clock: Clock) -> float:
    """Seconds a byte of memory that is used for the first time: the system clears it, page by page."""
    return timed(lambda: np.ones(FRESH, np.uint8), clock)[1] / FRESH


def _sample(work: Work) -> int:
    """Points to measure on: so many that they do not stay in cache, as those of a run do not."""
    return max(256, min(4096, SAMPLE // (4 * work.width)))


def _raw(count: int, points: Points, rng: np.random.Generator) -> np.ndarray:
    return rng.integers(0, 256, (count, *points.shape)).astype(points.raw_dtype)


def _preprocessing(work: Work, points: Points, rng: np.random.Generator, clock: Clock) -> tuple[float, float]:
    """Seconds a point to fit and apply the preprocessing, and to apply it."""
    if work.whitened:
        rows = rng.standard_normal((256, work.width))
        whitening = np.ones((work.width, work.width), points.dtype)
        _, covariance = timed(lambda: rows.T @ rows, clock)
        _, applied = timed(lambda: rows.astype(points.dtype) @ whitening, clock)
        return (covariance + applied) / len(rows), applied / len(rows)
    raw = _raw(_sample(work), points, rng)
    every = np.arange(len(raw))
    fitted = fit(points.preprocess, raw, dtype=points.dtype)
    _, fitting = timed(lambda: fit(points.preprocess, raw[every], dtype=points.dtype), clock)
    _, applied = timed(lambda: fitted.apply(raw[every]), clock)
    return (fitting + applied) / len(raw), applied / len(raw)


def _eigen(work: Work, rng: np.random.Generator, clock: Clock) -> float:
    if not work.whitened:
        return 0.0
    order = min(work.width, ORDER)
    matrix = rng.standard_normal((order, order))
    return timed(lambda: scipy.linalg.eigh(matrix @ matrix.T, driver="evd", check_finite=False), clock)[1] / order**3


def _augmentation(work: Work, points: Points, rng: np.random.Generator, clock: Clock) -> float:
    from kip.data.augment import named  # here, since Numba takes long to import

    augment = named(points.augment)
    assert augment is not None
    raw = _raw(min(work.batch, _sample(work)), points, rng)
    return timed(lambda: augment(np.random.default_rng(0), raw), clock)[1] / len(raw)


def _sampling(work: Work, flat: np.ndarray, clock: Clock) -> float:
    """Seconds to draw a batch, over the number of training points it is drawn from."""
    codes = np.arange(work.training) % work.classes
    rows = np.random.default_rng(0).integers(0, len(flat), min(2 * len(flat), work.batch))
    _, drawing = timed(lambda: balanced(codes, work.classes, work.batch, key=generator(0, Stream.TARGET)), clock)
    _, taking = timed(lambda: flat[rows], clock)
    return (drawing + taking * work.batch / len(rows)) / work.training


def _k_means(flat: np.ndarray, clock: Clock) -> tuple[float, float, float]:
    """Seconds of all passes for a point, and for a point and a centroid; and of seeding for these."""
    from scipy.cluster.vq import kmeans2
    from scipy.spatial.distance import cdist

    def passes(centroids: int) -> float:
        task = functools.partial(kmeans2, flat, flat[:centroids], minit="matrix", iter=PASSES // 10)
        return 10 * timed(task, clock)[1] / len(flat)

    with calm_threads(CENTROIDS):
        one, several = passes(1), passes(CENTROIDS)
        seeding = timed(lambda: cdist(flat[:1].astype(np.float64), flat, "sqeuclidean"), clock)[1] / len(flat)
    means = max(several - one, 0.0) / (CENTROIDS - 1)
    return max(one - means, 0.0), means, seeding
