"""Kernels as two pure functions: what NumPy arrays, JAX arrays and traces give agrees."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.tolerances import assert_close

import kip
from kip.kernels import Kernel, traced
from kip.kernels.executables import Executables


def cubic(x1: Any, x2: Any) -> Any:
    x1, x2 = x1.reshape(len(x1), -1), x2.reshape(len(x2), -1)
    return (1 + x1 @ x2.T / x1.shape[1]) ** 3


KERNELS = [kip.kernel(cubic), kip.kernel("conv2", "jax"), kip.kernel("convnet1:nngp", "jax")]


@pytest.mark.parametrize("kernel", KERNELS, ids=["cubic", "conv2", "convnet1:nngp"])
def test_the_bound_kernel_agrees_on_the_host_and_in_a_trace(kernel: Kernel) -> None:
    rng = np.random.default_rng(0)
    x, tile, cotangent = (rng.normal(size=s).astype(np.float32) for s in ((3, 4, 4, 1), (5, 4, 4, 1), (3, 5)))
    square = rng.normal(size=(3, 3)).astype(np.float32)
    square = square + square.T

    def everything(x: Any, tile: Any, cotangent: Any, square: Any) -> Any:
        bound = kernel.bind(x)
        k, pull = bound.tile(tile)
        k_ss, pull_own = bound.own()
        return k, bound.finish(pull(cotangent)), k_ss, bound.finish(pull_own(square))

    host = everything(x, tile, cotangent, square)
    with jax.enable_x64(True):
        device = jax.jit(everything)(*map(jnp.asarray, (x, tile, cotangent, square)))
    assert all(isinstance(leaf, np.ndarray | np.generic) for leaf in jax.tree.leaves(host))
    assert host[2].dtype == device[2].dtype == np.float64
    assert jax.tree.structure(host) == jax.tree.structure(device)
    for a, b in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert_close(a, b, "gradient", np.float32)


def test_own_kernels_share_the_bounded_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Executables(limit=2)
    monkeypatch.setattr(traced, "executables", kept)
    kernel = kip.kernel(cubic)
    for n in range(1, 5):
        x = np.eye(n, 6)
        assert_close(kernel.gram(x), (1 + x @ x.T / 6) ** 3, "rounding")
    assert len(kept) == 2
