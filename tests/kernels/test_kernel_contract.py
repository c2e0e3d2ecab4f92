"""The contract that every registered kernel keeps; a new kernel joins `KERNELS` and nothing else."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip.execution import add
from kip.kernels import Kernel
from kip.kernels.base import Bound

# Kernels that differ in numbers alone share compiled code, which is most of the cost of a case here.
INNER = [
    "linear",
    "rbf",
    "rbf:gamma=0.5",
    "fc1",
    "fc1:weight_variance=1.5:bias_variance=0.1",
    "fc1:nngp",
    "fc2:standard=64",
]
SUMS = ["0.5*rbf&fc1", "2*fc1:nngp", "linear&rbf&fc1:nngp"]
SPATIAL = ["conv1", "convnet2:nngp"]
KERNELS = (
    [(spec, None) for spec in [*INNER, *SUMS]]
    + [(spec, "jax") for spec in [*SPATIAL, "0.5*conv1&rbf"]]
    + [(spec, "numba") for spec in [*SPATIAL, "conv2:nngp", "convnet1:standard=16", "myrtle5", "0.5*conv1&rbf"]]
)
IDS = [spec if engine is None else f"{spec}@{engine}" for spec, engine in KERNELS]
SHAPE = (4, 4, 2)

every_kernel = pytest.mark.parametrize(("spec", "engine"), KERNELS, ids=IDS)
both_dtypes = pytest.mark.parametrize("dtype", [np.float64, np.float32])


def build(spec: str, engine: str | None) -> Kernel:
    if engine is not None and "&" in spec:  # inner-product kernels take no engine
        left, right = spec.split("&")
        return kip.kernel(left, engine) & kip.kernel(right)
    return kip.kernel(spec, engine)


@cache
def points(seed: int, n: int = 4) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, *SHAPE))


def hard_points() -> np.ndarray:
    """A point, the same again, its opposite, and an image without any contrast."""
    x = points(7)[0]
    return np.stack([x, x, -x, np.full(SHAPE, 0.7)])


@every_kernel
def test_gram_is_symmetric_and_positive_semi_definite(spec: str, engine: str | None) -> None:
    kernel, x = build(spec, engine), points(0)
    k = kernel.gram(x)
    assert k.shape == (4, 4)
    assert np.array_equal(k, k.T)
    assert np.linalg.eigvalsh(k).min() > -1e-12 * np.trace(k)
    assert_close(kernel.gram(x, x), k, "hard")
    assert_close(kernel.diag(x), np.diag(k), "hard")
    assert_close(kernel.gram(x, points(1)).T, kernel.gram(points(1), x), "value")


@every_kernel
def test_tile_equals_whole(spec: str, engine: str | None) -> None:
    kernel, x1, x2 = build(spec, engine), points(0).astype(np.float32), points(1).astype(np.float32)
    whole = kernel.gram(x1, x2)
    tiles = [np.concatenate([kernel.gram(x1[i : i + 2], x2[j : j + 2]) for j in (0, 2)], axis=1) for i in (0, 2)]
    assert_close(np.concatenate(tiles), whole, "value", np.float32)


@every_kernel
def test_dtype_of_the_inputs_is_kept_without_a_global_switch(spec: str, engine: str | None) -> None:
    kernel, double, single = build(spec, engine), points(0), points(0).astype(np.float32)
    assert not jax.config.jax_enable_x64
    for x, dtype in ((double, np.float64), (single, np.float32)):
        k, pull = kernel.vjp(x, x)
        assert k.dtype == pull(np.ones((4, 4), dtype))[0].dtype == dtype
        assert kernel.gram(x).dtype == kernel.gram(x, x).dtype == kernel.diag(x).dtype == dtype
    assert_close(kernel.gram(single), kernel.gram(double), "single", np.float32)
    assert not jax.config.jax_enable_x64


@every_kernel
def test_pullback_equals_finite_differences(spec: str, engine: str | None) -> None:
    kernel, x1, x2 = build(spec, engine), points(0), points(1)
    rng = np.random.default_rng(3)
    cotangent, direction = rng.normal(size=(4, 4)), rng.normal(size=x1.shape)
    k, pull = kernel.vjp(x1, x2)
    x_bar, params_bar = pull(cotangent)
    assert_close(k, kernel.gram(x1, x2), "value")
    assert x_bar.shape == x1.shape
    numeric = central(lambda h: np.sum(cotangent * kernel.gram(x1 + h * direction, x2)))
    assert_close(np.vdot(x_bar, direction), numeric, "finite difference", scale=np.linalg.norm(x_bar))
    leaves, tree = jax.tree.flatten(kernel.params)
    assert jax.tree.structure(params_bar) == tree
    for i, found in enumerate(jax.tree.leaves(params_bar)):

        def value(h: float, i: int = i) -> float:
            moved = [leaf + h * (j == i) for j, leaf in enumerate(leaves)]
            return float(np.sum(cotangent * kernel.with_params(jax.tree.unflatten(tree, moved)).gram(x1, x2)))

        assert_close(found, central(value, 1e-5), "finite difference", scale=np.abs(cotangent * k).sum())


def central(function: Any, h: float = 1e-4) -> Any:
    """Fourth-order central difference at 0."""
    return (8 * (function(h) - function(-h)) - (function(2 * h) - function(-2 * h))) / (12 * h)


@every_kernel
def test_both_arguments_of_k_ss_count_double(spec: str, engine: str | None) -> None:
    kernel, x = build(spec, engine), points(0)
    rng = np.random.default_rng(4)
    cotangent, direction = rng.normal(size=(4, 4)), rng.normal(size=x.shape)
    cotangent = cotangent + cotangent.T
    x_bar, _ = kernel.vjp(x, x)[1](cotangent)
    numeric = central(lambda h: np.sum(cotangent * kernel.gram(x + h * direction)))
    assert_close(2 * np.vdot(x_bar, direction), numeric, "finite difference", scale=np.linalg.norm(x_bar))


@every_kernel
@both_dtypes
def test_hard_points_are_right_and_finite(spec: str, engine: str | None, dtype: type) -> None:
    kernel, x = build(spec, engine), hard_points()
    x = np.where(np.arange(4)[:, None, None, None] == 3, 0, x)  # first with the zero vector, then the flat image
    for hard in (x, hard_points()):
        k, pull = kernel.vjp(hard.astype(dtype), hard.astype(dtype))
        x_bar, params_bar = pull(np.ones((4, 4), dtype))
        assert np.isfinite(k).all()
        assert np.isfinite(x_bar).all()
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params_bar))
        own = kernel.gram(hard.astype(dtype))
        assert_close(k, own, "hard", dtype)
        assert_close(own[0], own[1], "hard", dtype)  # duplicates
        assert_close(x_bar[0], x_bar[1], "hard", dtype, scale=max(1.0, float(np.abs(x_bar).max())))
        assert_close(own, kernel.gram(hard), "single" if dtype == np.float32 else "rounding", dtype)


@every_kernel
def test_spec_names_the_kernel(spec: str, engine: str | None) -> None:
    kernel = build(spec, engine)
    assert kernel.spec == spec
    assert repr(kernel) == f"kip.kernel({spec!r})"
    again = build(kernel.spec, engine)
    assert again == kernel
    assert hash(again) == hash(kernel)
    assert kernel.with_params(kernel.params) == kernel
    moved = kernel.with_params(jax.tree.map(lambda v: 1.25 * v, kernel.params))
    assert build(moved.spec, engine).params == moved.params


def test_sums_and_multiples_are_kernels() -> None:
    x, rbf, fc = points(0), kip.kernel("rbf"), kip.kernel("fc1:nngp")
    expected = 3 * (rbf.gram(x) + 0.5 * fc.gram(x))
    combined = 3 * (rbf & 0.5 * fc)
    assert combined.spec == "3*rbf&1.5*fc1:nngp"
    assert_close(combined.gram(x), expected, "rounding")
    assert_close(kip.kernel(combined.spec).gram(x), expected, "rounding")
    assert_close((rbf * 2).gram(x), (2 * rbf).gram(x), "rounding")
    assert (2 * (2 * rbf)).spec == "4*rbf"
    for bad in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="multiplied by a positive number"):
            bad * rbf


# Bound to a support set


def cotangents() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of two tiles, and a symmetric one of K_ss."""
    first, second, own = np.random.default_rng(5).normal(size=(3, 4, 4))
    return first, second, own + own.T


def weighted(kernel: Kernel, x: Any) -> Any:
    """What `cotangents` are the derivative of: a number, from Gram matrices alone."""
    first, second, own = cotangents()
    return (first * kernel.gram(x, points(1)) + second * kernel.gram(x, points(2)) + own * kernel.gram(x)).sum()


def whole(bound: Bound, dtype: Any = np.float64) -> tuple[np.ndarray, Any]:
    """Its derivative from two tiles and K_ss, each pulled back by itself."""
    first, second, own = cotangents()
    pulls = [bound.tile(points(n).astype(dtype))[1] for n in (1, 2)]
    totals = [pull(bar.astype(dtype)) for pull, bar in zip(pulls, (first, second), strict=True)]
    return bound.finish(add(add(*totals), bound.own()[1](own)))


@every_kernel
def test_pullbacks_of_tiles_and_of_k_ss_add_up_to_the_whole_derivative(spec: str, engine: str | None) -> None:
    kernel, x = build(spec, engine), points(0)
    direction = np.random.default_rng(6).normal(size=x.shape)
    x_bar, params_bar = whole(kernel.bind(x))
    assert x_bar.shape == x.shape
    numeric = central(lambda h: weighted(kernel, x + h * direction))
    assert_close(np.vdot(x_bar, direction), numeric, "finite difference", scale=np.linalg.norm(x_bar))
    leaves, tree = jax.tree.flatten(kernel.params)
    assert jax.tree.structure(params_bar) == tree
    scale = sum(np.abs(bar).sum() for bar in cotangents()) * np.abs(kernel.gram(x)).max()
    for i, found in enumerate(jax.tree.leaves(params_bar)):

        def value(h: float, i: int = i) -> float:
            moved = [leaf + h * (j == i) for j, leaf in enumerate(leaves)]
            return float(weighted(kernel.with_params(jax.tree.unflatten(tree, moved)), x))

        assert_close(found, central(value, 1e-5), "finite difference", scale=scale)
    if kernel.traceable:
        with jax.enable_x64(True):
            by_jax = jax.grad(lambda x: weighted(kernel, x))(jnp.asarray(x))
        assert_close(x_bar, by_jax, "gradient")


@every_kernel
@both_dtypes
def test_a_bound_kernel_gives_the_gram_matrix_and_totals_of_one_structure(
    spec: str, engine: str | None, dtype: type
) -> None:
    kernel, x, tile = build(spec, engine), points(0).astype(dtype), points(1).astype(dtype)
    bound = kernel.bind(x)
    k, pull = bound.tile(tile)
    assert k.dtype == dtype
    assert np.array_equal(bound.x, x)
    assert np.array_equal(bound.gram(tile), k)
    assert_close(k, kernel.gram(x, tile), "hard", dtype)
    k_ss, pull_own = bound.own()
    assert k_ss.dtype == np.float64
    assert np.array_equal(k_ss, k_ss.T)
    assert_close(k_ss, kernel.gram(x.astype(np.float64)), "rounding")
    of_tile, of_own = pull(np.ones((4, 4), dtype)), pull_own(np.ones((4, 4)))
    assert jax.tree.structure(of_tile) == jax.tree.structure(of_own)
    assert jax.tree.map(np.shape, of_tile) == jax.tree.map(np.shape, of_own)
    total = add(jax.tree.map(np.copy, of_tile), of_own)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(total))
    assert bound.finish(total)[0].dtype == dtype
    frozen_bar = whole(kernel.frozen().bind(x), dtype)
    assert not jax.tree.leaves(frozen_bar[1])
    assert_close(frozen_bar[0], whole(bound, dtype)[0], "rounding", dtype)


@every_kernel
@both_dtypes
def test_a_bound_kernel_gives_the_same_bits_after_pickling(spec: str, engine: str | None, dtype: type) -> None:
    bound = build(spec, engine).bind(points(0).astype(dtype))
    again = pickle.loads(pickle.dumps(bound))
    tile = points(1).astype(dtype)
    before, after = ((b.tile(tile)[0], b.own()[0], whole(b, dtype)) for b in (bound, again))
    assert jax.tree.structure(before) == jax.tree.structure(after)
    assert jax.tree.all(jax.tree.map(np.array_equal, before, after))


def test_a_bound_sum_and_a_bound_multiple_equal_their_parts() -> None:
    x, tile, bar = points(0), points(1), cotangents()[0]
    rbf, fc = kip.kernel("rbf:gamma=0.5"), kip.kernel("fc1")
    parts = [kernel.bind(x) for kernel in (rbf, fc)]
    (k_rbf, pull_rbf), (k_fc, pull_fc) = (part.tile(tile) for part in parts)
    (x_rbf, params_rbf), (x_fc, params_fc) = parts[0].finish(pull_rbf(bar)), parts[1].finish(pull_fc(3 * bar))
    bound = (rbf & 3 * fc).bind(x)
    k, pull = bound.tile(tile)
    x_bar, params_bar = bound.finish(pull(bar))
    assert_close(k, k_rbf + 3 * k_fc, "rounding")
    assert_close(bound.own()[0], parts[0].own()[0] + 3 * parts[1].own()[0], "rounding")
    assert_close(x_bar, x_rbf + x_fc, "rounding")
    for name, found in params_bar["left"].items():
        assert_close(found, params_rbf[name], "rounding")
    for name, found in params_bar["right"].items():
        assert_close(found, params_fc[name], "rounding")


def test_a_sum_costs_what_its_parts_cost_and_a_multiple_what_the_kernel_costs() -> None:
    shape = (28, 28, 1)
    rbf, fc3, conv = kip.kernel("rbf"), kip.kernel("fc3"), kip.kernel("convnet3", "numba")
    assert (rbf & conv).cost(shape) == rbf.cost(shape) + conv.cost(shape)
    assert (2 * conv).cost(shape) == conv.cost(shape) == kip.kernel("convnet3", "jax").cost(shape)
    assert rbf.cost(shape) < fc3.cost(shape) < kip.kernel("convnet3:nngp").cost(shape) < conv.cost(shape)
    assert not (rbf & fc3).expensive(shape)
    assert (rbf & conv).expensive(shape)
    assert (0.5 * conv).expensive(shape)


def test_plus_is_refused_in_one_line() -> None:
    rbf, fc = kip.kernel("rbf"), kip.kernel("fc1")
    for plus in (lambda: rbf + fc, lambda: rbf + 1, lambda: 1 + rbf, lambda: sum([rbf, fc])):
        with pytest.raises(TypeError, match=r"write k1 & k2 for their sum, \[k1, k2\] for a family") as caught:
            plus()
        assert "\n" not in str(caught.value)
    with pytest.raises(TypeError):
        rbf & 3
