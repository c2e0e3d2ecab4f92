"""A custom kernel: a function of two sets of points keeps the contract of every kernel."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip.execution import Execution, add
from kip.gradients import gradients, solved_gradients
from kip.kernels import FunctionKernel
from kip.kernels.base import Sum
from kip.krr import Ridge
from kip.sets import LabelledSet


def cubic(x1: jax.Array, x2: jax.Array) -> jax.Array:
    return (1 + x1 @ x2.T / x1.shape[1]) ** 3


def gaussian(x1: jax.Array, x2: jax.Array) -> jax.Array:
    """The built-in RBF kernel, written anew."""
    squares = jnp.sum((x1[:, None] - x2[None]) ** 2, axis=-1)
    return jnp.exp(-squares / x1.shape[1])


def points(seed: int, n: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 6))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_gram_matrices(dtype: type) -> None:
    kernel, x1, x2 = kip.kernel(cubic), points(0).astype(dtype), points(1, 5).astype(dtype)
    expected = (1 + x1.astype(np.float64) @ x2.T / 6) ** 3
    k = kernel.gram(x1, x2)
    assert isinstance(k, np.ndarray)
    assert k.dtype == kernel.diag(x1).dtype == dtype
    assert_close(k, expected, "value", dtype)
    own = kernel.gram(x1)
    assert np.array_equal(own, own.T)
    assert np.linalg.eigvalsh(own.astype(np.float64)).min() > -1e-5
    assert_close(kernel.diag(x1), np.diag(own), "value", dtype)
    assert not jax.config.jax_enable_x64


def test_the_gradient_is_that_of_the_same_kernel_built_in() -> None:
    rng = np.random.default_rng(2)
    support = LabelledSet(points(0, 5), rng.normal(size=(5, 2)))
    targets, how, ridge = LabelledSet(points(1, 37), rng.normal(size=(37, 2))), Execution(tile=16), Ridge(1e-2)
    own, builtin = kip.kernel(gaussian), kip.kernel("rbf").frozen()
    pairs = [(gradients(k, support, targets, ridge, how)) for k in (own, builtin)]
    pairs += [solved_gradients(k, support.x, targets, ridge, 1e-3, how) for k in (own, builtin)]
    for mine, theirs in (pairs[:2], pairs[2:]):
        assert_close(mine.x, theirs.x, "stream")
        assert_close(mine.loss, theirs.loss, "stream")
        assert mine.params == {}
    assert pairs[0].y is not None
    assert pairs[1].y is not None
    assert_close(pairs[0].y, pairs[1].y, "stream")


def test_pullbacks_add_up_to_what_jax_differentiates() -> None:
    x, t1, t2 = points(0), points(1), points(2)
    c1, c2, own = np.random.default_rng(3).normal(size=(3, 4, 4))
    own = own + own.T
    bound = kip.kernel(cubic).bind(x)
    total = add(bound.tile(t1)[1](c1), bound.tile(t2)[1](c2))
    x_bar, params_bar = bound.finish(add(total, bound.own()[1](own)))

    def value(x: Any) -> Any:
        return (c1 * cubic(x, t1)).sum() + (c2 * cubic(x, t2)).sum() + (own * cubic(x, x)).sum()

    with jax.enable_x64(True):
        expected = jax.grad(value)(jnp.asarray(x))
    assert_close(x_bar, expected, "gradient")
    assert params_bar == {}


def test_images_reach_the_function_as_images() -> None:
    def brightness(x1: jax.Array, x2: jax.Array) -> jax.Array:
        return x1.mean((1, 2, 3))[:, None] * x2.mean((1, 2, 3))

    x = np.random.default_rng(4).normal(size=(3, 4, 5, 1))
    mean = x.mean((1, 2, 3))
    assert_close(kip.kernel(brightness).gram(x), np.outer(mean, mean), "value")
    assert kip.kernel(brightness).bind(x).finish(kip.kernel(brightness).bind(x).own()[1](np.eye(3)))[0].shape == x.shape


def test_it_joins_sums_multiples_and_families() -> None:
    x = points(0)
    kernel = 2 * kip.kernel(cubic) & kip.kernel("rbf")
    assert_close(kernel.gram(x), 2 * kip.kernel(cubic).gram(x) + kip.kernel("rbf").gram(x), "value")
    assert [k.spec for k in kip.family([cubic, "fc1"])] == ["own:cubic", "fc1"]
    assert kip.family(cubic) == (kip.kernel(cubic),)


def test_it_is_known_by_its_function_and_no_string_rebuilds_it() -> None:
    kernel = kip.kernel(cubic)
    assert isinstance(kernel, FunctionKernel)
    assert kernel == kip.kernel(cubic)
    assert hash(kernel) == hash(kip.kernel(cubic))
    assert kernel != kip.kernel(gaussian)
    with pytest.raises(ValueError, match="no string can rebuild; pass the kernel itself"):
        kip.kernel(kernel.spec)
    first, second = (kip.kernel(function) for function in (lambda a, b: a @ b.T, lambda a, b: 2 * a @ b.T))
    assert first.spec == second.spec
    for left, right in ((first, second), (2 * first, 2 * second), (first & kernel, second & kernel)):
        assert left != right
    assert Sum(first, kernel) == (first & kernel)
    assert 2 * first != 3 * first


def test_an_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="`engine`"):
        kip.kernel(cubic, engine="numba")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_it_pickles_where_its_function_does(dtype: type) -> None:
    bound = kip.kernel(cubic).bind(points(0).astype(dtype))
    again = pickle.loads(pickle.dumps(bound))
    assert np.array_equal(again.own()[0], bound.own()[0])
