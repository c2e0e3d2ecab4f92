"""Masks of ⌈ρd⌉ coordinates, what stands there, and the certificate that nothing touched it."""

from __future__ import annotations

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kip.corruption import Corruption, certify


@given(st.floats(0, 0.999), st.integers(1, 40), st.integers(0, 5))
def test_each_point_has_at_least_its_fraction_and_is_certified(rho: float, d: int, key: int) -> None:
    corruption = Corruption(rho)
    x, mask = corruption.apply(np.full((3, d), 7.0), key=key)
    per_point = mask.sum(axis=1)
    assert len(set(per_point.tolist())) == 1
    assert rho * d - 1e-6 <= per_point[0] < rho * d + 1
    assert (x[~mask] == 7).all()
    assert (np.abs(x[mask]) <= 1).all()
    assert certify(x, mask, corruption, key=key).holds


@pytest.mark.parametrize(("rho", "count"), [(0.29, 29), (0.9, 90), (0.111, 12), (0.0, 0)])
def test_the_count_is_rounded_up_from_what_was_meant(rho: float, count: int) -> None:
    assert Corruption(rho).mask((2, 100), key=0).sum(axis=1).tolist() == [count, count]


def test_points_have_their_own_masks_and_the_key_decides() -> None:
    shape = (4, 6, 6, 3)
    mask = Corruption(0.5).mask(shape, key=0)
    assert len({row.tobytes() for row in mask}) == 4
    assert np.array_equal(mask, Corruption(0.5).mask(shape, key=0))
    assert not np.array_equal(mask, Corruption(0.5).mask(shape, key=1))


def test_a_mask_may_be_shared_by_the_channels_of_a_pixel() -> None:
    mask = Corruption(0.3, by_pixel=True).mask((4, 6, 6, 3), key=0)
    assert (mask == mask[..., :1]).all()
    assert mask[..., 0].sum(axis=(1, 2)).tolist() == [math.ceil(0.3 * 36)] * 4
    free = Corruption(0.3).mask((4, 6, 6, 3), key=0)
    assert not (free == free[..., :1]).all()


def test_fill_is_noise_or_zeros() -> None:
    x = np.full((50, 40), 7.0, np.float32)
    noise, mask = Corruption(0.5).apply(x, key=0)
    assert noise.dtype == np.float32
    assert abs(noise[mask].mean()) < 0.1
    assert 0.9 < noise[mask].max() <= 1
    zeros, mask = Corruption(0.5, fill="zeros").apply(x, key=0)
    assert (zeros[mask] == 0).all()


def test_values_do_not_depend_on_the_data() -> None:
    a, mask = Corruption(0.5).apply(np.zeros((3, 8)), key=4)
    b, _ = Corruption(0.5).apply(np.full((3, 8), 9.0), key=4)
    assert np.array_equal(a[mask], b[mask])


def test_certificate_finds_what_was_changed() -> None:
    corruption = Corruption(0.4)
    x, mask = corruption.apply(np.random.default_rng(0).normal(size=(5, 10)), key=3)
    good = certify(x, mask, corruption, key=3)
    assert good.holds
    assert good.fraction == 0.4
    learned = np.where(mask, x, x + 1)
    assert certify(learned, mask, corruption, key=3).holds

    touched = x.copy()
    touched[tuple(np.argwhere(mask)[0])] = np.nextafter(touched[tuple(np.argwhere(mask)[0])], 2)
    found = certify(touched, mask, corruption, key=3)
    assert not found.holds
    assert "1 corrupted coordinates were changed" in found.reason
    assert "recorded key" in certify(x, mask, corruption, key=2).reason
    assert "only" in certify(x, mask & (np.arange(10) > 5), corruption, key=3).reason
    assert "shape" in certify(x[:, :9], mask, corruption, key=3).reason
    assert not certify(x, mask, Corruption(0.5), key=3).holds


@pytest.mark.parametrize("rho", [-0.1, 1.0, 1.5, float("nan")])
def test_fraction_outside_zero_to_one_is_named(rho: float) -> None:
    with pytest.raises(ValueError, match=r"`corruption` must be a fraction in \[0, 1\)"):
        Corruption(rho)


def test_unknown_fill_is_named() -> None:
    with pytest.raises(ValueError, match="`fill` must be one of noise, zeros; got 'ones'"):
        Corruption(0.5, fill="ones")
