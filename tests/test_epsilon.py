"""Weak and strong ε for both losses, between any two models, and the compression ratio that carries its ε."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.tolerances import assert_close

import kip
from kip.epsilon import Compression, compression, strong, weak
from kip.krr import KernelRidge
from kip.sets import LabelledSet

F = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.4], [0.1, 0.9]])
F_TILDE = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.2, 0.8]])
Y = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])


def test_zero_one_by_hand() -> None:
    # f errs on the third, f̃ on the second: the rates agree and the models do not
    assert weak(F, F_TILDE, Y) == 0
    assert strong(F, F_TILDE) == 0.5
    assert weak(F, Y, Y) == 0.25


def test_mean_square_by_hand() -> None:
    assert_close(strong(F, F_TILDE, "mean-square"), (0.01 + 0.64 + 0.04 + 0.01) / 4, "rounding")
    expected = abs((0 + 0 + 0.36 + 0.01) - (0.01 + 0.64 + 0.16 + 0.04)) / 4
    assert_close(weak(F, F_TILDE, Y, "mean-square"), expected, "rounding")


@given(hnp.arrays(np.float64, (3, 5, 2), elements=st.floats(-2, 2)))
def test_zero_one_weak_is_at_most_strong(models: np.ndarray) -> None:
    f, f_tilde, y = models
    assert weak(f, f_tilde, y) <= strong(f, f_tilde) + 1e-12
    assert weak(f, f_tilde, y) == weak(f_tilde, f, y)
    assert strong(f, f) == strong(f, f, "mean-square") == 0


def test_the_two_sides_may_be_different_algorithms() -> None:
    """A nearest-neighbour rule against kernel ridge-regression, on one set and on half of it."""
    rng = np.random.default_rng(0)
    x, x_new = rng.normal(size=(40, 3)), rng.normal(size=(200, 3))
    y = np.stack([x[:, 0], -x[:, 0]], axis=1)
    f = KernelRidge([kip.kernel("rbf")], LabelledSet(x, y)).predict(x_new)
    nearest = y[:20][np.argmin(np.linalg.norm(x_new[:, None] - x[None, :20], axis=2), axis=1)]
    assert 0 < strong(f, nearest) < 0.5
    assert strong(f, nearest, "mean-square") > 0
    assert compression(40, 20, strong(f, nearest)).ratio == 2


def test_compression_is_always_given_with_its_epsilon() -> None:
    assert compression(60_000, 10, 0.08) == Compression(6000.0, 0.08)
    assert str(compression(60_000, 10, 0.0801)) == "6,000× (ε = 0.080)"
    assert "not measured" in str(compression(100, 10, None))


@pytest.mark.parametrize(("original", "distilled"), [(10, 0), (10, 11), (0, 0)])
def test_impossible_sizes_are_refused(original: int, distilled: int) -> None:
    with pytest.raises(ValueError, match=f"got {distilled}"):
        compression(original, distilled, 0.1)


@pytest.mark.parametrize(("a", "b"), [(F, F[:2]), (F[:, 0], F[:, 0]), (F[:0], F[:0])])
def test_predictions_of_other_shapes_are_refused(a: np.ndarray, b: np.ndarray) -> None:
    with pytest.raises(ValueError, match="predictions must be two"):
        strong(a, b)


def test_unknown_loss_is_named() -> None:
    with pytest.raises(ValueError, match="`loss` must be 'zero-one' or 'mean-square'; got 'hinge'"):
        strong(F, F_TILDE, "hinge")  # type: ignore[arg-type]
