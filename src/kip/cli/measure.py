"""What a finished set is worth: its test accuracy, scored once, beside what would have been used instead."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from kip import baselines, epsilon
from kip.api import Task
from kip.artefact import DistilledSet
from kip.baselines import Outcome
from kip.cli.progress import Interrupt, say, working
from kip.data import Dataset
from kip.kernels import Kernel
from kip.kernels.inner import InnerProductKernel
from kip.krr import accuracy, mean_square_loss
from kip.large import DIRECT_LIMIT
from kip.sets import one_hot
from kip.stream import coefficients, predict

DRAWS = 20
PATIENCE = 60.0
"""Seconds that random draws may take before there are fewer of them; the full training set may take as long again."""


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    accuracy: float
    deviation: float | None
    points: int
    ratio: float
    epsilon: float | None


@dataclass(frozen=True)
class Measured:
    """The measurements as `metrics.json` has them, and as lines of a table."""

    metrics: dict[str, Any]
    rows: tuple[Row, ...]

    def headline(self) -> dict[str, Any]:
        """What goes into the distilled set itself."""
        names = ("test_accuracy", "train_loss", "validation_accuracy", "compression_ratio", "epsilon_weak")
        return {name: self.metrics[name] for name in names if self.metrics.get(name) is not None}

    def table(self, title: str, kind: str) -> Table:
        """The comparison, for a terminal of 80 columns."""
        table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", min_width=60)
        table.add_column("")
        for heading in ("test accuracy", kind, "compression", "weak ε"):
            table.add_column(heading, justify="right")
        for i, row in enumerate(self.rows):
            spread = "" if row.deviation is None else f" ± {100 * row.deviation:.1f}"
            table.add_row(
                row.name,
                f"{100 * row.accuracy:.2f}{spread} %",
                f"{row.points:,}",
                f"{row.ratio:,.0f}×",
                "–" if row.epsilon is None else f"{row.epsilon:.3f}",
                style="bold green" if i == 0 else None,
            )
        return table


def measure(
    small: DistilledSet, title: str, task: Task, dataset: Dataset, draws: int | None, full: bool, interrupt: Interrupt
) -> Measured:
    """Score `small`, called `title`, on the test and training sets, and what one would use instead on the test set.

    After an interrupt only the set itself is scored.
    """
    with working("scoring the test set"):
        start = time.monotonic()
        scores = small.scores(dataset.x_test)
        scoring = time.monotonic() - start
        train_loss = _train_loss(small, task)
        fitting = time.monotonic() - start - scoring
    reached = accuracy(scores, dataset.y_test)
    others: dict[str, Outcome] = {}
    if draws != 0 and not interrupt():
        others = _others(task, dataset, draws, scoring, fitting, interrupt)
    whole = _full(task, dataset, full, scoring, interrupt) if draws != 0 or full else None
    ratio = task.original_size / len(small)
    y_test = one_hot(dataset.y_test, len(dataset.classes))
    epsilon_weak = None if whole is None else epsilon.weak(whole.scores, scores, y_test)
    metrics = {
        "test_accuracy": reached,
        "train_loss": train_loss,
        **_validation(small, task),
        "baselines": _baseline_metrics(others, whole),
        "compression_ratio": ratio,
        "epsilon_weak": epsilon_weak,
        "size": len(small),
        "original_size": task.original_size,
        "test_size": len(dataset.x_test),
    }
    rows = [Row(title, reached, None, len(small), ratio, epsilon_weak)]
    rows += [_row(TITLES[name], outcome, whole, len(small), ratio) for name, outcome in others.items()]
    if whole is not None:
        used = len(task.problem.train)
        rows.append(Row("full training set", whole.mean, None, used, task.original_size / used, 0.0))
    return Measured(metrics, tuple(rows))


TITLES = {
    "random_subset": "random subset",
    "label_solve": "  its labels solved",
    "kmeans": "k-means centroids",
}


def _others(
    task: Task, dataset: Dataset, draws: int | None, scoring: float, fitting: float, interrupt: Interrupt
) -> dict[str, Outcome]:
    """Each baseline in turn, until interrupted; fewer draws where one takes long."""

    def drawn(seconds: float) -> int:
        return draws or max(3, min(DRAWS, math.floor(PATIENCE / max(seconds, 1e-9))))

    x, codes = dataset.x_test, dataset.y_test
    plan: dict[str, tuple[str, Callable[[], Outcome]]] = {
        "random_subset": (
            "random subsets",
            lambda: baselines.random_subset(task, x, codes, draws=drawn(scoring)),
        ),
        "label_solve": (
            "random subsets with solved labels",
            lambda: baselines.label_solved(task, x, codes, draws=drawn(scoring + fitting)),
        ),
        "kmeans": ("k-means centroids", lambda: baselines.kmeans(task, x, codes)),
    }
    found: dict[str, Outcome] = {}
    for name, (words, compute) in plan.items():
        if interrupt():
            break
        with working(f"comparing with {words}"):
            found[name] = compute()
    return found


def _full(task: Task, dataset: Dataset, full: bool, scoring: float, interrupt: Interrupt) -> Outcome | None:
    """The model on the whole training set, where it is asked for or takes little time."""
    if interrupt():
        return None
    points = len(task.problem.train)
    if not full and not _within_reach(task, dataset, scoring):
        say(f"  (the full training set of {points:,} points is out of quick reach: --full measures it, and ε)")
        return None
    with working("comparing with the full training set"):
        return baselines.full_training_set(
            task, dataset.x_test, dataset.y_test, reach=max(points, DIRECT_LIMIT) if full else DIRECT_LIMIT
        )


def _within_reach(task: Task, dataset: Dataset, scoring: float) -> bool:
    points, tests = len(task.problem.train), len(dataset.x_test)
    if points > DIRECT_LIMIT:
        return False
    if all(isinstance(kernel, InnerProductKernel) for kernel in task.config.kernels):
        return True
    seconds_a_pair = scoring / (task.config.size * tests)
    return seconds_a_pair * points * (points / 2 + tests) < PATIENCE


def _train_loss(small: DistilledSet, task: Task) -> float:
    """Eq. (loss) per target over the whole unaugmented training set, averaged over the family."""
    train = task.problem.train
    losses = []
    for kernel in small.kernels:
        alpha = coefficients(kernel, small.x, small.y, small.ridge)
        losses.append(mean_square_loss(predict(kernel, small.x, alpha, train.x, task.config.plan), train.y))
    return float(np.mean(losses))


def _validation(small: DistilledSet, task: Task) -> dict[str, float]:
    if task.validation is None:
        return {}
    return {"validation_accuracy": validation_accuracy(task, small.kernels, small.x, small.y)}


def validation_accuracy(task: Task, kernels: tuple[Kernel, ...], x: np.ndarray, y: np.ndarray) -> float:
    """Accuracy on the validation split of a model on the support set (x, y)."""
    assert task.validation is not None
    ridge, plan = task.config.ridge, task.config.plan
    scores = [predict(k, x, coefficients(k, x, y, ridge), task.validation.x, plan) for k in kernels]
    return accuracy(np.mean(scores, axis=0), task.validation.codes)


def _row(title: str, outcome: Outcome, whole: Outcome | None, size: int, ratio: float) -> Row:
    away = None if whole is None else float(np.mean(np.abs(np.array(outcome.accuracies) - whole.mean)))
    deviation = outcome.std if len(outcome.accuracies) > 1 else None
    return Row(title, outcome.mean, deviation, size, ratio, away)


def _baseline_metrics(others: dict[str, Outcome], whole: Outcome | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, outcome in others.items():
        found[name] = {"test_accuracy": outcome.mean}
        if len(outcome.accuracies) > 1:
            found[name] |= {"test_accuracy_std": outcome.std, "draws": len(outcome.accuracies)}
    if whole is not None:
        found["full"] = {"test_accuracy": whole.mean}
    return found
