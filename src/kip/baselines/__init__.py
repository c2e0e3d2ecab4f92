"""What a person would use instead of a distilled set of the same size, scored the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kip import conjugate_gradients
from kip.krr import KernelRidge, accuracy
from kip.label_solver import solve_labels
from kip.sampling import Stream, allocate, balanced, generator
from kip.sets import LabelledSet, class_counts
from kip.task import Task
from kip.threads import blas_threads_for


@dataclass(frozen=True, eq=False)
class Outcome:
    """Test accuracies over draws, and the predicted label vectors of the last draw.

    Where a model is too large to factorise, `residual` is the largest relative residual of its iterative solve, and
    `converged` whether that is what was asked for.
    """

    accuracies: tuple[float, ...]
    scores: np.ndarray
    converged: bool = True
    residual: float | None = None

    @property
    def mean(self) -> float:
        """Mean accuracy over the draws."""
        return float(np.mean(self.accuracies))

    @property
    def std(self) -> float:
        """Standard deviation over the draws; 0 for a single one."""
        return float(np.std(self.accuracies, ddof=1)) if len(self.accuracies) > 1 else 0.0


def random_subset(task: Task, x_test: np.ndarray, codes: np.ndarray, *, draws: int = 20) -> Outcome:
    """Class-balanced random subsets with their natural labels."""
    return _over_draws(task, x_test, codes, draws, lambda draw: draw)


def label_solved(task: Task, x_test: np.ndarray, codes: np.ndarray, *, draws: int = 20) -> Outcome:
    """The same subsets with labels solved on the training set."""

    def solved(draw: LabelledSet) -> LabelledSet:
        config = task.config
        solution = solve_labels(config.kernels, draw.x, task.problem.train, config.ridge, execution=config.execution)
        return LabelledSet(draw.x, solution.y)

    return _over_draws(task, x_test, codes, draws, solved)


def kmeans(task: Task, x_test: np.ndarray, codes: np.ndarray) -> Outcome:
    """Centroids of k-means within each class, with that class's label."""
    from scipy.cluster.vq import kmeans2  # scikit-learn's is no better here, and takes a second to import

    train, classes = task.problem.train, task.problem.classes
    shares = allocate(task.config.size, class_counts(task.problem.codes, classes))
    centres, labels = [], []
    for c in np.flatnonzero(shares):
        rows = np.flatnonzero(task.problem.codes == c)
        flat = train.x[rows].reshape(len(rows), -1)
        rng = generator(task.options.seed, Stream.BASELINE, int(c))
        with blas_threads_for(int(shares[c])):
            found, _ = kmeans2(flat, _seeds(flat, int(shares[c]), rng), minit="matrix", iter=50)
        centres.append(found.astype(train.x.dtype))
        labels.append(np.repeat(train.y[rows].mean(axis=0, keepdims=True), shares[c], axis=0))
    x = np.concatenate(centres).reshape(-1, *train.x.shape[1:])
    scores = task.model(LabelledSet(x, np.concatenate(labels))).predict(task.preprocess.apply(x_test))
    return Outcome((accuracy(scores, codes),), scores)


def _seeds(flat: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """The seeds of k-means++ that SciPy would draw; which measures all distances anew for each: hours for thousands."""
    from scipy.spatial.distance import cdist

    flat = np.asarray(flat, np.float64)
    chosen = [int(rng.integers(len(flat)))]
    nearest = np.full(len(flat), np.inf)
    while len(chosen) < count:
        np.minimum(nearest, cdist(flat[chosen[-1:]], flat, "sqeuclidean")[0], out=nearest)
        total = nearest.sum()
        # Where all points left are copies of seeds any will do.
        drawn = np.searchsorted((nearest / total).cumsum(), rng.uniform()) if total > 0 else rng.integers(len(flat))
        chosen.append(min(int(drawn), len(flat) - 1))
    return flat[chosen]


def full_training_set(
    task: Task,
    x_test: np.ndarray,
    codes: np.ndarray,
    *,
    reach: int = conjugate_gradients.DIRECT_LIMIT,
    progress: Callable[[int, float], None] | None = None,
) -> Outcome | None:
    """KRR on the whole training set, A_D; None where it has more than `reach` points."""
    train, config = task.problem.train, task.config
    if len(train) > reach:
        return None
    x = task.preprocess.apply(x_test)
    if len(train) <= conjugate_gradients.DIRECT_LIMIT:
        scores = task.model(train).predict(x)
        return Outcome((accuracy(scores, codes),), scores)
    fits = [conjugate_gradients.fit(kernel, train, config.ridge, progress=progress) for kernel in config.kernels]
    solved = [fit.alpha for fit in fits]
    scores = KernelRidge(config.kernels, train, config.ridge, config.execution, solved).predict(x)
    converged, residual = all(fit.converged for fit in fits), max(fit.residual for fit in fits)
    return Outcome((accuracy(scores, codes),), scores, converged, residual)


def _over_draws(
    task: Task, x_test: np.ndarray, codes: np.ndarray, draws: int, label: Callable[[LabelledSet], LabelledSet]
) -> Outcome:
    x = task.preprocess.apply(x_test)
    accuracies, scores = [], np.empty(0)
    for draw in range(draws):
        rng = generator(task.options.seed, Stream.BASELINE, draw)
        rows = balanced(task.problem.codes, task.problem.classes, task.config.size, key=rng)
        scores = task.model(label(task.problem.train.take(rows))).predict(x)
        accuracies.append(accuracy(scores, codes))
    return Outcome(tuple(accuracies), scores)
