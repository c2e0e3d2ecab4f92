"""The ridge, the one inverse, and the cotangents: against primal ridge-regression, eigenvalues and differences."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from tests.test_gradients import as_a_tree
from tests.tolerances import assert_close

import kip
from kip.execution import Execution
from kip.krr import Factor, KernelRidge, Ridge, RidgeError, accuracy, mean_square_loss
from kip.sets import LabelledSet, one_hot, unlabelled


def gram(n: int = 7, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, n + 2))
    return x @ x.T


def test_linear_krr_is_primal_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    x, y, x_new = rng.normal(size=(20, 6)), rng.normal(size=(20, 3)), rng.normal(size=(9, 6))
    ridge = 0.7
    w = np.linalg.solve(x.T @ x + ridge * np.eye(6), x.T @ y)
    model = KernelRidge([kip.kernel("linear")], LabelledSet(x, y), Ridge(ridge, scale_invariant=False))
    assert_close(model.predict(x_new), x_new @ w, "rounding")


def test_scaling_a_kernel_changes_nothing_under_the_scale_invariant_ridge() -> None:
    rng = np.random.default_rng(1)
    x, y, x_new = rng.normal(size=(12, 5)), rng.normal(size=(12, 2)), rng.normal(size=(4, 5))
    kernel = kip.kernel("rbf")
    kernels, support = (kernel, 64 * kernel), LabelledSet(x, y)
    predictions = [KernelRidge([k], support, Ridge(1e-3)).predict(x_new) for k in kernels]
    assert_close(predictions[1], predictions[0], "rounding")
    plain = [KernelRidge([k], support, Ridge(1e-3, False)).predict(x_new) for k in kernels]
    assert np.abs(plain[1] - plain[0]).max() > 1e-4


def test_ridge_is_scaled_by_the_mean_of_the_diagonal() -> None:
    k = gram()
    assert_close(Ridge(0.1).of(k), 0.1 * np.trace(k) / 7, "rounding")
    assert Ridge(0.1, scale_invariant=False).of(k) == 0.1
    assert Ridge() == Ridge(1e-6, scale_invariant=True)


@pytest.mark.parametrize("scale_invariant", [True, False])
def test_factor_solves_and_multiplies(scale_invariant: bool) -> None:
    k, b = gram(), np.random.default_rng(2).normal(size=(7, 3))
    factor = Factor(k, Ridge(0.1, scale_invariant))
    a = k + np.eye(7) * (0.1 * np.trace(k) / 7 if scale_invariant else 0.1)
    assert_close(factor.solve(b), np.linalg.solve(a, b), "rounding")
    assert_close(factor.times(b), a @ b, "rounding")
    assert_close(factor.quadratic(b), np.sum(b * (a @ b)), "rounding")


def test_zero_ridge_is_the_pseudo_inverse() -> None:
    x = np.random.default_rng(3).normal(size=(6, 3))  # rank 3
    y = np.random.default_rng(4).normal(size=(6, 2))
    factor = Factor(x @ x.T, Ridge(0.0))
    assert_close(factor.solve(y), np.linalg.pinv(x @ x.T, rcond=1e-10) @ y, "value")
    assert_close(x.T @ factor.solve(y), np.linalg.pinv(x) @ y, "value")


@pytest.mark.parametrize("scale_invariant", [True, False])
def test_cotangents_equal_finite_differences(scale_invariant: bool) -> None:
    rng = np.random.default_rng(5)
    k, y, beta, direction = gram(), rng.normal(size=(7, 2)), rng.normal(size=(7, 2)), rng.normal(size=(7, 7))
    direction = direction + direction.T
    ridge, h = Ridge(0.1, scale_invariant), 1e-5

    def slope(value: object) -> float:
        return (value(Factor(k + h * direction, ridge)) - value(Factor(k - h * direction, ridge))) / (2 * h)  # type: ignore[operator]

    factor = Factor(k, ridge)
    alpha = factor.solve(y)
    k_bar = factor.cotangent(alpha, factor.solve(beta))
    assert np.allclose(k_bar, k_bar.T)
    numeric = slope(lambda f: np.vdot(beta, f.solve(y)))
    assert_close(np.vdot(k_bar, direction), numeric, "finite difference", scale=np.abs(numeric))
    numeric = slope(lambda f: 0.5 * f.quadratic(alpha))
    found = np.vdot(factor.quadratic_cotangent(alpha), direction)
    assert_close(found, numeric, "finite difference", scale=np.abs(numeric))


@pytest.mark.parametrize("spec", ["rbf", "fc1", "fc2:nngp", "linear"])
def test_duplicates_at_the_default_ridge(spec: str) -> None:
    """1,000 points, each of them twice: the labels of twins are averaged and the rest is as without twins."""
    x = np.random.default_rng(6).normal(size=(500, 64)).astype(np.float32)
    y = np.random.default_rng(7).normal(size=(500, 3))
    kernel = kip.kernel(spec)
    twice = np.concatenate([x, x])
    (alpha,) = KernelRidge([kernel], LabelledSet(twice, np.concatenate([y + 0.5, y - 0.5]))).coefficients
    k = kernel.gram(x.astype(np.float64))
    merged = np.linalg.solve(2 * k + Ridge().of(k) * np.eye(500), 2 * y)  # A [α; α] = [y; y]
    summed = alpha[:500] + alpha[500:]
    assert np.isfinite(alpha).all()
    assert_close(k @ summed, k @ merged, "stream", np.float32)


def test_two_thousand_points_with_duplicates() -> None:
    rng = np.random.default_rng(8)
    x = rng.normal(size=(1000, 16))
    x = np.concatenate([x, x + 1e-9 * rng.normal(size=x.shape)])
    factor = Factor(kip.kernel("rbf").gram(x), Ridge())
    y = rng.normal(size=(2000, 2))
    # the residual is bounded by rounding times ‖A‖‖α‖
    alpha = factor.solve(y)
    assert np.abs(factor.times(alpha) - y).max() < 1e-13 * 2000 * np.abs(alpha).max()


def test_points_that_are_all_zero_are_said_clearly() -> None:
    with pytest.raises(RidgeError, match="the kernel of the support set is zero"):
        KernelRidge([kip.kernel("linear")], LabelledSet(np.zeros((3, 4)), np.ones((3, 2)))).predict(np.ones((1, 4)))


def test_what_cannot_be_inverted_is_said_clearly() -> None:
    k = np.diag([1.0, 1.0, -0.1])
    with pytest.raises(RidgeError, match=r"not positive definite .* smallest eigenvalue is -1.0e-01") as caught:
        Factor(k, Ridge(1e-6))
    text = str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert "raise `ridge` from 1e-06 to" in text
    enough = float(text.split(" to ")[1].split(" or more")[0])
    Factor(k, Ridge(enough * 1.1))
    with pytest.raises(RidgeError, match="holds NaN or infinity"):
        Factor(np.full((3, 3), np.nan), Ridge())


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf")])
def test_bad_ridge_is_named(value: float) -> None:
    with pytest.raises(ValueError, match="`ridge` must be zero or positive"):
        Ridge(value)


def test_losses() -> None:
    prediction, y = np.array([[1.0, 0.0], [0.2, 0.8]]), np.array([[0.0, 0.0], [0.2, 0.8]])
    assert mean_square_loss(prediction, y) == 0.25
    assert accuracy(prediction, np.array([0, 0])) == 0.5


# The model


@cache
def breast_cancer() -> tuple[np.ndarray, np.ndarray]:
    stored = load_breast_cancer()
    x = (stored.data - stored.data.mean(axis=0)) / stored.data.std(axis=0)
    return x.astype(np.float32), stored.target


def test_more_points_than_dimensions_are_predicted_in_float64() -> None:
    """A linear kernel of rank 30 on 400 points: coefficients of 1/λ, whose cancellation float32 does not survive."""
    x, codes = breast_cancer()
    y = one_hot(codes, 2)
    model = KernelRidge([kip.kernel("linear")], LabelledSet(x[:400], y[:400]))
    wide = x.astype(np.float64)
    ridge = model.ridge.of(wide[:400] @ wide[:400].T)
    w = np.linalg.solve(wide[:400].T @ wide[:400] + ridge * np.eye(30), wide[:400].T @ y[:400])
    assert model.needs_float64
    assert model.predict(x[400:]).dtype == np.float64
    assert_close(model.predict(x[400:]), wide[400:] @ w, "gradient")
    assert model.accuracy(x[400:], codes[400:]) == accuracy(wide[400:] @ w, codes[400:]) > 0.9
    (alpha,) = model.coefficients
    narrow = x[400:] @ x[:400].T @ alpha.astype(np.float32)
    assert np.abs(narrow - wide[400:] @ w).max() > 1e-2  # what it would have been


def test_float32_is_kept_where_it_is_enough() -> None:
    x, codes = breast_cancer()
    support = LabelledSet(x[:20], one_hot(codes[:20], 2))
    for spec in ("rbf", "fc1"):
        model = KernelRidge([kip.kernel(spec)], support)
        exact = KernelRidge([kip.kernel(spec)], LabelledSet(support.x.astype(np.float64), support.y))
        assert not model.needs_float64
        assert model.predict(x[400:]).dtype == np.float32
        assert_close(model.predict(x[400:]), exact.predict(x[400:].astype(np.float64)), "stream", np.float32)


def test_only_the_kernel_that_needs_it_is_computed_in_float64() -> None:
    x, codes = breast_cancer()
    model = KernelRidge(kip.family("rbf+linear"), LabelledSet(x[:100], one_hot(codes[:100], 2)), Ridge(1e-6))
    assert [found.dtype for found in model.predict_each(unlabelled(x[400:]))] == [np.float32, np.float64]
    assert model.needs_float64


def test_a_family_predicts_the_average_and_has_the_average_loss() -> None:
    rng = np.random.default_rng(9)
    support = LabelledSet(rng.normal(size=(12, 5)), rng.normal(size=(12, 2)))
    targets = LabelledSet(rng.normal(size=(30, 5)), rng.normal(size=(30, 2)))
    family = kip.family("rbf+fc1+linear")
    alone = [KernelRidge([kernel], support, Ridge(1e-2)) for kernel in family]
    for how in (Execution(), Execution(tile=7), Execution(tile=7, executor=as_a_tree)):
        model = KernelRidge(family, support, Ridge(1e-2), how)
        predictions = [one.predict(targets.x) for one in alone]
        assert_close(model.predict(targets.x), np.mean(predictions, axis=0), "rounding")
        assert_close(model.loss(targets), np.mean([mean_square_loss(p, targets.y) for p in predictions]), "rounding")
        assert_close(model.loss(targets), np.mean([one.loss(targets) for one in alone]), "rounding")
    for one, kernel in zip(alone, family, strict=True):
        k_ss = kernel.gram(support.x)
        alpha = np.linalg.solve(k_ss + Ridge(1e-2).of(k_ss) * np.eye(12), support.y)
        assert_close(one.predict(targets.x), kernel.gram(targets.x, support.x) @ alpha, "value")


def test_given_coefficients_are_used_as_they_are() -> None:
    rng = np.random.default_rng(10)
    support, alpha, x = LabelledSet(rng.normal(size=(6, 4)), np.ones((6, 2))), rng.normal(size=(6, 2)), np.eye(4)
    model = KernelRidge([kip.kernel("rbf")], support, coefficients=[alpha])
    assert model.coefficients[0] is alpha
    assert_close(model.predict(x), kip.kernel("rbf").gram(x, support.x) @ alpha, "rounding")
