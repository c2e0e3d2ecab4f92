"""Labelled sets, centred one-hot labels, and the checks of entry points."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.tolerances import assert_close

from kip.sets import LabelledSet, channels_last, check_points, check_targets, class_counts, encode, one_hot


def test_one_hot_is_mean_centred() -> None:
    y = one_hot(np.array([2, 0]), 4)
    assert y.dtype == np.float32
    assert_close(y, [[-0.25, -0.25, 0.75, -0.25], [0.75, -0.25, -0.25, -0.25]], "rounding", np.float32)
    assert_close(y.sum(axis=1), [0, 0], "rounding", np.float32, scale=1)


def test_set_takes_rows_and_knows_its_classes() -> None:
    points = LabelledSet(np.arange(12.0).reshape(6, 2), one_hot(np.array([0, 1, 2, 0, 1, 2]), 3))
    part = points.take(np.array([4, 2]))
    assert len(part) == 2
    assert part.x.tolist() == [[8, 9], [4, 5]]
    assert part.codes.tolist() == [1, 2]
    assert len(points.take(np.arange(1, 4))) == 3


@given(st.lists(st.one_of(st.sampled_from(["cat", "dog", "eel"])), min_size=1))
def test_encode_inverts(labels: list[str]) -> None:
    codes, classes = encode(labels)
    assert [classes[c] for c in codes] == labels
    assert list(classes) == sorted(set(labels))
    assert class_counts(codes, len(classes)).sum() == len(labels)


def test_encode_takes_integers_whole_floats_and_an_order() -> None:
    assert encode([3, 1, 3])[1] == (1, 3)
    assert encode([3.0, 1.0])[1] == (1, 3)
    codes, classes = encode(["b", "a"], classes=("b", "a", "c"))
    assert codes.tolist() == [0, 1]
    assert classes == ("b", "a", "c")
    assert class_counts(codes, 3).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("labels", "classes", "message"),
    [
        ([[0, 1]], None, r"`y` must be a vector.*\(1, 2\)"),
        ([0.5, 1.0], None, "`y` must be integer or string labels.*fractions"),
        ([0.0, float("nan")], None, "`y`"),
        ([0.0, float("inf")], None, "`y`"),
        ([0, 7], (0, 1), "`y` has the label 7, which is not one of the 2 classes"),
        (["cat", "cow"], ("cat", "dog"), "`y` has the label 'cow'"),
    ],
)
def test_bad_labels_are_named(labels: list, classes: tuple | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        encode(labels, classes)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.zeros(3), r"`x` must be images.*got shape \(3,\)"),
        (np.zeros((2, 2, 2, 2, 2)), "`x` must be images"),
        (np.zeros((0, 4)), "`x` is empty"),
        (np.zeros((3, 0)), "`x` is empty"),
        (np.array([[1.0], [np.nan]]), r"`x` holds NaN or infinity \(first at row 1\)"),
        (np.array([[np.inf], [0.0]]), "`x` holds NaN or infinity"),
        (np.array([["a"]]), "`x` must be numbers"),
    ],
)
def test_bad_points_are_named(x: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_points(x, "x")


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(3), "`y` must be a float matrix"),
        (np.zeros((3, 2), int), "`y` must be a float matrix"),
        (np.zeros((2, 2)), "`y` has 2 rows for 3 points"),
        (np.full((3, 2), np.nan), "`y` holds NaN"),
    ],
)
def test_bad_targets_are_named(y: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_targets(y, 3, "y")


def test_good_input_passes_as_it_is() -> None:
    x = np.zeros((2, 3, 3, 1), np.uint8)
    assert check_points(x, "x") is x
    assert check_targets(np.zeros((2, 2)), 2, "y").shape == (2, 2)


def test_mismatched_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="`x` and `y` must be of one length; got 3 points and 2 labels"):
        LabelledSet(np.zeros((3, 2)), np.zeros((2, 2)))


def test_sets_are_equal_where_their_arrays_are() -> None:
    one, same = (LabelledSet(np.arange(6.0).reshape(3, 2), np.eye(3)) for _ in range(2))
    assert one == same
    assert one != LabelledSet(one.x + 1, one.y)
    assert one != LabelledSet(one.x, one.y.astype(np.float32))
    assert one != LabelledSet(one.x, np.ones((3, 1)))
    assert one != "a set"
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_channels_come_last() -> None:
    x = np.arange(2 * 3 * 5 * 6).reshape(2, 3, 5, 6)
    moved = channels_last(x, "channels-first", "x")
    assert moved.shape == (2, 5, 6, 3)
    assert moved.flags.c_contiguous
    np.testing.assert_array_equal(moved[..., 2], x[:, 2])
    for channels in (1, 3, 4):
        with pytest.raises(ValueError, match=r"`raw` must be images \(n, h, w, channels\).*layout='channels-first'"):
            channels_last(np.zeros((2, channels, 32, 32)), None, "raw")
    for shape in ((2, 32, 32, 3), (2, 3, 3, 3), (2, 3, 32, 1), (2, 16, 8, 8), (2, 3, 32), (2, 3)):
        kept = np.zeros(shape)
        assert channels_last(kept, None, "x") is kept
    assert channels_last(x, "channels-last", "x") is x
    with pytest.raises(ValueError, match="`layout` must be one of channels-last, channels-first; got 'NCHW'"):
        channels_last(x, "NCHW", "x")
