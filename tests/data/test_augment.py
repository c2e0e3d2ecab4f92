"""Augmentation against SciPy's interpolation, and what must hold of any draw."""

import numpy as np
import pytest
from scipy import ndimage

from kip.data.augment import Augment, _augmented, named
from kip.data.checks import AUGMENTATIONS

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (40, 9, 8), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("mirror", [1.0, -1.0])
@pytest.mark.parametrize(("angle", "down", "right"), [(0.17, 0.1, -0.1), (-0.1, 0.0, 0.3), (1.0, -0.2, 0.0)])
def test_the_warp_equals_scipys(angle: float, down: float, right: float, mirror: float, channels: int) -> None:
    image = RNG.normal(size=(9, 8, channels)).astype(np.float32)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) @ np.diag([1.0, mirror])
    middle = np.array([4.0, 3.5])
    offset = middle + np.array([down * 9, right * 8]) - turn @ middle
    got = np.empty((1, 9, 8, channels), np.float32)
    _augmented(image[None], np.array([[mirror, angle, down, right, 0.0]]).T, got)
    for c in range(channels):
        want = ndimage.affine_transform(image[..., c].astype(np.float64), turn, offset, order=1, mode="nearest")
        np.testing.assert_allclose(got[0, ..., c], want, atol=2e-5)


@pytest.mark.parametrize("images", [GREY, COLOUR], ids=["grey", "colour"])
def test_nothing_switched_on_changes_nothing(images: np.ndarray) -> None:
    out = Augment()(rng(), images)
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, images)
    np.testing.assert_allclose(Augment(shift=1e-9)(rng(), images), images, atol=1e-3)


def test_a_flip_twice_is_the_identity_and_about_half_are_flipped() -> None:
    flips = Augment.flips()
    once = flips(rng(), COLOUR)
    np.testing.assert_array_equal(flips(rng(), once), COLOUR)
    flipped = [np.array_equal(a, b[:, ::-1]) for a, b in zip(once, COLOUR, strict=True)]
    assert 10 <= sum(flipped) <= 30
    for a, b, is_flipped in zip(once, COLOUR, flipped, strict=True):
        np.testing.assert_array_equal(a, b[:, ::-1] if is_flipped else b)


def test_flips_with_and_without_the_warp_agree() -> None:
    np.testing.assert_allclose(Augment(flip=True, shift=1e-9)(rng(), COLOUR), Augment.flips()(rng(), COLOUR), atol=1e-3)


def test_shifts_stay_within_the_fraction() -> None:
    """A ramp's value tells where it was read."""
    ramp = np.broadcast_to(np.arange(101, dtype=np.float32)[None, :, None], (40, 101, 101))
    moved = Augment(shift=0.1)(rng(), ramp)[:, 50, 50] - 50
    assert np.abs(moved).max() <= 10.1
    assert moved.min() < -5
    assert moved.max() > 5


def test_rotation_stays_within_its_degrees() -> None:
    ramp = np.broadcast_to(np.arange(101, dtype=np.float32)[None, :, None], (40, 101, 101))
    slope = Augment(rotation=10.0)(rng(), ramp)[:, 50, 60] - 50  # 10 pixels to the right of the middle
    angles = np.degrees(np.arcsin(slope / 10))
    assert np.abs(angles).max() <= 10.01
    assert angles.min() < -5
    assert angles.max() > 5


def test_channel_shift_is_for_colour_and_keeps_the_range() -> None:
    shift = Augment(channel_shift=0.2)
    np.testing.assert_array_equal(shift(rng(), GREY), GREY)
    out = shift(rng(), COLOUR)
    for before, after in zip(COLOUR.astype(float), out, strict=True):
        inside = (after > before.min()) & (after < before.max())
        moved = (after - before)[inside]
        assert np.ptp(moved) < 1e-3  # one number for the whole image
        assert abs(moved[0]) <= 0.2 * np.ptp(before) + 1e-3
        assert after.min() >= before.min()
        assert after.max() <= before.max()


@pytest.mark.parametrize("images", [GREY, COLOUR], ids=["grey", "colour"])
def test_the_generator_decides_everything_in_any_precision(images: np.ndarray) -> None:
    photos = Augment.photos()
    out = photos(rng(), images)
    assert out.shape == images.shape
    assert out.min() >= 0
    assert out.max() <= 255
    np.testing.assert_array_equal(photos(rng(), images), out)
    np.testing.assert_array_equal(photos(rng(), images.astype(np.float64)), out)
    assert not np.array_equal(photos(rng(4), images), out)


def test_names() -> None:
    assert named("none") is None
    assert [named(name) for name in AUGMENTATIONS[1:]] == [Augment.digits(), Augment.photos(), Augment.flips()]
    assert not Augment.digits().flip
    with pytest.raises(ValueError, match="'digits'"):
        named("digit")


@pytest.mark.parametrize("bad", [{"shift": -0.1}, {"rotation": 999.0}, {"channel_shift": float("nan")}])
def test_bad_amounts_are_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Augment(**bad)  # type: ignore[arg-type]


def test_how_far_it_shifts_may_be_named() -> None:
    assert named("digits:0.05") == Augment(shift=0.05, rotation=10.0)
    assert named("photos:0") == Augment(flip=True, rotation=10.0, channel_shift=0.1)
    for name, words in (("digits:far", "between 0 and 1"), ("photos:2", "between 0 and 1"), ("flips:0.1", "'flips'")):
        with pytest.raises(ValueError, match=words):
            named(name)


def test_vectors_cannot_be_augmented() -> None:
    with pytest.raises(ValueError, match="only images"):
        Augment.digits()(rng(), np.zeros((3, 4)))
