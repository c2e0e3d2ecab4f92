"""The full training set as a baseline: a model that is too large to factorise says how far its solve got."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from kip import baselines, conjugate_gradients
from kip.options import Options
from kip.task import Task, prepare


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(90, 4)) + 2 * np.repeat(np.eye(3, 4), 30, axis=0), np.repeat([0, 1, 2], 30)


@pytest.fixture
def task(data: tuple[np.ndarray, np.ndarray]) -> Task:
    return prepare(*data, Options(size=3, kernel="rbf+fc1", ridge=1e-3, dtype="float64", steps=1))


def test_a_model_that_is_factorised_has_no_residual(task: Task, data: tuple[np.ndarray, np.ndarray]) -> None:
    full = baselines.full_training_set(task, *data)
    assert full is not None
    assert (full.converged, full.residual) == (True, None)


def test_the_iterative_model_predicts_as_the_factorised(
    task: Task, data: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = baselines.full_training_set(task, *data)
    monkeypatch.setattr(conjugate_gradients, "DIRECT_LIMIT", 10)
    iterated = baselines.full_training_set(task, *data, reach=100)
    assert direct is not None
    assert iterated is not None
    assert iterated.converged
    assert iterated.residual is not None
    assert 0 < iterated.residual <= conjugate_gradients.DEFAULT_TOLERANCE
    np.testing.assert_allclose(iterated.scores, direct.scores, atol=1e-2)


def test_a_solve_that_was_cut_short_says_so(
    task: Task, data: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conjugate_gradients, "DIRECT_LIMIT", 10)
    short = functools.partial(conjugate_gradients.fit, rank=3, most_iterations=1)
    monkeypatch.setattr(conjugate_gradients, "fit", short)
    full = baselines.full_training_set(task, *data, reach=100)
    assert full is not None
    assert not full.converged
    assert full.residual is not None
    assert full.residual > conjugate_gradients.DEFAULT_TOLERANCE
