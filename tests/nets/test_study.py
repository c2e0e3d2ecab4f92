"""What networks are compared on: the run's own split recreated, natural draws, and noise put on both alike."""

from __future__ import annotations

import numpy as np
import pytest

import kip
from kip.data import load
from kip.nets import study
from kip.nets.grid import Arm, Examiner, best, search, settings_of, within
from kip.nets.training import Settings
from kip.sampling import Stream, generator
from kip.sets import LabelledSet, one_hot


@pytest.fixture(scope="module")
def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    data = load("digits")
    return (data.x_train, data.y_train), (data.x_test, data.y_test)


def prepared(digits: tuple, **options: float) -> tuple[kip.DistilledSet, study.Study]:
    (x, y), test = digits
    small = kip.distill(x, y, size=10, steps=1, **options)
    return small, study.prepare(small, (x, y), test, seeds=2)


def test_the_split_is_the_one_that_distillation_held_out(digits: tuple) -> None:
    (x, y), _ = digits
    small, found = prepared(digits, validation=0.2, seed=3)
    rng, unseen = generator(3, Stream.EVALUATE, 1), []
    for c in range(10):
        members = rng.permutation(np.flatnonzero(y == c))
        unseen += members[: int(0.2 * len(members))].tolist()
    assert found.held_out
    assert len(found.watch) == len(unseen)
    assert len(found.train) == len(x) - len(unseen)
    np.testing.assert_array_equal(found.watch.x, small.preprocess.apply(x[np.sort(unseen)]))


def test_a_run_that_held_nothing_out_says_so(digits: tuple) -> None:
    _, found = prepared(digits)
    assert not found.held_out
    assert 0.05 < len(found.watch) / len(digits[0][0]) < 0.11


def test_an_empty_validation_split_is_refused(digits: tuple) -> None:
    with pytest.raises(ValueError, match=r"validation split is empty: 0\.10% of no class is a whole point"):
        prepared(digits, validation=0.001)


def test_other_data_than_were_distilled_are_refused(digits: tuple) -> None:
    """Of as many points as there are, whatever --targets left of them; the split of others would be another."""
    (x, y), test = digits
    small, _ = prepared(digits, targets=200)
    with pytest.raises(ValueError, match=f"data of {len(x):,} points, held-out ones included, but there are 1,000"):
        study.prepare(small, (x[:1000], y[:1000]), test)


def test_arms_of_a_clean_and_of_a_corrupted_set(digits: tuple) -> None:
    small, clean = prepared(digits)
    assert [arm.name for arm in clean.arms] == ["distilled", "natural"]
    small, noisy = prepared(digits, corruption=0.9)
    arms = {arm.name: arm for arm in noisy.arms}
    assert list(arms) == ["distilled corrupted", "natural", "natural corrupted"]
    np.testing.assert_array_equal(arms["distilled corrupted"].supports[0].x, small.x)
    assert small.certificate().holds
    for before, after in zip(arms["natural"].supports, arms["natural corrupted"].supports, strict=True):
        changed = (before.x != after.x).reshape(10, -1).sum(axis=1)
        assert set(changed) <= {int(np.ceil(0.9 * 64)), int(np.ceil(0.9 * 64)) - 1}
        assert np.abs(after.x[before.x != after.x]).max() <= 1
        np.testing.assert_array_equal(before.y, after.y)
    (x, y), test = digits
    with pytest.raises(ValueError, match="learned with"):
        study.prepare(small, (x, y), test, corruption=0.5)


def blobs(points: int, seed: int) -> LabelledSet:
    codes = np.arange(points) % 3
    x = np.random.default_rng(seed).normal(size=(points, 4)) + 2 * np.eye(3, 4)[codes]
    return LabelledSet(x.astype(np.float32), one_hot(codes, 3))


def test_the_grid_is_the_same_for_all_arms_and_stops_evenly() -> None:
    base = Settings(steps=4, width=8)
    grid = settings_of("fc1", base)
    assert grid[0] == base
    assert len(grid) == len(set(grid)) == 24
    assert len(settings_of("lenet", base, ["xent"])) == 6
    arms = [Arm("one", (blobs(9, 0),)), Arm("two", (blobs(9, 1), blobs(9, 2)))]
    examine = Examiner("fc1", blobs(30, 3), blobs(30, 4), 2)
    calls = iter([False, True])
    points = search(arms, grid, examine, range(2), late=lambda _: next(calls))
    assert [point.settings for point in points] == grid[:2]
    assert all(set(point.arms) == {"one", "two"} for point in points)
    values = [point.arms["one"].validation_accuracy for point in points]
    assert best(points, "one") == points[int(np.argmax(values))].settings
    with pytest.raises(ValueError, match="not kept"):
        points[0].arms["one"].predict(blobs(3, 5).x)


def test_a_search_leaves_time_for_the_last_training() -> None:
    """Points of 10 s, and five times that for all seeds: in 100 s five points are done, and the last training."""
    now = [0.0]
    late = within(100, 5, lambda: now[0])
    done = 0
    while not (done and late(done)):
        done, now[0] = done + 1, now[0] + 10
    assert done == 5
