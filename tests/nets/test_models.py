"""Networks by name: their shapes, parameter counts and gradients, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tests.tolerances import assert_close

from kip.kernels.network import convolve, finite, named
from kip.nets import models

MODELS = {
    # name: (shape, parameters by hand)
    "fc1": ((28, 28, 1), 784 * 1024 + 1024 + 1024 * 10 + 10),
    "fc3:16": ((5,), 5 * 16 + 16 + 2 * (16 * 16 + 16) + 16 * 10 + 10),
    "conv2:8": ((6, 5, 3), 9 * 3 * 8 + 8 + 9 * 8 * 8 + 8 + 30 * 8 * 10 + 10),
    "conv-relu-pool-gap:4": ((8, 8, 1), 9 * 4 + 4 + 4 * 10 + 10),
    "convnet": ((32, 32, 3), 320_010),  # as Zhao et al. have it
    "convnet:8": ((8, 8, 1), 9 * 8 + 8 + 2 * (9 * 64 + 8) + 3 * 16 + 8 * 10 + 10),
    "lenet": ((28, 28, 1), 61_706),  # LeNet-5 on padded 28×28 images
    "alexnet": ((8, 8, 1), 1_837_002),
    "wideresnet": ((32, 32, 3), 175_066),
    "wideresnet10-1": ((8, 8, 1), 77_562),
}
SMALL = {
    **{name: MODELS[name][0] for name in ("fc3:16", "conv2:8", "conv-relu-pool-gap:4", "convnet:8", "wideresnet10-1")},
    "lenet": (12, 13, 2),
    "alexnet": (8, 9, 1),
}
"""Shapes small enough to differentiate in; odd ones where what a pool leaves over matters."""


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_output_shapes(name: str) -> None:
    shape, parameters = MODELS[name]
    model = nnx.eval_shape(lambda: models.build(name, shape, 10, seed=0))
    assert models.count(model) == parameters
    out = nnx.eval_shape(lambda: models.build(name, shape, 10, seed=0)(jnp.zeros((3, *shape))))
    assert out.shape == (3, 10)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    shape = SMALL[name]
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        model = models.build(name, shape, 10, seed=3)
        graph, params = nnx.split(model)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        x, y = jnp.asarray(rng.normal(size=(4, *shape))), jnp.asarray(rng.normal(size=(4, 10)))
        direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)

        @jax.jit
        def loss(t: float) -> jax.Array:
            moved = jax.tree.map(lambda p, d: p + t * d, params, direction)
            return jnp.mean((nnx.merge(graph, moved)(x) - y) ** 2)

        h = 1e-5 / np.sqrt(models.count(model))  # so short that no ReLU or maximum changes sides on the way
        numeric = (loss(h) - loss(-h)) / (2 * h)
        assert_close(jax.jit(jax.grad(loss))(0.0), numeric, "finite difference")


@pytest.mark.parametrize(("size", "padding"), [(3, "SAME"), (5, "VALID"), (1, "SAME"), (4, "SAME")])
def test_the_convolution_and_its_pullback_are_those_of_jax(size: int, padding: str) -> None:
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        x, w = jnp.asarray(rng.normal(size=(2, 7, 6, 3))), jnp.asarray(rng.normal(size=(size, size, 3, 4)))
        numbers = ("NHWC", "HWIO", "NHWC")

        def theirs(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.lax.conv_general_dilated(x, w, (1, 1), padding, dimension_numbers=numbers)

        expected, pull = jax.vjp(theirs, x, w)
        found, our_pull = jax.vjp(lambda x, w: convolve(x, w, padding), x, w)
        cotangent = jnp.asarray(rng.normal(size=expected.shape))
        assert_close(found, expected, "value")
        for ours, other in zip(our_pull(cotangent), pull(cotangent), strict=True):
            assert_close(ours, other, "value")


@pytest.mark.parametrize("parameterisation", ["ntk", "standard"])
def test_layer_lists_are_the_kernels_own_finite_networks(parameterisation: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 4, 2)), jnp.float32)
    model = models.build("conv1", (4, 4, 2), 5, seed=7, width=6, parameterisation=parameterisation)
    network = named("conv1")
    assert network is not None
    init, apply = finite(network, width=6, classes=5, parameterisation=parameterisation)  # type: ignore[arg-type]
    weights = init(nnx.Rngs(jax.random.key(7)).params(), (4, 4, 2))
    np.testing.assert_array_equal(model(x), apply(weights, x))
    assert models.parameterised("conv1:6")
    assert not models.parameterised("lenet")


def test_batch_norm_has_no_memory() -> None:
    model = models.build("wideresnet10-1", (8, 8, 1), 3, seed=0)
    rng = np.random.default_rng(0)
    first, second = (jnp.asarray(rng.normal(size=(6, 8, 8, 1)), jnp.float32) for _ in range(2))
    before = model(first)
    model(second + 5)
    np.testing.assert_array_equal(model(first), before)
    assert not jax.tree.leaves(nnx.state(model, nnx.Not(nnx.Param)))


def test_seeds_give_different_networks_and_equal_seeds_equal_ones() -> None:
    x = jnp.ones((1, 6))
    one, again, other = (models.build("fc1:8", (6,), 3, seed=seed)(x) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


class Own(nnx.Module):
    """A user's own network."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(int(np.prod(shape)), classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.dense(x.reshape(len(x), -1))


def test_ones_own_network_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert models.count(models.build(Own, (2, 2, 1), 3, seed=0)) == 15
    (tmp_path / "nets_of_mine.py").write_text(
        "from flax import nnx\n\n\n"
        "def small(shape, classes, *, rngs):\n    return nnx.Linear(shape[0], classes, rngs=rngs)\n"
    )
    monkeypatch.chdir(tmp_path)
    assert models.count(models.build("nets_of_mine:small", (4,), 2, seed=0)) == 10
    sys.modules.pop("nets_of_mine")
    with pytest.raises(ValueError, match="cannot be imported"):
        models.build("nets_of_mine:other", (4,), 2, seed=0)
    with pytest.raises(ValueError, match="must give a flax NNX module; it gave int"):
        models.build(lambda *_, rngs: rngs and 3, (4,), 2, seed=0)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fc2:8", "conv1:4", "convnet:4", "lenet", "alexnet", "wideresnet10-1"])
def test_a_silenced_network_gives_zeros_and_can_still_learn(name: str) -> None:
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, 16, 16, 1)), jnp.float32)
    fresh = models.build(name, (16, 16, 1), 3, seed=0)
    assert float(jnp.abs(fresh(x)).max()) > 0  # type: ignore[operator]
    model = models.silenced(models.build(name, (16, 16, 1), 3, seed=0))
    assert float(jnp.abs(model(x)).max()) == 0  # type: ignore[operator]
    gradient = nnx.grad(lambda model: jnp.sum(model(x)[:, 0]))(model)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) > 0


def test_a_network_that_names_no_read_out_is_left_as_it_is() -> None:
    own = nnx.Linear(4, 2, rngs=nnx.Rngs(0))
    assert not models.has_read_out(own)
    assert float(jnp.abs(models.silenced(own).kernel[...]).max()) > 0  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "shape", "options", "message"),
    [
        ("lennet", (28, 28, 1), {}, "did you mean 'lenet'"),
        ("fc1", (5,), {"parameterisation": "mean-field"}, "'ntk' or 'standard'"),
        ("fc1", (5,), {"width": 0}, "`width` must be at least 1"),
        ("fc1:0", (5,), {}, "`width` must be at least 1"),
        ("lenet", (8, 8, 1), {}, "at least 12×12; got 8×8"),
        ("convnet", (64,), {}, "needs images"),
        ("lenet", (28, 28, 1), {"parameterisation": "ntk"}, "standard parameterisation only"),
        ("lenet", (28, 28, 1), {"width": 8}, "widths of its own"),
        ("wideresnet12-1", (8, 8, 1), {}, "6n \\+ 4"),
        ("wideresnet", (8, 8, 1), {"width": 4}, "write wideresnet16-4"),
        ("wideresnet10-1:4", (8, 8, 1), {}, "write wideresnet16-4"),
        (Own, (4,), {"width": 8}, "network 'Own' is built as it is; leave `width` and `parameterisation` out"),
        (Own, (4,), {"parameterisation": "ntk"}, "network 'Own' is built as it is"),
    ],
)
def test_what_is_refused(name: str, shape: tuple[int, ...], options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build(name, shape, 10, seed=0, **options)
