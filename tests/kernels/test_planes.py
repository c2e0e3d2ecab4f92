"""Offset planes in JAX: the oracle values, transformations, hyper-parameters, and the planes that are kept."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.kernels.test_planes_cpu import check_against_oracle, network, oracle, oracle_cases, oracle_kernel
from tests.support import require_dataset
from tests.tolerances import assert_close

from kip.kernels.planes import PlanesKernel, levels
from kip.kernels.planes_cpu import NumbaPlanesKernel

# Compiling costs more than all else here, so by default not every case runs; the oracle's other cases run with
# KIP_EVERY_ORACLE=1. The Numba engine, which shares no arithmetic, is always compared with all of them.
VALUES = {"conv1-ntk/ntk", "conv3-standard/ntk", "convnet3-ntk/nngp", "myrtle7-ntk/nngp", "myrtle10-standard/ntk"}
GRADIENTS = {"conv2-ntk/nngp", "conv2-standard/ntk", "convnet2-ntk/ntk", "myrtle5-ntk/ntk"}
EVERY = os.environ.get("KIP_EVERY_ORACLE") == "1"


def chosen_cases() -> list[tuple[int, str, Any]]:
    every = [(ch, case, dtype) for ch, case in oracle_cases() for dtype in (np.float64, np.float32)]
    if EVERY:
        return every
    kept = [c for c in every if c[0] == 3 and c[1] in VALUES | GRADIENTS and c[2] == np.float64]
    return [*kept, (1, "convnet1-ntk/ntk", np.float64), (3, "convnet1-ntk/ntk", np.float32)]


@pytest.mark.parametrize(("channels", "case", "dtype"), chosen_cases())
def test_oracle_values_and_gradients(channels: int, case: str, dtype: Any) -> None:
    gradient = EVERY or case not in VALUES
    check_against_oracle(oracle_kernel(PlanesKernel, case), oracle(channels), case, dtype, gradient)


def test_planes_are_pruned_to_those_that_reach_the_read_out() -> None:
    def planes_of(name: str, **options: bool) -> list[int]:
        found = levels(network(name), (32, 32, 3), **options)
        return [(2 * level.radius_y + 1) * (2 * level.radius_x + 1) for level in found]

    assert planes_of("conv3") == [1]
    assert planes_of("convnet3") == [225, 49, 9, 1]
    assert planes_of("myrtle10") == [3969, 961, 225]
    assert planes_of("myrtle10", own=True) == [49, 9, 1]
    assert planes_of("convnet3", own=True) == [49, 9, 1]
    assert [(level.height, level.width) for level in levels(network("convnet2"), (7, 5, 1))] == [(7, 5), (3, 2), (1, 1)]


def test_gram_works_inside_transformations() -> None:
    kernel, rng = PlanesKernel(network("conv1")), np.random.default_rng(0)
    x1, x2 = rng.normal(size=(2, 3, 3, 1)).astype(np.float32), rng.normal(size=(3, 3, 3, 1)).astype(np.float32)
    k, pull = kernel.vjp(x1, x2)
    assert_close(jax.jit(kernel.gram)(x1, x2), k, "rounding", np.float32)
    gradient = jax.grad(lambda x: jnp.sum(kernel.gram(x, x2)))(x1)
    x_bar, params_bar = pull(np.ones((2, 3), np.float32))
    assert_close(gradient, x_bar, "rounding", np.float32)
    learned = jax.grad(lambda p: jnp.sum(kernel.with_params(p).gram(x1, x2)))(kernel.params)
    for name, value in learned.items():
        assert_close(value, params_bar[name], "gradient", np.float32)
    symmetric = jax.grad(lambda x: jnp.sum(kernel.gram(x)))(x1)
    assert_close(symmetric, 2 * kernel.vjp(x1, x1)[1](np.ones((2, 2), np.float32))[0], "gradient", np.float32)


def test_pairs_per_tile_are_few_where_planes_are_large() -> None:
    def rows(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return PlanesKernel(network(name)).form.rows(shape, np.float32)

    assert rows("conv2", (28, 28, 1)) == (256, 16)
    assert rows("myrtle10", (8, 8, 3)) == (16, 4)
    assert rows("myrtle10", (32, 32, 3)) == (1,)


@pytest.mark.parametrize("nngp", [True, False])
def test_variances_are_differentiated_exactly(nngp: bool) -> None:
    """Two ReLU layers per loop, a loop without ReLU, dense layers: every place where σ_w² and σ_b² enter."""
    layers = "conv-relu-conv-relu-conv-conv-pool-conv-relu-gap-dense-relu"
    rng = np.random.default_rng(3)
    x1, x2, cotangent = rng.normal(size=(2, 5, 4, 2)), rng.normal(size=(3, 5, 4, 2)), rng.normal(size=(2, 3))
    kernel = PlanesKernel(network(layers), nngp=nngp, bias_variance=0.1)
    _, params_bar = kernel.vjp(x1, x2)[1](cotangent)
    for name, value in kernel.params.items():

        def moved(h: float, name: str = name, value: float = value) -> Any:
            return np.sum(cotangent * kernel.with_params({**kernel.params, name: value + h}).gram(x1, x2))

        numeric = (8 * (moved(1e-4) - moved(-1e-4)) - (moved(2e-4) - moved(-2e-4))) / 12e-4
        assert_close(params_bar[name], numeric, "finite difference")


def test_params_are_named_and_checked() -> None:
    kernel = PlanesKernel(network("conv1"), width=4)
    moved = kernel.with_params({"weight_variance": 1.5, "bias_variance": 0.1})
    assert moved.spec == "conv1:standard=4:weight_variance=1.5:bias_variance=0.10000000000000001"
    with pytest.raises(ValueError, match="`params` must hold"):
        kernel.with_params({"weight_variance": 1.0})
    with pytest.raises(ValueError, match="points of one shape"):
        kernel.gram(np.ones((1, 4, 4, 1)), np.ones((1, 5, 4, 1)))
    assert kernel.gram(np.ones((0, 4, 4, 1)), np.ones((2, 4, 4, 1))).shape == (0, 2)


# --- against the Numba engine


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("convnet2", (7, 5, 2), {}),
        ("conv-relu-conv-pool-conv-relu-gap", (5, 6, 1), {"nngp": True}),
        ("pool-conv-relu-pool-flatten-dense-relu-dense-relu", (6, 9, 2), {"width": 8}),
        ("conv-relu-pool-conv-gap-dense-relu", (5, 5, 3), {"bias_variance": 0.3, "weight_variance": 1.5}),
    ],
)
def test_engines_agree_where_there_is_no_oracle(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    """Odd sizes, layers without ReLU, hidden dense layers after flatten and gap; values and gradients."""
    rng = np.random.default_rng(5)
    x1, x2, cotangent = rng.normal(size=(3, *shape)), rng.normal(size=(10, *shape)), rng.normal(size=(3, 10))
    fast, plain = (engine(network(name), **options) for engine in (NumbaPlanesKernel, PlanesKernel))
    (k_fast, pull_fast), (k_plain, pull_plain) = fast.vjp(x1, x2), plain.vjp(x1, x2)
    assert_close(k_fast, k_plain, "rounding")
    assert_close(pull_fast(cotangent)[0], pull_plain(cotangent)[0], "value")
    assert_close(fast.diag(x2), np.diag(fast.gram(x2)), "hard")


@pytest.mark.parametrize(("name", "shape"), [("convnet3:nngp", (32, 32, 3)), ("myrtle5", (28, 28, 1))])
def test_engines_agree_on_images_of_real_size(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(6)
    x1, x2 = rng.normal(size=(2, *shape)).astype(np.float32), rng.normal(size=(3, *shape)).astype(np.float32)
    arch, _, flag = name.partition(":")
    fast, plain = (engine(network(arch), nngp=bool(flag)) for engine in (NumbaPlanesKernel, PlanesKernel))
    assert_close(fast.gram(x1, x2), plain.gram(x1, x2), "value", np.float32)


@pytest.mark.parametrize(("data", "name"), [("mnist", "conv2"), ("cifar10", "convnet3")])
def test_engines_agree_on_real_images(data: str, name: str) -> None:
    """Real images have flat borders, where variances are small and neighbours alike; values and gradients."""
    x = require_dataset(data).x_train[:7].astype(np.float32) / 255
    x = x.reshape(*x.shape[:3], -1)
    x1, x2 = x[:2] - x.mean(), x[1:] - x.mean()  # one image is on both sides
    fast, plain = (engine(network(name)) for engine in (NumbaPlanesKernel, PlanesKernel))
    (k_fast, pull_fast), (k_plain, pull_plain) = fast.vjp(x1, x2), plain.vjp(x1, x2)
    assert_close(k_fast, k_plain, "value", np.float32)
    assert_close(pull_fast(np.ones((2, 6)))[0], pull_plain(np.ones((2, 6)))[0], "gradient", np.float32)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["conv2", "convnet1", "myrtle5"])
def test_degenerate_images_are_finite_and_right(name: str, dtype: Any) -> None:
    x = np.random.default_rng(9).normal(size=(6, 6, 2))
    images = np.stack([x, x, -x, np.zeros_like(x), np.full_like(x, 0.7), 2 * x])
    for bias in (1e-4, 0.0):
        kernel = NumbaPlanesKernel(network(name), bias_variance=bias)
        k, pull = kernel.vjp(images.astype(dtype), images.astype(dtype))
        assert np.isfinite(k).all()
        assert np.isfinite(pull(np.ones((6, 6)))[0]).all()
        exact = PlanesKernel(network(name), bias_variance=bias).gram(images)
        assert_close(k, exact, "hard" if dtype == np.float64 else "single", dtype)
