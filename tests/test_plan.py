"""Predictions grow with the work as the work does, budgets are filled, and what does not fit is told what would."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kip import plan
from kip.plan import Pace, Rates, Work

WORK = Work(
    training=60_000,
    test=10_000,
    validation=0,
    width=784,
    classes=10,
    itemsize=4,
    raw_itemsize=1,
    original=60_000,
    size=100,
    support=100,
    batch=6_000,
    steps=600,
    judge_every=30,
    judging=10_000,
    solved=True,
    augmented=False,
    whitened=False,
    draws=3,
    most_draws=20,
    patience=60.0,
    full=False,
    save_every=10.0,
)
RATES = Rates(support=100, rows=2000, step=0.002, tile=0.01, forward=0.004, system=0.001, first=2.0, pairs=False)
PACE = Pace(
    order=110,
    rows=2000,
    fold=0.01,
    svd=0.003,
    eigen=1e-9,
    prepared=3e-6,
    augmented=1e-5,
    sampled=1e-7,
    touched=1e-9,
    means=2e-5,
    passes=1e-6,
    seeding=1e-7,
    drawn=1.0,
    resident=300 * 2**20,
)


def changed(**values: object) -> Work:
    return dataclasses.replace(WORK, **values)


def test_a_run_of_the_size_that_was_measured_takes_what_was_measured() -> None:
    assert plan.step_seconds(WORK, [RATES], PACE) == pytest.approx(0.002 + 3 * 0.01 + 60_000 * 1e-7)
    predicted = plan.predict(WORK, [RATES], PACE)
    assert predicted.learning == pytest.approx(2.0 + 600 * predicted.step + 20 * predicted.judgement)
    assert predicted.seconds == pytest.approx(
        predicted.preparing + predicted.learning + predicted.publishing + predicted.measuring
    )
    assert plan.predict(WORK, [RATES], PACE, compiled=True).learning == pytest.approx(predicted.learning - 2.0)


def test_targets_count_by_tiles() -> None:
    one, two = (plan.step_seconds(changed(batch=batch), [RATES], PACE) for batch in (6_000, 12_000))
    assert two - one == pytest.approx(3 * 0.01)


def test_a_convolutional_kernel_counts_pairs() -> None:
    rates = dataclasses.replace(RATES, pairs=True, support=10, rows=32)
    work = changed(size=200, support=200, solved=False)
    tiles = -(-work.batch // work.rows)
    expected = 0.002 * 20**2 + tiles * 0.01 * 20 * work.rows / 32
    assert plan.step_seconds(work, [rates], PACE) == pytest.approx(expected + 60_000 * 1e-7)


def test_of_a_family_a_step_takes_one_and_a_judgement_all() -> None:
    quick = dataclasses.replace(RATES, step=0.0, tile=0.0)
    both = plan.step_seconds(WORK, [RATES, quick], PACE)
    overhead = 60_000 * 1e-7
    assert both - overhead == pytest.approx((plan.step_seconds(WORK, [RATES], PACE) - overhead) / 2)
    learned = changed(solved=False)
    assert plan.judgement_seconds(learned, [RATES, RATES], PACE) == pytest.approx(
        2 * plan.judgement_seconds(learned, [RATES], PACE)
    )


GROWING = {
    "training": 90_000,
    "test": 20_000,
    "validation": 1_000,
    "width": 3_072,
    "size": 500,
    "batch": 20_000,
    "augmented": True,
    "whitened": True,
}


@pytest.mark.parametrize("name", GROWING)
def test_more_of_anything_takes_no_less(name: str) -> None:
    more = changed(**{name: GROWING[name]})
    more = dataclasses.replace(more, support=more.size)
    least, most = (plan.predict(work, [RATES], PACE) for work in (WORK, more))
    assert most.memory >= least.memory
    assert most.seconds >= least.seconds
    assert most.disk >= least.disk


def test_memory_holds_the_data_and_what_a_full_comparison_needs() -> None:
    raw, prepared = 70_000 * 784, 60_000 * 784 * 4
    assert plan.memory(WORK, PACE) > PACE.resident + raw + prepared
    assert plan.memory(changed(full=True, training=9_000), PACE) > 8 * 9_000**2


@given(budget=st.floats(0.1, 1e5))
def test_a_budget_is_filled_and_not_passed(budget: float) -> None:
    def every(steps: int) -> int:
        return max(1, steps // 20)

    def learning(steps: int) -> float:
        work = changed(steps=steps, judge_every=every(steps))
        return plan.predict(work, [RATES], PACE).learning

    steps = plan.steps_within(budget, WORK, [RATES], PACE, every, compiled=False)
    assert steps == 1 or learning(steps) <= plan.BUDGET_SHARE * budget
    assert learning(steps + max(2, steps // 4)) > 0.8 * plan.BUDGET_SHARE * budget


@pytest.mark.parametrize(
    ("work", "limit", "words"),
    [
        (changed(batch=60_000, augmented=True), 1024, "--batch"),
        (changed(size=20_000, support=20_000), 4096, "--size"),
        (changed(training=9_000, full=True), 800, "--draws 0"),
        (changed(width=50_000), 8192, "--targets"),
        (changed(), 1, "machine with more memory"),
    ],
    ids=["batch", "size", "full", "targets", "nothing"],
)
def test_what_does_not_fit_is_told_what_would(work: Work, limit: int, words: str) -> None:
    limit *= 2**20
    assert plan.memory(work, PACE) > limit
    advice = plan.remedy(work, PACE, limit)
    assert words in advice
    option = {"--batch": "batch", "--size": "size", "--targets": "training"}.get(words)
    if option is not None:
        value = int(advice.split()[2])
        assert plan.memory(plan._with(work, option, value), PACE) <= limit
