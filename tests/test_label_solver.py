"""Label Solve: zero gradient, minimum norm, families, and every shape of problem, against NumPy's pseudo-inverse."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
from tests.test_gradients import as_a_tree
from tests.tolerances import assert_close

import kip
from kip.execution import Execution
from kip.gradients import gradients
from kip.krr import KernelRidge, Ridge
from kip.label_solver import solve_labels
from kip.sets import LabelledSet

RIDGE = Ridge(1e-2)


def problem(n_s: int, n_t: int, d: int = 6, c: int = 3, seed: int = 0) -> tuple[np.ndarray, LabelledSet]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n_s, d)), LabelledSet(rng.normal(size=(n_t, d)), rng.normal(size=(n_t, c)))


def operator(spec: str, x_support: np.ndarray, targets: LabelledSet, ridge: Ridge = RIDGE) -> np.ndarray:
    """K_ts A⁻¹, by NumPy."""
    kernel = kip.kernel(spec)
    k_ss = kernel.gram(x_support)
    a = k_ss + ridge.of(k_ss) * np.eye(len(k_ss))
    return kernel.gram(targets.x, x_support) @ (np.linalg.inv(a) if ridge.value else np.linalg.pinv(k_ss, rcond=1e-10))


# n_t just above n_s leaves fewer rows than [K_ts | y_t] has columns
@pytest.mark.parametrize(("n_s", "n_t"), [(5, 40), (5, 6), (5, 8), (5, 9), (8, 8), (20, 7), (20, 1)])
@pytest.mark.parametrize("spec", ["rbf", "fc1"])
def test_labels_are_those_of_the_pseudo_inverse(spec: str, n_s: int, n_t: int) -> None:
    x, targets = problem(n_s, n_t)
    found = solve_labels([kip.kernel(spec)], x, targets, RIDGE)
    m = operator(spec, x, targets)
    expected = np.linalg.pinv(m) @ targets.y
    assert found.rank == min(n_s, n_t)
    assert_close(found.y, expected, "gradient")
    assert_close(found.loss, 0.5 * np.sum((m @ expected - targets.y) ** 2) / n_t, "gradient", scale=1)


@pytest.mark.parametrize("kernels", [["rbf"], ["rbf", "fc1"]])
@pytest.mark.parametrize("coincide", [False, True])
def test_many_points_give_the_same_labels_without_their_spectrum(
    kernels: list[str], coincide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, targets = problem(30, 80)
    if coincide:  # a singular value of zero, which must still be cut off
        x[1] = x[0]
    family = [kip.kernel(name) for name in kernels]
    expected = solve_labels(family, x, targets, RIDGE)
    spectra = []
    monkeypatch.setattr("kip.label_solver.SPECTRUM_LIMIT", 10)
    monkeypatch.setattr(scipy.linalg, "svd", lambda a, svd=scipy.linalg.svd, **how: spectra.append(a) or svd(a, **how))
    found = solve_labels(family, x, targets, RIDGE)
    assert len(spectra) == coincide
    assert found.rank == expected.rank == 30 - coincide
    assert_close(found.y, expected.y, "gradient")
    assert_close(found.loss, expected.loss, "value")


def test_the_gradient_is_zero_at_the_solution_and_the_loss_is_lower_than_elsewhere() -> None:
    x, targets = problem(6, 50)
    kernel = kip.kernel("rbf")
    found = solve_labels([kernel], x, targets, RIDGE)
    at = gradients(kernel, LabelledSet(x, found.y), targets, RIDGE)
    assert at.y is not None
    away = gradients(kernel, LabelledSet(x, np.zeros_like(found.y)), targets, RIDGE)
    assert away.y is not None
    assert np.abs(at.y).max() < 1e-10 * np.abs(away.y).max()
    assert_close(found.loss, at.loss_per_target, "value")
    rng = np.random.default_rng(1)
    for _ in range(5):
        moved = LabelledSet(x, found.y + 0.01 * rng.normal(size=found.y.shape))
        other = gradients(kernel, moved, targets, RIDGE)
        assert other.loss > at.loss


@pytest.mark.parametrize("n_t", [40, 7])
def test_minimum_norm_where_the_problem_is_rank_deficient(n_t: int) -> None:
    """Twins in the support set, and a linear kernel of rank d: many labels fit alike, the smallest are given."""
    x, targets = problem(4, n_t, d=3)
    x = np.concatenate([x, x])
    for spec in ("rbf", "linear"):
        found = solve_labels([kip.kernel(spec)], x, targets, RIDGE)
        m = operator(spec, x, targets)
        expected = np.linalg.pinv(m, rcond=1e-9) @ targets.y
        assert found.rank == np.linalg.matrix_rank(m, tol=1e-9 * np.linalg.norm(m, 2))
        assert_close(found.y, expected, "gradient")


def test_zero_ridge_uses_the_pseudo_inverse() -> None:
    x, targets = problem(8, 40, d=4)
    found = solve_labels([kip.kernel("linear")], x, targets, Ridge(0.0))
    expected = np.linalg.pinv(operator("linear", x, targets, Ridge(0.0)), rcond=1e-9) @ targets.y
    assert_close(found.y, expected, "gradient")


@pytest.mark.parametrize(("n_s", "n_t"), [(6, 50), (6, 8), (30, 10)])
def test_a_family_is_solved_jointly(n_s: int, n_t: int) -> None:
    x, targets = problem(n_s, n_t)
    specs = ["rbf", "fc1", "linear"]
    found = solve_labels(kip.family(specs), x, targets, RIDGE)
    stacked = np.concatenate([operator(spec, x, targets) for spec in specs])
    y = np.concatenate([targets.y] * len(specs))
    expected = np.linalg.pinv(stacked, rcond=found.cutoff) @ y
    assert_close(found.y, expected, "gradient")
    assert_close(found.loss, 0.5 * np.sum((stacked @ expected - y) ** 2) / len(y), "gradient", scale=1)


@pytest.mark.parametrize("n_s", [6, 50])
def test_tiles_and_executor_change_nothing(n_s: int) -> None:
    x, targets = problem(n_s, 100)
    whole = solve_labels([kip.kernel("rbf")], x, targets, RIDGE, execution=Execution(tile=100))
    for how in (*(Execution(tile=n) for n in (1, 16, 64)), Execution(tile=16, executor=as_a_tree)):
        found = solve_labels([kip.kernel("rbf")], x, targets, RIDGE, execution=how)
        assert_close(found.y, whole.y, "gradient")
        assert_close(found.loss, whole.loss, "gradient")
        assert found.rank == whole.rank


def test_the_cutoff_fits_the_dtype_and_is_reported() -> None:
    x, targets = problem(6, 50)
    kernel = kip.kernel("rbf")
    double = solve_labels([kernel], x, targets)
    single = solve_labels([kernel], x.astype("f"), LabelledSet(targets.x.astype("f"), targets.y.astype("f")))
    assert 16 * np.finfo(np.float64).eps < double.cutoff < 1e-7  # the condition of A, at most n/λ, is more
    assert single.cutoff == 16 * np.finfo(np.float32).eps
    assert_close(single.loss, double.loss, "stream", np.float32)
    given = solve_labels([kernel], x, targets, cutoff=0.5)
    assert given.cutoff == 0.5
    assert given.rank < 6


def test_solved_labels_predict_better_than_natural_ones_on_the_targets() -> None:
    x, targets = problem(10, 200)
    kernel, natural = kip.kernel("rbf"), np.random.default_rng(2).normal(size=(10, 3))
    found = solve_labels([kernel], x, targets, RIDGE)
    losses = [
        np.mean((KernelRidge([kernel], LabelledSet(x, y), RIDGE).predict(targets.x) - targets.y) ** 2)
        for y in (found.y, natural)
    ]
    assert losses[0] < losses[1]


@pytest.mark.parametrize("spec", ["rbf", "fc1", "linear"])
def test_twins_at_the_default_ridge_do_not_fit_rounding(spec: str) -> None:
    """A⁻¹ magnifies rounding by 1/λ = 10⁶ where support points coincide; labels must stay of the size of labels."""
    x, targets = problem(30, 200, d=40, seed=3)
    alone, twins = (solve_labels([kip.kernel(spec)], points, targets) for points in (x, np.concatenate([x, x])))
    assert twins.rank == alone.rank == 30
    assert np.abs(twins.y).max() < 2 * np.abs(alone.y).max()
    assert_close(twins.loss, alone.loss, "gradient")
