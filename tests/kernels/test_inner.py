"""Linear, RBF and FC-m kernels: closed forms, the oracle values, and the points where they are hard."""

from __future__ import annotations

import contextlib
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial.distance
from tests.tolerances import assert_close

import kip
from kip.kernels import inner, relu
from kip.kernels.inner import FC, RBF

DATA = Path(__file__).parent / "data"
CASES = [(f"fc{m}", param, get) for m in (1, 2, 3) for param in ("ntk", "standard") for get in ("ntk", "nngp")]
HARD = np.zeros((5, 4), bool)
HARD[1, 2] = HARD[0, 3] = True  # identical, and opposite


@cache
def oracle(channels: int) -> dict[str, np.ndarray]:
    with np.load(DATA / f"oracle_8x8x{channels}.npz") as stored:
        return dict(stored)


def fc_kernel(name: str, param: str, get: str) -> kip.kernels.Kernel:
    options = [":nngp"] if get == "nngp" else []
    options += [":standard=1024"] if param == "standard" else []
    return kip.kernel(name + "".join(options))


def run_as(jitted: bool) -> contextlib.AbstractContextManager[None]:
    """Compiling is most of what these cases cost, so some run operation by operation."""
    return contextlib.nullcontext() if jitted else jax.disable_jit()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize(("channels", "jitted"), [(1, False), (3, True)])
@pytest.mark.parametrize(("name", "param", "get"), CASES)
def test_fc_equals_the_oracle(name: str, param: str, get: str, channels: int, jitted: bool, dtype: type) -> None:
    stored, kernel = oracle(channels), fc_kernel(name, param, get)
    k11, k12, d_x1 = (stored[f"{name}-{param}/{get}/{which}"] for which in ("k11", "k12", "d_x1"))
    x1, x2, x1_generic, x2_generic = (stored[x].astype(dtype) for x in ("x1", "x2", "x1_generic", "x2_generic"))
    with jax.disable_jit():
        d2 = kernel.diag(stored["x2"])
    with run_as(jitted and name != "fc3"):
        k_12, _ = kernel.vjp(x1, x2)
        k_11 = kernel.gram(x1)
        x_bar, _ = kernel.vjp(x1_generic, x2_generic)[1](stored["cotangent"].astype(dtype))
    assert k_12.dtype == k_11.dtype == x_bar.dtype == dtype
    d1 = np.diag(k11)
    scale = np.sqrt(d1[:, None] * d2[None, :])
    assert_close(k_12[~HARD], k12[~HARD], "value", dtype, scale=scale[~HARD])
    assert_close(k_12[HARD], k12[HARD], "hard", dtype, scale=scale[HARD])
    scale, off = np.sqrt(d1[:, None] * d1[None, :]), ~np.eye(5, dtype=bool)
    assert_close(k_11[off], k11[off], "value", dtype, scale=scale[off])
    assert_close(np.diag(k_11), d1, "hard", dtype, scale=d1)
    assert_close(x_bar, d_x1, "gradient", dtype)


def test_linear_is_the_inner_product() -> None:
    x = np.random.default_rng(0).normal(size=(6, 3))
    assert_close(kip.kernel("linear").gram(x, x[:4]), x @ x[:4].T, "rounding")


def test_rbf_is_that_of_the_distance() -> None:
    rng = np.random.default_rng(0)
    x1, x2 = rng.normal(size=(6, 5)), rng.normal(size=(4, 5))
    square = scipy.spatial.distance.cdist(x1, x2, "sqeuclidean")
    assert_close(kip.kernel("rbf").gram(x1, x2), np.exp(-square / 5), "rounding")
    assert_close(kip.kernel("rbf:gamma=0.3").gram(x1, x2), np.exp(-0.3 * square / 5), "rounding")


def test_images_count_as_their_pixels() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3, 3, 2))
    for name in ("linear", "rbf", "fc2"):
        assert_close(kip.kernel(name).gram(x), kip.kernel(name).gram(x.reshape(4, -1)), "rounding")


@pytest.mark.parametrize("depth", [1, 3])
def test_fc_nngp_agrees_with_sampled_networks(depth: int) -> None:
    """The covariance of the outputs of random networks, layer after layer, within five standard errors."""
    rng = np.random.default_rng(0)
    x, width, draws = rng.normal(size=(3, 6)), 256, 300
    outputs = np.empty((draws, 3))
    for i in range(draws):
        h = x
        for fan_out in [width] * depth + [1]:
            if h is not x:
                h = np.maximum(h, 0)
            h = h @ rng.normal(size=(h.shape[1], fan_out)) * np.sqrt(2 / h.shape[1]) + 0.3 * rng.normal(size=fan_out)
        outputs[i] = h[:, 0]
    products = outputs[:, :, None] * outputs[:, None, :]
    error = products.std(axis=0) / np.sqrt(draws)
    k = FC(depth, nngp=True, bias_variance=0.09).gram(x)
    assert (np.abs(products.mean(axis=0) - k) < 5 * error).all()


@pytest.mark.parametrize(("dtype", "limit"), [(np.float64, 4e-15), (np.float32, 2e-7)])
def test_dual_activations_are_the_arc_cosine(dtype: type, limit: float) -> None:
    u = np.concatenate([np.linspace(-1, 1, 2001), 1 - np.logspace(-5, 0, 50), np.logspace(-5, 0, 50) - 1]).astype(dtype)
    wide = u.astype(np.longdouble)
    angle, pi = np.arccos(wide), np.arccos(np.longdouble(-1))
    with jax.enable_x64(dtype == np.float64):
        k0, k1 = np.asarray(relu.kappa0(jnp.asarray(u))), np.asarray(relu.kappa1(jnp.asarray(u)))
    assert k0.dtype == k1.dtype == dtype
    assert np.abs(k0 - (1 - angle / pi)).max() < limit
    assert np.abs(k1 - (np.sqrt(1 - wide * wide) + wide * (pi - angle)) / pi).max() < limit


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", ["linear", "rbf", "fc1", "fc2:standard=64"])
def test_a_set_with_itself_is_symmetric_to_the_bit(name: str, dtype: type) -> None:
    x = np.random.default_rng(0).normal(size=(67, 53)).astype(dtype)
    k = kip.kernel(name).gram(x)
    assert np.array_equal(k, k.T)
    assert_close(k, kip.kernel(name).gram(x, x.copy()), "hard", dtype)


@pytest.mark.parametrize("name", ["linear", "rbf", "fc1"])
def test_products_of_a_device_are_those_of_the_host(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x1, x2, cotangent = rng.normal(size=(6, 5)), rng.normal(size=(4, 5)), rng.normal(size=(6, 4))
    kernel, found = kip.kernel(name), []
    for on_host in (True, False):
        monkeypatch.setattr(inner, "on_cpu", lambda on_host=on_host: on_host)
        k, pull = kernel.vjp(x1, x2)
        found.append((k, pull(cotangent)[0], kernel.gram(x1)))
        assert kernel.concurrent == on_host
    for device, host in zip(*found, strict=True):
        assert_close(device, host, "rounding")


@pytest.mark.parametrize("name", ["rbf", "fc1", "fc2:standard=1024"])
def test_float32_holds_at_identical_and_opposite_images(name: str) -> None:
    """The square-root cone at correlation ±1 must not turn rounding in long products into 1e-4 of the kernel."""
    x = np.random.default_rng(0).normal(size=(32, 3072))
    kernel = kip.kernel(name)
    exact, single = (
        kernel.gram(x, np.concatenate([x, -x])),
        kernel.gram(x.astype("f"), np.concatenate([x, -x], dtype="f")),
    )
    scale = np.sqrt(kernel.diag(x)[:, None] * kernel.diag(np.concatenate([x, -x]))[None, :])
    assert_close(single, exact, "hard", np.float32, scale=scale)


def test_compiled_code_is_shared_between_values_of_the_parameters() -> None:
    x = np.random.default_rng(0).normal(size=(7, 11))
    RBF(1.0).gram(x, x)
    before = inner._profiled._cache_size()
    for gamma in (0.5, 2.0, 3.0):
        RBF(gamma).gram(x, x)
    assert inner._profiled._cache_size() == before


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rbg", "unknown kernel 'rbg'; did you mean 'rbf'"),
        ("myrtel10", "did you mean 'myrtle10'"),
        ("linaer", "did you mean 'linear'"),
        ("", "unknown kernel"),
        ("fc0", "at least one hidden layer"),
        ("rbf:gamma=0", "`gamma` must be a positive number; got 0"),
        ("rbf:gamma=-1", "`gamma` must be a positive number"),
        ("rbf:gamma=nan", "`gamma`"),
        ("rbf:gamma", "`gamma` in kernel .* must be a number"),
        ("rbf:gama=2", "unknown option 'gama'; it takes: gamma"),
        ("fc1:ntk:nngp", "either 'ntk' or 'nngp'"),
        ("fc1:standard=1.5", "`standard` .* whole number"),
        ("fc1:standard=0", "`standard` .* whole number"),
        ("fc1:standard=inf", "`standard`"),
        ("fc1:standard=nan", "`standard`"),
        ("fc1:weight_variance=0", "`weight_variance`"),
        ("fc1:bias_variance=-1", "`bias_variance`"),
        ("0*rbf", "multiplied by a positive number"),
        ("-1*rbf", "multiplied by a positive number"),
        ("x*rbf", "a multiple of a kernel is written"),
        ("fc1+rbf", "names a family"),
    ],
)
def test_bad_specs_say_what_to_do(spec: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kip.kernel(spec)


def test_bad_engines_and_families_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="`engine` must be one of jax, numba"):
        kip.kernel("rbf", engine="torch")
    with pytest.raises(ValueError, match="jax engine only"):
        kip.kernel("rbf", engine="numba")
    with pytest.raises(ValueError, match="`kernel` names no kernel"):
        kip.family([])
    with pytest.raises(ValueError, match="has no learnable hyper-parameters"):
        kip.kernel("linear").with_params({"gamma": 1.0})


def test_points_of_wrong_rank_or_of_two_shapes_are_named() -> None:
    kernel = kip.kernel("rbf")
    with pytest.raises(ValueError, match=r"`x1` must be images .*got shape \(3,\)"):
        kernel.gram(np.zeros(3))
    with pytest.raises(ValueError, match=r"`x1` and `x2` must hold points of one shape; got \(3,\) and \(4,\)"):
        kernel.gram(np.zeros((2, 3)), np.zeros((2, 4)))


def test_families_are_read_from_strings_and_lists() -> None:
    assert [k.spec for k in kip.family("fc1+rbf:gamma=1e+1+fc2:nngp")] == ["fc1", "rbf:gamma=10", "fc2:nngp"]
    assert [k.spec for k in kip.family(["fc1", kip.kernel("rbf")])] == ["fc1", "rbf"]
    assert [k.spec for k in kip.family(kip.kernel("rbf"))] == ["rbf"]
