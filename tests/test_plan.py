"""The memory bound grows with the work, what does not fit is told what would, and steps fill a budget."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kip import plan
from kip.options import Options
from kip.plan import Expected, Pace, Work
from kip.task import outline

FLOOR = 300 * 2**20
WORK = Work(
    training=60_000,
    test=10_000,
    validation=0,
    width=784,
    classes=10,
    itemsize=4,
    raw_itemsize=1,
    size=100,
    support=100,
    batch=6_000,
    steps=600,
    evaluated=10_000,
    solved=True,
    augmented=False,
    whitened=False,
    inner=True,
    compared=True,
    full=False,
    threads=2,
)


def changed(**values: object) -> Work:
    return dataclasses.replace(WORK, **values)


GROWING = {
    "training": 90_000,
    "test": 20_000,
    "validation": 1_000,
    "width": 3_072,
    "size": 500,
    "batch": 50_000,
    "itemsize": 8,
    "augmented": True,
    "whitened": True,
    "full": True,
    "image_bytes": 4_000,
}


@pytest.mark.parametrize("name", GROWING)
def test_more_of_anything_takes_more_memory(name: str) -> None:
    more = changed(**{name: GROWING[name]})
    more = dataclasses.replace(more, support=more.size)
    assert plan.memory(more, FLOOR) > plan.memory(WORK, FLOOR)
    assert plan.disk(more) >= plan.disk(WORK)


def test_memory_holds_the_data_and_what_a_full_comparison_needs() -> None:
    assert plan.memory(WORK, FLOOR) > FLOOR + 60_000 * 784 * 4
    assert plan.memory(changed(full=True, training=9_000), FLOOR) > FLOOR + 8 * 9_000**2
    assert plan.memory(WORK, FLOOR + 7) == plan.memory(WORK, FLOOR) + 7


def test_the_shapes_are_those_of_the_run() -> None:
    x = np.zeros((50, 8, 8), np.uint8)
    given = Options(size=5, kernel="conv1", batch=20, steps=7, augment="digits", validation=0.2, preprocess="zca")
    work = Work.of(outline(x, np.arange(50) % 5, given), 30, threads=2, draws=0, full=False)
    assert (work.training, work.validation, work.test, work.batch, work.steps) == (40, 10, 30, 20, 7)
    assert (work.width, work.raw_itemsize, work.itemsize, work.classes, work.size) == (64, 1, 4, 5, 5)
    assert (work.augmented, work.whitened, work.compared, work.against_all) == (True, True, False, False)
    assert work.image_bytes > 64 * 4  # own variances of every pixel
    inner = Work.of(outline(x, np.arange(50) % 5, Options(size=5)), 30, threads=2, draws=None, full=False)
    assert (inner.image_bytes, inner.compared, inner.against_all) == (0, True, True)


@pytest.mark.parametrize(
    ("work", "limit", "words"),
    [
        (changed(batch=60_000, augmented=True), 1024, "--batch"),
        (changed(size=20_000, support=20_000), 4096, "--size"),
        (changed(training=9_000), 800, "--draws 0"),
        (changed(width=3_072, raw_itemsize=4, threads=1), 1_200, "--targets"),
        (changed(width=50_000), 8192, "--targets"),
        (changed(), 1, "machine with more memory"),
    ],
    ids=["batch", "size", "full", "targets within quick reach of the full set", "targets", "nothing"],
)
def test_what_does_not_fit_is_told_what_would(work: Work, limit: int, words: str) -> None:
    limit *= 2**20
    assert plan.memory(work, FLOOR) > limit
    advice = plan.remedy(work, FLOOR, limit)
    assert words in advice
    if words in ("--batch", "--size", "--targets"):
        smaller = plan.limited(work, words.removeprefix("--"), int(advice.split()[2]))
        assert plan.memory(smaller, FLOOR) <= limit


@given(
    budget=st.floats(0.1, 1e5),
    pace=st.builds(Pace, st.floats(1e-3, 10), st.floats(0, 10), st.just(0.0), st.floats(0, 1)),
)
def test_a_budget_is_filled_and_not_passed(budget: float, pace: Pace) -> None:
    def every(steps: int) -> int:
        return max(1, steps // 20)

    def total(steps: int) -> float:
        return pace.spent + plan.UPDATE + pace.learning(steps, every(steps))

    steps = pace.steps_within(budget, every)
    assert steps == 1 or total(steps) <= plan.BUDGET_SHARE * budget
    assert total(steps + 1) > plan.BUDGET_SHARE * budget


class Machine:
    """A clock, and a call that takes so many seconds: the first time, then each time."""

    def __init__(self, first: float, later: float) -> None:
        self.now, self.calls, self.first, self.later = 0.0, 0, first, later

    def __call__(self) -> None:
        self.now += self.later if self.calls else self.first
        self.calls += 1


@pytest.mark.parametrize(
    ("first", "later", "again", "seconds", "calls"),
    [
        (3.0, 0.25, True, 0.25, 5),
        (3.0, 2.0, True, 2.0, 2),
        (3.0, 2.0, False, 3.0, 1),
        (0.5, 0.25, False, 0.25, 5),
    ],
    ids=["short steps", "a long step", "a long evaluation", "short evaluations"],
)
def test_the_first_call_compiles_and_later_ones_are_timed(
    first: float, later: float, again: bool, seconds: float, calls: int
) -> None:
    machine = Machine(first, later)
    clock: Callable[[], float] = lambda: machine.now  # noqa: E731
    assert plan.timed(machine, clock, 1.0, again=again) == (first, seconds)
    assert machine.calls == calls


def test_predicted_stands_beside_actual() -> None:
    assert Expected(100).beside(2.0, 90) == {"peak_memory": {"predicted": 100, "actual": 90}}
    assert Expected(100, 1.5).beside(2.0, 90)["seconds"] == {"predicted": 1.5, "actual": 2.0}
