"""Offset planes: pooling, lookups and their adjoints against the covariance of every pair of pixels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.kernels.test_planes_cpu import network
from tests.tolerances import assert_close

from kip.kernels.grids import levels, tabulate

SHAPES = [(8, 8, 2), (7, 10, 1), (12, 5, 3)]


def dense(images: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Products of every pixel of one image with every pixel of another, (y, x, y', x')."""
    return np.einsum("abc,dec->abde", images, others) / images.shape[-1]


def pooled(k: np.ndarray) -> np.ndarray:
    """Average over 2×2 pixels of both images."""
    h, w = k.shape[0] // 2, k.shape[1] // 2
    return k[: 2 * h, : 2 * w, : 2 * h, : 2 * w].reshape(h, 2, w, 2, h, 2, w, 2).mean((1, 3, 5, 7))


@pytest.mark.parametrize("shape", SHAPES)
def test_planes_are_products_of_pixels_and_pool_like_them(shape: tuple[int, int, int]) -> None:
    plan = levels(network("conv-relu-pool-conv-relu-pool-flatten"), shape)
    first, second, last = tabulate(plan)
    x1, x2 = np.random.default_rng(0).normal(size=(2, *shape))
    with jax.enable_x64(True):
        images = [jnp.asarray(x)[..., None] for x in (x1, x2)]
        planes = first.mask(jnp.mean(first.first(images[0]) * first.second(images[1]), -2))
        for grid, level, k in (
            (second, plan[1], pooled(dense(x1, x2))),
            (last, plan[2], pooled(pooled(dense(x1, x2)))),
        ):
            planes = grid.pool(planes)
            y, x = level.zero
            diagonal = np.einsum("abab->ab", k)
            assert_close(planes[y, :, x, :, 0], diagonal, "rounding")


@pytest.mark.parametrize("shape", SHAPES)
def test_pooling_has_an_exact_adjoint_of_any_order(shape: tuple[int, int, int]) -> None:
    plan = levels(network("conv-relu-pool-flatten"), shape)
    first, second = tabulate(plan)
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        k = first.mask(jnp.asarray(rng.normal(size=(*first.y.other.shape, *first.x.other.shape, 3))))
        out = second.pool(k)
        bar = second.mask(jnp.asarray(rng.normal(size=out.shape)))
        _, back = jax.vjp(second.pool, k)
        assert_close(jnp.vdot(back(bar)[0], k), jnp.vdot(bar, out), "rounding")
        twice = jax.grad(lambda bar: jnp.vdot(back(bar)[0], k))(bar)
        assert_close(twice, out, "rounding")
