"""Layer lists: their names, what they refuse, and the finite networks they give."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kip.kernels.network import Network, fan_ins, finite, named
from kip.kernels.planes_cpu import NumbaPlanesKernel

NAMES = ["fc1", "fc3", "conv1", "conv4", "convnet1", "convnet3", "myrtle5", "myrtle7", "myrtle10"]
LISTS = [
    "conv-relu-pool-conv-relu-gap",
    "flatten",
    "gap",
    "flatten-dense-dense",
    "pool-conv-gap-dense-relu",
    "conv-flatten",
]


@pytest.mark.parametrize("name", [*NAMES, *LISTS])
def test_names_round_trip(name: str) -> None:
    network = named(name)
    assert network is not None
    assert network.name == name
    assert network.layers[-1] == "dense"
    assert (*network.spatial, network.read_in, *network.hidden, "dense") == network.layers


def test_a_list_without_its_read_out_gets_it() -> None:
    assert Network(("conv", "relu", "flatten")) == Network(("conv", "relu", "flatten", "dense")) == named("conv1")
    assert named("flatten-dense-relu") == named("fc1")
    assert named("rbf") is None
    assert named("no-such-layers") is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("conv-rleu-flatten", "unknown layer 'rleu'.*Did you mean 'relu'"),
        ("conv-relu", "exactly one 'flatten' or 'gap'.*End it with flatten or gap"),
        ("conv-relu-gap-flatten", "Keep one of them"),
        ("flatten-conv", "'conv' cannot follow 'flatten'"),
        ("gap-pool", "'pool' cannot follow 'gap'"),
        ("conv-dense-flatten", "'dense' needs 'flatten' or 'gap' before it"),
        ("relu-flatten", "'relu' must follow"),
        ("conv-relu-relu-flatten", "'relu' must follow"),
        ("myrtle6", "myrtle5, myrtle7 and myrtle10"),
        ("conv0", "at least one hidden layer"),
    ],
)
def test_wrong_lists_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named(name)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ValueError, match="`layers` is empty"):
        Network(())


def test_shapes_are_checked() -> None:
    convnet, fc = named("convnet3"), named("fc1")
    assert convnet is not None
    assert fc is not None
    convnet.check((8, 9, 1))
    fc.check((7,))
    fc.check((2, 2, 3))
    with pytest.raises(ValueError, match="pools 3 times and needs images of at least 8×8; got 8×7"):
        convnet.check((8, 7, 1))
    with pytest.raises(ValueError, match="needs images"):
        convnet.check((64,))
    with pytest.raises(ValueError, match="at least one pixel and one channel"):
        convnet.check((8, 8, 0))


def test_finite_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="`width` and `classes`"):
        finite(Network(("flatten",)), width=0)
    with pytest.raises(ValueError, match="`parameterisation` must be"):
        finite(Network(("flatten",)), width=1, parameterisation="mean-field")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [*NAMES[:3], "convnet1", "myrtle5", *LISTS])
def test_finite_networks_have_the_shapes_of_their_lists(name: str) -> None:
    network = named(name)
    assert network is not None
    init, apply = finite(network, width=5, classes=3)
    weights = init(jax.random.key(0), (9, 8, 2))
    assert [int(np.prod(w["w"].shape[:-1])) for w in weights] == [fan for _, fan in fan_ins(network, (9, 8, 2), 5)]
    assert apply(weights, jnp.ones((4, 9, 8, 2))).shape == (4, 3)


def empirical(name: str, width: int, x: jax.Array, parameterisation: str, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples (draws, n, n) of f fᵀ/classes and of the Jacobian's Gram matrix over random finite networks."""
    network = named(name)
    assert network is not None
    init, apply = finite(network, width=width, parameterisation=parameterisation)  # type: ignore[arg-type]

    def sample(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights = init(key, x.shape[1:])
        f = apply(weights, x)[:, 0]
        flat = jax.tree.leaves(jax.jacobian(lambda w: apply(w, x)[:, 0])(weights))
        rows = jnp.concatenate([leaf.reshape(x.shape[0], -1) for leaf in flat], 1)
        return jnp.outer(f, f), rows @ rows.T

    nngp, ntk = jax.jit(lambda keys: jax.lax.map(sample, keys))(jax.random.split(jax.random.key(1), draws))
    return np.asarray(nngp), np.asarray(ntk)


@pytest.mark.parametrize(
    ("name", "parameterisation"),
    [("conv2", "ntk"), ("conv-relu-pool-conv-relu-gap", "standard"), ("conv-relu-flatten-dense-relu", "standard")],
)
def test_random_finite_networks_approach_the_kernel(name: str, parameterisation: str) -> None:
    """The mean over draws is within four standard errors of the infinite kernel; a single draw is nearer when wider."""
    x = np.random.default_rng(0).normal(size=(3, 5, 4, 2)).astype(np.float32)
    network = named(name)
    assert network is not None
    gaps = []
    for width in (16, 128):
        standard = {"width": width} if parameterisation == "standard" else {}
        nngp, ntk = empirical(name, width, jnp.asarray(x), parameterisation, 120)
        for samples, flag in ((nngp, True), (ntk, False)):
            exact = NumbaPlanesKernel(network, nngp=flag, **standard).gram(x.astype(np.float64))  # type: ignore[arg-type]
            error = np.abs(samples.mean(0) - exact)
            spread = samples.std(0) / np.sqrt(len(samples))
            assert (error < 4 * spread).all()
        gaps.append(np.sqrt(np.mean((ntk - exact) ** 2)) / np.abs(exact).max())
    assert gaps[1] < 0.7 * gaps[0]
