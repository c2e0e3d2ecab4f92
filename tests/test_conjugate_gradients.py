import numpy as np
import pytest

from kip import conjugate_gradients, machine
from kip.kernels import kernel
from kip.krr import Factor, Ridge, RidgeError
from kip.sets import LabelledSet


def _train(n=300, d=6, dtype=np.float64):
    rng = np.random.default_rng(0)
    return LabelledSet(rng.normal(size=(n, d)).astype(dtype), rng.normal(size=(n, 3)).astype(dtype))


@pytest.mark.parametrize("spec", ["rbf", "fc1"])
@pytest.mark.parametrize("ridge", [Ridge(1e-6), Ridge(1e-2, scale_invariant=False)])
def test_the_iterative_fit_is_the_direct_solution(spec, ridge):
    train = _train()
    k = kernel(spec)
    direct = Factor(k.gram(train.x), ridge).solve(train.y)
    found = conjugate_gradients.fit(k, train, ridge, tolerance=1e-8, rank=60, tile=64)
    assert found.converged
    assert found.residual <= 1e-8
    x_test = np.random.default_rng(1).normal(size=(50, 6))
    k_test = k.gram(x_test, train.x)
    assert np.abs(k_test @ found.alpha - k_test @ direct).max() < 1e-4


def test_tiles_keep_within_the_memory_that_a_limit_leaves(monkeypatch):
    monkeypatch.setattr(machine, "memory_limit", lambda: 1000)  # of a control group, on a machine with more
    assert conjugate_gradients.default_memory() == 400


def test_recomputed_tiles_give_what_kept_ones_give():
    train = _train()
    kept = conjugate_gradients.SymmetricProduct(kernel("rbf"), train.x, tile=64, memory=2**30)
    again = conjugate_gradients.SymmetricProduct(kernel("rbf"), train.x, tile=64, memory=0)
    v = train.y
    assert again._kept is None
    first = kept(v)
    assert kept._kept
    np.testing.assert_array_equal(kept(v), first)
    np.testing.assert_array_equal(again(v), first)
    np.testing.assert_allclose(first, kernel("rbf").gram(train.x) @ v, rtol=1e-12, atol=1e-12)


def test_float32_reaches_its_tolerance_and_reports_the_true_residual():
    train = _train(500, 20, np.float32)
    seen = []
    k = kernel("rbf")
    found = conjugate_gradients.fit(k, train, tolerance=1e-4, rank=100, progress=lambda i, r: seen.append((i, r)))
    a = k.gram(train.x.astype(np.float64)).copy()
    a.flat[:: len(a) + 1] += 1e-6
    true = np.max(np.linalg.norm(a @ found.alpha - train.y, axis=0) / np.linalg.norm(train.y, axis=0))
    assert true < 5e-4
    assert found.converged
    assert len(seen) == found.iterations


def test_a_fit_that_stops_early_says_so():
    found = conjugate_gradients.fit(kernel("rbf"), _train(), tolerance=1e-12, rank=5, most_iterations=2)
    assert found.iterations == 2
    assert not found.converged


def test_an_indefinite_kernel_is_a_clear_error():
    apply = lambda v: -v  # noqa: E731
    with pytest.raises(RidgeError, match="raise `ridge`"):
        conjugate_gradients._conjugate_gradients(apply, lambda v: v, np.ones((4, 1)), np.ones((4, 1)), 1e-6, 10, None)


def test_no_ridge_is_refused():
    with pytest.raises(ValueError, match="`ridge` must be positive"):
        conjugate_gradients.fit(kernel("rbf"), _train(), Ridge(0.0))


def test_a_fit_goes_on_from_what_was_kept():
    train, seen = _train(), []
    k = kernel("rbf")
    whole = conjugate_gradients.fit(k, train, tolerance=1e-8, rank=60, keep=lambda alpha: seen.append(alpha.copy()))
    assert len(seen) == whole.iterations
    rest = conjugate_gradients.fit(k, train, tolerance=1e-8, rank=60, start=seen[len(seen) // 2])
    assert rest.converged
    assert rest.iterations < whole.iterations
    np.testing.assert_allclose(k.gram(train.x) @ rest.alpha, k.gram(train.x) @ whole.alpha, atol=1e-6)
    assert conjugate_gradients.fit(k, train, tolerance=1e-7, rank=60, start=whole.alpha).iterations == 0
    with pytest.raises(ValueError, match="shape of the labels"):
        conjugate_gradients.fit(k, train, start=np.zeros((3, 3)))
