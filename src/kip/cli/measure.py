"""What a finished set is worth: its test accuracy, scored once, beside what would have been used instead."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.table import Table

from kip import baselines, epsilon
from kip.artefact import DistilledSet
from kip.baselines import Outcome
from kip.cli.cautions import idle_points
from kip.cli.progress import Interrupt, StoppedError, say
from kip.cli.watch import Watch, is_slow, pass_pairs
from kip.conjugate_gradients import DIRECT_LIMIT
from kip.data import Dataset
from kip.krr import KernelRidge, accuracy
from kip.sets import LabelledSet, one_hot
from kip.task import Task

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
        """The comparison, for `progress.show`."""
        table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
        table.add_column("")
        for heading in ("test accuracy", kind, "compression", "weak ε"):
            table.add_column(heading, justify="right", no_wrap=True)
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
    small: DistilledSet,
    title: str,
    task: Task,
    dataset: Dataset,
    draws: int | None,
    full: bool,
    interrupt: Interrupt,
    watch: Watch,
) -> Measured:
    """Score `small`, called `title`, on the test and training sets, and what one would use instead on the test set.

    After an interrupt only the set itself is scored.
    """
    model = task.model(LabelledSet(small.x, small.y), watch.kernels(small.kernels, small.x.shape[1:]))
    scores, train_loss, validation = _scored(model, task, dataset, watch)
    reached = accuracy(scores, dataset.y_test)
    comparison = _Comparison(task, dataset, watch, interrupt, watch.seconds_per_pair(model.kernels, small.x))
    others = comparison.others(draws) if draws != 0 else {}
    whole = comparison.full(full) if draws != 0 or full else None
    ratio = task.original_size / len(small)
    y_test = one_hot(dataset.y_test, len(dataset.classes))
    epsilon_weak = None if whole is None else epsilon.weak(whole.scores, scores, y_test)
    metrics = {
        "test_accuracy": reached,
        "train_loss": train_loss,
        **({} if validation is None else {"validation_accuracy": validation}),
        "baselines": _baseline_metrics(others, whole),
        "compression_ratio": ratio,
        "epsilon_weak": epsilon_weak,
        "size": len(small),
        "original_size": task.original_size,
        "test_size": len(dataset.x_test),
        "largest_label": float(np.max(np.abs(small.y))),
        "idle_points": idle_points(small.y, model.coefficients),
    }
    rows = [Row(title, reached, None, len(small), ratio, epsilon_weak)]
    rows += [_row(TITLES[name], outcome, whole, len(small), ratio) for name, outcome in others.items()]
    if whole is not None:
        used = len(task.problem.train)
        rows.append(Row("full training set", whole.mean, None, used, task.original_size / used, 0.0))
    return Measured(metrics, tuple(rows))


def _scored(model: KernelRidge, task: Task, dataset: Dataset, watch: Watch) -> tuple[np.ndarray, float, float | None]:
    """Test scores, training loss, and the accuracy on the validation split if there is one.

    An interrupt does not end this: it is little beside learning, and what a run is there for.
    """
    size, train, validation = len(model.support), task.problem.train, task.validation
    counts = [len(dataset.x_test), len(train), *([] if validation is None else [len(validation)])]
    total = sum(pass_pairs(model.kernels, size, train.x, count, task.config.execution) for count in counts)
    with watch.over("scoring the test set", is_slow(task), total):
        scores = model.predict(task.preprocess.apply(dataset.x_test))
        held_out = None if validation is None else model.accuracy(validation.x, validation.codes)
        return scores, model.loss(train), held_out


TITLES = {
    "random_subset": "random subset",
    "label_solve": "  its labels solved",
    "kmeans": "k-means centroids",
}


@dataclass(frozen=True)
class _Comparison:
    """What one would use instead, until interrupted; fewer draws where a pair of points takes long."""

    task: Task
    dataset: Dataset
    watch: Watch
    interrupt: Interrupt
    seconds_per_pair: float

    def others(self, draws: int | None) -> dict[str, Outcome]:
        """Each baseline in turn; one that an interrupt came into is left out."""
        x, codes, test, train = self.dataset.x_test, self.dataset.y_test, self._pairs_test, self._pairs_train
        few, fewer = (draws or self._drawn(count) for count in (test, test + train))
        task = self.watch.task(self.task)
        plan: dict[str, tuple[str, int, Callable[[], Outcome]]] = {
            "random_subset": (
                "random subsets",
                few * test,
                lambda: baselines.random_subset(task, x, codes, draws=few),
            ),
            "label_solve": (
                "random subsets with solved labels",
                fewer * (test + train),
                lambda: baselines.label_solved(task, x, codes, draws=fewer),
            ),
            "kmeans": ("k-means centroids", test, lambda: baselines.kmeans(task, x, codes)),
        }
        found: dict[str, Outcome] = {}
        with contextlib.suppress(StoppedError):
            for name, (words, total, compute) in plan.items():
                self.interrupt.check()
                with self.watch.over(f"comparing with {words}", is_slow(self.task), total, self.interrupt):
                    found[name] = compute()
        return found

    def full(self, asked: bool) -> Outcome | None:
        """The model on the whole training set, where it is asked for or takes little time."""
        if self.interrupt():
            return None
        points, tests = len(self.task.problem.train), len(self.dataset.x_test)
        if not asked and not self._within_reach(points, tests):
            say(f"  (the full training set of {points:,} points would take long: --full includes it, and gives ε)")
            return None
        reach = max(points, DIRECT_LIMIT) if asked else DIRECT_LIMIT
        direct = self._pairs(points, tests) if points <= DIRECT_LIMIT else None
        with (
            contextlib.suppress(StoppedError),
            self.watch.over("comparing with the full training set", is_slow(self.task), direct, self.interrupt),
        ):
            return baselines.full_training_set(
                self.watch.task(self.task), self.dataset.x_test, self.dataset.y_test, reach=reach
            )
        return None

    def _within_reach(self, points: int, tests: int) -> bool:
        if points > DIRECT_LIMIT:
            return False
        if not is_slow(self.task):
            return True
        return self.seconds_per_pair * self._pairs(points, tests) < PATIENCE

    def _drawn(self, count: int) -> int:
        return max(3, min(DRAWS, math.floor(PATIENCE / max(self.seconds_per_pair * count, 1e-9))))

    @property
    def _pairs_test(self) -> int:
        return self._pairs(self.task.config.size, len(self.dataset.x_test))

    @property
    def _pairs_train(self) -> int:
        return self._pairs(self.task.config.size, len(self.task.problem.train))

    def _pairs(self, size: int, count: int) -> int:
        config = self.task.config
        return pass_pairs(config.kernels, size, self.task.problem.train.x, count, config.execution)


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
        if not whole.converged:
            found["full"] |= {"converged": False, "residual": whole.residual}
    return found
