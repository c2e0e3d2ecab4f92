"""Loops of the host over tiles of pairs: results do not depend on the tiles, programs not on the number of images."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from tests.kernels.test_planes_cpu import network
from tests.tolerances import assert_close

from kip.kernels import pairwise
from kip.kernels.executables import Executables
from kip.kernels.planes import PlanesForm, PlanesKernel


@pytest.mark.parametrize("rows", [(1,), (5,), (7, 3)])
def test_tiles_of_pairs_do_not_change_the_result(monkeypatch: pytest.MonkeyPatch, rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    x1, x2, cotangent = rng.normal(size=(3, 4, 4, 1)), rng.normal(size=(4, 4, 4, 1)), rng.normal(size=(3, 4))
    kernel = PlanesKernel(network("convnet1"))
    whole, pull = kernel.vjp(x1, x2)
    whole_bar, whole_params_bar = pull(cotangent)
    whole_own = kernel.gram(x1)
    monkeypatch.setattr(PlanesForm, "rows", lambda *_: rows)  # the last tile is not full
    tiled, pull = kernel.vjp(x1, x2)
    x_bar, params_bar = pull(cotangent)
    assert_close(tiled, whole, "rounding")
    assert_close(x_bar, whole_bar, "rounding")
    assert_close(kernel.gram(x1), whole_own, "rounding")
    assert all(abs(params_bar[name] / whole_params_bar[name] - 1) < 1e-9 for name in params_bar)
    with jax.enable_x64(True):
        assert_close(jax.jit(kernel.gram)(x1, x2), whole, "rounding")


def test_programs_are_compiled_once_whatever_the_number_of_images_and_the_parameters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Executables()
    monkeypatch.setattr(pairwise, "executables", kept)
    monkeypatch.setattr(PlanesForm, "rows", lambda *_: (4,))
    rng = np.random.default_rng(2)

    def use(kernel: PlanesKernel, n: int) -> None:
        x = rng.normal(size=(n, 4, 4, 1)).astype(np.float32)
        kernel.gram(x)
        kernel.gram(x, x[:1])
        kernel.diag(x)
        bound = kernel.bind(x)
        for _, pull in (bound.tile(x), bound.own()):
            bound.finish(pull(np.ones((n, n), np.float32)))

    use(PlanesKernel(network("convnet1")), 2)
    # images, pairs, their pullbacks to one and to both sides, and images and pairs of K_ss in float64
    assert len(kept) == 7
    for n in (1, 3, 7):
        use(PlanesKernel(network("convnet1"), width=8 * n, weight_variance=1.0 + n), n)
    assert len(kept) == 7
    use(PlanesKernel(network("convnet1"), nngp=True), 2)
    assert len(kept) == 11  # NTK and NNGP share what concerns single images


def test_no_images_give_empty_results() -> None:
    kernel, x = PlanesKernel(network("conv1")), np.ones((3, 4, 4, 1))
    assert kernel.gram(x, x[:0]).shape == (3, 0)
    assert kernel.gram(x[:0]).shape == (0, 0)
    assert kernel.diag(x[:0]).shape == (0,)
    k, pull = kernel.vjp(x, x[:0])
    x_bar, params_bar = pull(np.ones((3, 0)))
    assert k.shape == (3, 0)
    assert not x_bar.any()
    assert params_bar == {"weight_variance": 0, "bias_variance": 0}
