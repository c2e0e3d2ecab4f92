"""Which raw images are on another scale than those a set was made from: refused where certain, accepted in doubt."""

from __future__ import annotations

import numpy as np
import pytest

from kip.data.scale import Seen, check_scale, rescale

RNG = np.random.default_rng(0)
COUNTS = RNG.integers(0, 256, (50, 6, 6), dtype=np.uint8)
UNITS = COUNTS.astype(np.float32) / 255
DIM = COUNTS // 100
DARK = np.minimum(COUNTS, 1)


def check(raw: np.ndarray, train: np.ndarray, reach: float = 0.0) -> None:
    seen = Seen.of(train)
    assert seen is not None
    check_scale(raw, seen, 255.0 if train.dtype == np.uint8 else 1.0, lambda: reach)


def test_the_values_of_images_are_seen_and_those_of_vectors_are_not() -> None:
    images = np.zeros((200, 2, 2))
    images[:, 0, 0] = 9
    images[0, 0, 0] = 0.5
    images[1, 1, 1] = -20
    assert Seen.of(images) == Seen(-20, 9, 9)
    assert Seen.of(images[..., None]) == Seen(-20, 9, 9)
    assert Seen.of(images > 1) == Seen(0, 1, 1)
    assert Seen.of(images.reshape(200, 4)) is None


@pytest.mark.parametrize(
    ("raw", "train", "words"),
    [
        (
            UNITS,
            COUNTS,
            r"beyond 1\).*from 0 to 255; multiply it by 255 or pass scale=1.0 if.*or pass scale=255.0 to take",
        ),
        (2 * UNITS - 1, COUNTS, "looks normalised"),
        (UNITS > 0.5, COUNTS, "looks normalised"),
        (UNITS, COUNTS.astype(np.float32), "looks normalised.*bring it to that scale, or pass scale=1.0 to take"),
        (UNITS, UNITS * 16, "looks normalised.*values from 0 to 16;"),
        (
            COUNTS,
            UNITS,
            "values up to 255.*from 0 to 1; divide it by 255 or pass scale=255 if it counts to 255, or pass scale=1.0",
        ),
        (COUNTS.astype(np.float64), UNITS, "values up to 255"),
        (COUNTS.astype(np.int64), UNITS, "values up to 255"),
        (UNITS * 16, UNITS, "values up to 16"),
        (DIM, UNITS, "values up to 2"),
        (COUNTS, 2 * UNITS - 1, "values up to 255.*values from -1 to 1; bring it to that scale"),
        (COUNTS, DARK, "values up to 255.*values from 0 to 1; bring it to that scale, or pass scale=255.0"),
    ],
)
def test_another_scale_is_refused(raw: np.ndarray, train: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check(raw, train)


@pytest.mark.parametrize(
    ("raw", "train"),
    [
        (COUNTS, COUNTS),
        (COUNTS.astype(np.float64), COUNTS),
        (DARK, COUNTS),
        (DARK.astype(np.int64), COUNTS),
        (0 * UNITS, COUNTS),
        (COUNTS - 300.0, COUNTS),
        (2 * UNITS, COUNTS),
        (UNITS, UNITS),
        (3 * UNITS - 1, UNITS),
        (DARK, UNITS),
        (UNITS, UNITS * 4),
        (COUNTS, UNITS * 4),
        (DARK.astype(np.float32), DARK),
    ],
)
def test_what_may_be_of_the_scale_is_accepted(raw: np.ndarray, train: np.ndarray) -> None:
    check(raw, train)


def test_a_set_of_wide_range_takes_faint_images() -> None:
    train = np.full((200, 4, 4), 0.5)
    train[:3] = 5000.0  # a few bright ones
    check(train[10:], train)


def test_learned_images_may_leave_the_range() -> None:
    check(40 * UNITS, UNITS, reach=41.0)
    with pytest.raises(ValueError, match="values up to 40"):
        check(40 * UNITS, UNITS, reach=39.0)


def test_points_are_brought_to_the_scale_asked_for() -> None:
    np.testing.assert_array_equal(rescale(COUNTS, 255, 1.0), UNITS)
    assert rescale(COUNTS, 255.0, 255.0) is COUNTS
    assert rescale(UNITS, 1, 255.0).dtype == np.float32
    np.testing.assert_allclose(rescale(UNITS, 1, 255.0), COUNTS, rtol=1e-6)
    assert rescale(UNITS.astype(np.float64), 1, 255.0).dtype == np.float64
    for scale in (0, -1.0, np.nan, np.inf, "255", True):
        with pytest.raises(ValueError, match="`scale` must be a positive number"):
            rescale(UNITS, scale, 1.0)  # type: ignore[arg-type]
