"""The paper's theorems and examples, run: Theorems 1 to 3, Examples 1 and 2."""

from __future__ import annotations

import numpy as np
import optax
import pytest
from sklearn.datasets import make_blobs
from sklearn.svm import SVC
from tests.tolerances import assert_close

import kip
from kip import algorithm
from kip.algorithm import Config, Problem
from kip.epsilon import compression, strong
from kip.krr import KernelRidge, Ridge, mean_square_loss
from kip.label_solver import solve_labels
from kip.sets import LabelledSet

LINEAR = kip.kernel("linear")


def phi(x: np.ndarray, ridge: float) -> np.ndarray:
    """Φ_λ(X) = Xᵀ(XXᵀ + λI)⁻¹, the pseudo-inverse at λ = 0."""
    return np.linalg.pinv(x) if ridge == 0 else x.T @ np.linalg.inv(x @ x.T + ridge * np.eye(len(x)))


def unit_ball(n: int, d: int, seed: int) -> np.ndarray:
    """The distribution of the theorems: ‖x‖ ≤ 1."""
    x = np.random.default_rng(seed).normal(size=(n, d))
    return x / np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))


def spectral(w: np.ndarray) -> float:
    return float(np.linalg.norm(w, 2))


def classifier(support: LabelledSet, ridge: float) -> np.ndarray:
    """w̃, read off the library's own predictions at the basis vectors."""
    model = KernelRidge([LINEAR], support, Ridge(ridge, scale_invariant=False))
    return model.predict(np.eye(support.x.shape[1]))


def gradient_descent(targets: LabelledSet, labels: str, ridge: float, steps: int = 700) -> LabelledSet:
    """Gradient-descent KIP: all of the support set and of the targets at every step, n_s = 4 ≥ C = 2."""
    problem = Problem(targets, np.arange(len(targets.x)) % 2, 2)
    config = Config(
        kernels=(LINEAR,),
        size=4,
        steps=steps,
        optimiser=optax.sgd(0.02, momentum=0.9),
        labels=labels,
        ridge=Ridge(ridge, scale_invariant=False),
        evaluate_every=steps,
    )
    state = algorithm.run(problem, config, algorithm.init(problem, config, key=0))
    return algorithm.publish(state.best[0], problem, config)


@pytest.mark.parametrize("labels", ["fixed", "learned"])
@pytest.mark.parametrize("rank", [3, 2])
def test_theorem_1(labels: str, rank: int) -> None:
    """KIP reaches a least-squares classifier of D; ε ≤ ½‖w̃ − w₀‖²; ε → 0 where that classifier is unique."""
    rng, ridge = np.random.default_rng(1), 1e-4
    x = unit_ball(30, 3, 0) @ np.diag([1.0] * rank + [0.0] * (3 - rank))
    targets = LabelledSet(x, x @ rng.normal(size=(3, 2)) + 0.3 * rng.normal(size=(30, 2)))
    w_0 = phi(targets.x, 0.0) @ targets.y
    distilled = gradient_descent(targets, labels, ridge)
    w_tilde = classifier(distilled, ridge)

    least = mean_square_loss(targets.x @ w_0, targets.y)
    assert_close(mean_square_loss(targets.x @ w_tilde, targets.y), least, "finite difference")
    assert_close(targets.x @ w_tilde, targets.x @ w_0, "single", np.float32)  # any least-squares classifier predicts so

    x_new = unit_ball(500, 3, 2)
    epsilon = strong(x_new @ w_tilde, x_new @ w_0, "mean-square")
    bound = 0.5 * spectral(w_tilde - w_0) ** 2
    assert epsilon <= bound * (1 + 1e-9) + 1e-15
    if rank == 3:  # unique
        assert bound < 1e-6
        assert compression(len(targets), len(distilled), epsilon).ratio == 7.5


@pytest.mark.parametrize("n_s", [2, 4, 7])
@pytest.mark.parametrize("ridge", [1e-3, 0.5])
def test_theorem_2(n_s: int, ridge: float) -> None:
    """Label Solve gives w*(λ), the best classifier within W, and ε(λ) = ½‖w*(λ) − w₀‖² bounds its ε."""
    rng = np.random.default_rng(3)
    x_support, targets = unit_ball(n_s, 5, 4), LabelledSet(unit_ball(40, 5, 5), rng.normal(size=(40, 3)))
    rule = Ridge(ridge, scale_invariant=False)
    solution = solve_labels([LINEAR], x_support, targets, rule)

    phi_s = phi(x_support, ridge)
    operator = targets.x @ phi_s
    _, s, vt = np.linalg.svd(operator, full_matrices=False)
    basis = phi_s @ vt[s > 1e-10 * s[0]].T  # W = Φ_λ(X_s) on the complement of the kernel
    w_star = basis @ np.linalg.lstsq(targets.x @ basis, targets.y, rcond=None)[0]
    assert_close(classifier(LabelledSet(x_support, solution.y), ridge), w_star, "gradient")

    w_0, x_new = phi(targets.x, 0.0) @ targets.y, unit_ball(500, 5, 6)
    epsilon = strong(x_new @ w_star, x_new @ w_0, "mean-square")
    assert epsilon <= 0.5 * spectral(w_star - w_0) ** 2
    if n_s >= 5:  # W is everything
        assert epsilon < 1e-12


def test_theorem_2_at_zero_ridge_and_full_rank_gives_the_predictions_of_the_full_classifier() -> None:
    rng = np.random.default_rng(7)
    x_support, targets = unit_ball(8, 4, 8), LabelledSet(unit_ball(30, 4, 9), rng.normal(size=(30, 2)))
    solution = solve_labels([LINEAR], x_support, targets, Ridge(0.0))
    w_0 = phi(targets.x, 0.0) @ targets.y
    assert_close(solution.y, x_support @ w_0, "gradient")
    assert_close(classifier(LabelledSet(x_support, solution.y), 0.0), w_0, "gradient")


@pytest.mark.parametrize("spec", ["rbf", "fc1:nngp"])
def test_theorem_3(spec: str) -> None:
    """With labels free, the optimum is the infimum over X_s of the residual of projecting y_t on im K_ts."""
    kernel = kip.kernel(spec)
    x = np.linspace(-2, 2, 25)[:, None]
    targets = LabelledSet(x, np.stack([np.exp(-((x[:, 0] - 0.8) ** 2)), 0.3 * x[:, 0]], axis=1))

    def residual(x_support: np.ndarray) -> float:
        k_ts = kernel.gram(targets.x, x_support)
        u, s, _ = np.linalg.svd(k_ts, full_matrices=False)
        u = u[:, s > 1e-12 * s[0]]
        return 0.5 * float(np.sum((targets.y - u @ (u.T @ targets.y)) ** 2)) / len(x)

    grid = np.linspace(-3, 3, 61)
    infimum = min(residual(np.array([[a], [b]])) for a in grid for b in grid if a < b)
    for x_support in ([[-1.0], [1.0]], [[0.3], [0.5]]):  # at any X_s, the best labels leave that residual
        solution = solve_labels([kernel], np.array(x_support), targets, Ridge())
        assert_close(solution.loss, residual(np.array(x_support)), "finite difference")
        assert solution.loss >= infimum - 1e-9

    # KIP descends to that infimum: the loss is not convex in X_s, so the best of a few starts is taken
    problem = Problem(targets, np.arange(25) % 2, 2)
    config = Config((kernel,), 2, 100, algorithm.adam(0.2, 100), labels="solved", evaluate_every=100)
    runs = (algorithm.run(problem, config, algorithm.init(problem, config, key=key)) for key in range(4))
    best = min((state.best[0] for state in runs), key=lambda checkpoint: checkpoint.loss)
    assert_close(best.loss, residual(best.x), "finite difference")
    assert best.loss <= infimum * 1.02


@pytest.mark.parametrize("spread", [1.0, 4.0], ids=["separable", "not separable"])
def test_example_1_support_vectors_are_a_strong_zero_approximation_for_an_svm(spread: float) -> None:
    """Scikit-learn's `support_` holds the points with slack too."""
    x, y = make_blobs(120, centers=[[-4, 0], [4, 0]], cluster_std=spread, random_state=0)
    whole = SVC(kernel="linear", C=1.0, tol=1e-8).fit(x, y)
    kept = whole.support_
    part = SVC(kernel="linear", C=1.0, tol=1e-8).fit(x[kept], y[kept])
    if spread == 1.0:
        assert (whole.predict(x) == y).all()
    else:
        slack = y * 2 - 1
        assert set(np.flatnonzero(slack * whole.decision_function(x) < 1 - 1e-6)) <= set(kept)
    x_new = np.random.default_rng(1).uniform(-8, 8, size=(1000, 2))

    def one_hot_prediction(model: SVC) -> np.ndarray:
        return np.eye(2)[model.predict(x_new)]

    assert strong(one_hot_prediction(whole), one_hot_prediction(part)) == 0
    assert np.abs(whole.decision_function(x_new) - part.decision_function(x_new)).max() < 1e-3
    assert compression(120, len(kept), 0.0).ratio > 2


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_example_2_a_ridge_regressor_is_reproduced_by_as_many_points_as_classes(ridge: float) -> None:
    """Choose X̃ of C points with w in the range of Φ_λ(X̃): orthonormal ones that span w's columns."""
    rng = np.random.default_rng(10)
    x, y = rng.normal(size=(50, 6)), rng.normal(size=(50, 3))
    w = phi(x, 0.7) @ y
    q, r = np.linalg.qr(w)
    small = LabelledSet(q.T, (1 + ridge) * r)  # Φ_λ(Qᵀ) = Q/(1 + λ)
    assert len(small) == 3
    x_new = rng.normal(size=(20, 6))
    f, f_tilde = (
        KernelRidge([LINEAR], support, Ridge(value, scale_invariant=False)).predict(x_new)
        for support, value in ((LabelledSet(x, y), 0.7), (small, ridge))
    )
    assert_close(f_tilde, f, "value")
    assert strong(f, f_tilde, "mean-square") < 1e-20
