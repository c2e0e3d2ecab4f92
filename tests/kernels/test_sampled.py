"""Kernels of networks with random weights: the contract, their draws, and the exact kernel that they approach."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip import algorithm
from kip.algorithm import Config, Problem, adam
from kip.kernels import Kernel
from kip.kernels.sampled import CHUNK
from kip.sets import LabelledSet, one_hot

SPECS = [
    "convnet2:sampled=16:ensemble=2",
    "conv-norm-relu-pool-conv-relu-gap:sampled=12:ensemble=1",
    "fc2:sampled=32",
    "conv1:sampled=8:draw=3:nets=2:weight_variance=1.5:bias_variance=0.1",
]
SHAPE = (8, 8, 3)

every = pytest.mark.parametrize("spec", SPECS)


def points(seed: int, n: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, *SHAPE))


@every
def test_gram_is_symmetric_and_positive_semi_definite(spec: str) -> None:
    kernel, x = kip.kernel(spec), points(0)
    k = kernel.gram(x)
    assert np.array_equal(k, k.T)
    assert np.linalg.eigvalsh(k).min() > -1e-12 * np.trace(k)
    assert_close(kernel.gram(x, x), k, "rounding")
    assert_close(kernel.diag(x), np.diag(k), "rounding")
    assert kernel.gram(x.astype("f")).dtype == np.float32
    assert_close(kernel.gram(x.astype("f")), k, "single", np.float32)


@every
def test_tiles_equal_the_whole(spec: str) -> None:
    kernel, x, targets = kip.kernel(spec), points(0).astype("f"), points(1, CHUNK + 7).astype("f")
    whole = kernel.gram(x, targets)
    bound = kernel.bind(x)
    parts = [bound.gram(targets[:3]), bound.tile(targets[3:])[0]]
    assert_close(np.concatenate(parts, axis=1), whole, "value", np.float32)


@every
def test_gradients_equal_finite_differences(spec: str) -> None:
    kernel, x, targets = kip.kernel(spec), points(0), points(1, 4)
    rng = np.random.default_rng(2)
    cotangent, own = rng.normal(size=(5, 4)), rng.normal(size=(5, 5))
    direction, own = rng.normal(size=x.shape), own + own.T
    bound = kernel.bind(x)
    _, pull = bound.tile(targets)
    _, pull_own = bound.own()
    x_bar, params_bar = bound.finish(pull(cotangent) + pull_own(own))
    assert params_bar == {}

    def value(h: float) -> float:
        moved = x + h * direction
        return float(np.sum(cotangent * kernel.gram(moved, targets)) + np.sum(own * kernel.gram(moved)))

    numeric = (8 * (value(1e-5) - value(-1e-5)) - (value(2e-5) - value(-2e-5))) / 12e-5
    assert_close(np.vdot(x_bar, direction), numeric, "finite difference", scale=np.linalg.norm(x_bar))


@every
def test_a_kernel_is_rebuilt_from_its_spec_and_by_pickle(spec: str) -> None:
    kernel, x = kip.kernel(spec), points(0).astype("f")
    assert kernel.spec == spec
    for again in (kip.kernel(spec), pickle.loads(pickle.dumps(kernel))):
        assert again == kernel
        assert np.array_equal(again.gram(x), kernel.gram(x))


def test_a_step_draws_networks_of_its_own_from_key_and_step_alone() -> None:
    kernel, x = kip.kernel("convnet1:sampled=8:nets=2"), points(0).astype("f")
    one, same = kernel.at(key=1, step=2), kip.kernel("convnet1:sampled=8:nets=2").at(key=1, step=2)
    assert np.array_equal(one.gram(x), same.gram(x))
    others = [kernel, kernel.at(key=1, step=3), kernel.at(key=2, step=2)]
    assert all(not np.array_equal(one.gram(x), other.gram(x)) for other in others)
    assert all(one != other for other in others)
    both = (0.5 * kernel & kip.kernel("rbf")).at(key=1, step=2)
    assert_close(both.gram(x), 0.5 * one.gram(x) + kip.kernel("rbf").gram(x), "rounding", np.float32)
    assert kip.kernel("rbf").at(key=0, step=5) == kip.kernel("rbf")


def gap(width: int, exact: np.ndarray, x: np.ndarray) -> float:
    """Mean error of one network's kernel, over ten draws."""
    draws = [kip.kernel(f"convnet2:sampled={width}:ensemble=1:draw={n}:bias_variance=0.1") for n in range(10)]
    return float(np.mean([np.abs(kernel.gram(x) - exact).mean() for kernel in draws]))


def test_the_gap_to_the_exact_kernel_falls_as_width_grows() -> None:
    x = points(0, 4).astype("f")
    exact = kip.kernel("convnet2:nngp:bias_variance=0.1").gram(x)
    gaps = [gap(width, exact, x) for width in (16, 64, 256)]
    assert gaps[0] > 1.5 * gaps[1] > 2.25 * gaps[2]
    # a hidden layer: no bias, so the mean of many networks is the kernel
    one = kip.kernel("fc1:nngp").gram(x)
    mean = kip.kernel("fc1:sampled=256:ensemble=200").gram(x)
    assert np.abs(mean - one).max() < 0.05 * one.max()


def problem() -> Problem:
    rng = np.random.default_rng(0)
    codes = np.arange(90) % 3
    x = rng.normal(size=(90, *SHAPE)) + np.eye(3)[codes][:, None, None, :]
    return Problem(LabelledSet(x.astype("f"), one_hot(codes, 3)), codes, 3)


def test_learning_with_sampled_networks_lowers_the_loss_and_repeats_to_the_bit() -> None:
    of = problem()
    settings = Config((kip.kernel("convnet1:sampled=16"),), 6, 12, adam(0.05, 12), batch=45, evaluate_every=4)
    start = algorithm.init(of, settings, key=0)
    one = algorithm.run(of, settings, start)
    assert one.best[0].loss < one.evaluated[0] or one.best[0].step > 4
    half = algorithm.run(of, settings, start, stop=iter([False] * 7 + [True]).__next__)
    rest = algorithm.run(of, settings, half)
    for a, b in zip(jax.tree.leaves(rest.best[0]), jax.tree.leaves(one.best[0]), strict=True):
        assert np.array_equal(a, b)


def test_more_support_points_than_features_are_refused() -> None:
    with pytest.raises(ValueError, match=r"has 2 features for a support set of 5 points.* larger width"):
        kip.kernel("conv-relu-gap:sampled=1:ensemble=2").bind(points(0))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("convnet2:sampled=0", "`sampled` of a sampled kernel must be at least 1; got 0"),
        ("convnet2:sampled=1.5", "`sampled` .* must be a whole number; got 1.5"),
        ("convnet2:sampled=8:ensemble=0", "`ensemble` of a sampled kernel must be at least 1"),
        ("convnet2:sampled=8:draw=-1", "`draw` of a sampled kernel must be 0 or more"),
        ("convnet2:sampled=8:nngp", "unknown option 'nngp'"),
        ("convnet2:sampled=8:standard=4", "unknown option 'standard'"),
        ("rbf:sampled=8", "unknown option 'sampled'"),
        ("flatten:sampled=8", "needs a hidden layer"),
        ("conv-norm-relu-flatten", "has no exact kernel; write conv-norm-relu-flatten:sampled=128"),
        ("norm-conv-flatten:sampled=8", "'norm' must follow a 'conv'"),
    ],
)
def test_bad_specs_say_what_to_do(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kip.kernel(spec)


def test_vectors_cannot_be_convolved() -> None:
    with pytest.raises(ValueError, match="needs images"):
        kip.kernel("convnet1:sampled=8").gram(np.zeros((3, 5)))
    assert kip.kernel("fc1:sampled=8").gram(np.ones((3, 5))).shape == (3, 3)


def test_the_set_is_saved_and_loaded_with_its_ensemble(tmp_path: Any) -> None:
    of = problem()
    small = kip.distill(of.train.x, of.codes, size=3, steps=2, kernel="convnet1:sampled=8", batch=30)
    again = kip.load(small.save(tmp_path))
    kernel: Kernel = again.kernels[0]
    assert kernel.spec == "convnet1:sampled=8"
    assert np.array_equal(again.scores(of.train.x), small.scores(of.train.x))
