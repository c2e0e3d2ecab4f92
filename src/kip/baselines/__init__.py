"""What a person would use instead of a distilled set of the same size, scored the same way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import threadpoolctl

from kip import conjugate_gradients
from kip.krr import KernelRidge, accuracy
from kip.label_solver import solve_labels
from kip.sampling import Stream, allocate, balanced, generator
from kip.sets import LabelledSet, class_counts
from kip.task import Task

KMEANS_ITERATIONS = 50


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
    problem = task.problem
    support = centroids(problem.train, problem.codes, problem.classes, task.config.size, seed=task.options.seed)
    scores = task.model(support).predict(task.preprocess.apply(x_test))
    return Outcome((accuracy(scores, codes),), scores)


def centroids(train: LabelledSet, codes: np.ndarray, classes: int, size: int, *, seed: int) -> LabelledSet:
    """`size` centroids of k-means, as many per class as the class counts allow, with the mean label of their class."""
    shares = allocate(size, class_counts(codes, classes))
    parts = [
        _class_centroids(train.take(np.flatnonzero(codes == c)), int(shares[c]), _seed(seed, int(c)))
        for c in np.flatnonzero(shares)
    ]
    return LabelledSet(np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts]))


def _seed(seed: int, c: int) -> int:
    return int(generator(seed, Stream.BASELINE, c).integers(2**31))


def _class_centroids(members: LabelledSet, count: int, seed: int) -> LabelledSet:
    from sklearn.cluster import KMeans  # here, since it takes a second to import
    from sklearn.exceptions import ConvergenceWarning

    flat = members.x.reshape(len(members), -1)
    model = KMeans(count, n_init=1, max_iter=KMEANS_ITERATIONS, random_state=seed)
    # Several threads add up their partial sums in whichever order they finish, and rounding would depend on it.
    with threadpoolctl.threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # copies of a point give equal centroids, which is right
        found = model.fit(flat).cluster_centers_
    x = found.astype(members.x.dtype).reshape(count, *members.x.shape[1:])
    return LabelledSet(x, np.repeat(members.y.mean(axis=0, keepdims=True), count, axis=0))


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
