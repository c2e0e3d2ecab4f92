"""Centroids of k-means within each class."""

import numpy as np
import pytest

from kip.baselines import centroids
from kip.sets import LabelledSet, one_hot


def blobs(per_blob=30, dtype=np.float32):
    """Two classes of three well separated groups each, their means, and the class of each point."""
    rng = np.random.default_rng(0)
    means = 10 * np.eye(6, 8, dtype=dtype)
    codes = np.repeat([0, 1], 3 * per_blob)
    x = np.repeat(means, per_blob, axis=0) + rng.normal(0, 0.1, (6 * per_blob, 8)).astype(dtype)
    exact = x.reshape(6, per_blob, 8).mean(axis=1)
    return LabelledSet(x.reshape(-1, 2, 2, 2), one_hot(codes, 2, dtype)), codes, exact


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_separated_groups_give_their_means_with_the_label_of_their_class(dtype):
    train, codes, exact = blobs(dtype=dtype)
    found = centroids(train, codes, 2, 6, seed=0)
    assert found.x.shape == (6, 2, 2, 2)
    assert found.x.dtype == found.y.dtype == dtype
    flat = found.x.reshape(6, 8)
    nearest = np.argmin(np.square(flat[:, None] - exact).sum(axis=2), axis=1)
    assert sorted(nearest[:3]) == [0, 1, 2]
    assert sorted(nearest[3:]) == [3, 4, 5]
    np.testing.assert_allclose(flat, exact[nearest], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(found.y, one_hot(np.repeat([0, 1], 3), 2, dtype))


def test_centroids_are_repeatable_and_depend_on_the_seed():
    rng = np.random.default_rng(1)
    codes = np.repeat([0, 1, 2], 100)
    train = LabelledSet(rng.normal(size=(300, 12)).astype(np.float32), one_hot(codes, 3))
    first, again, other = (centroids(train, codes, 3, 20, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.x, again.x)
    assert not np.array_equal(first.x, other.x)


def test_one_centroid_per_class_is_the_mean_of_the_class():
    train, codes, _ = blobs()
    found = centroids(train, codes, 2, 2, seed=0)
    for c in (0, 1):
        np.testing.assert_allclose(found.x[c], train.x[codes == c].mean(axis=0), rtol=1e-4, atol=1e-5)


def test_small_classes_and_copies_of_a_point_are_no_trouble():
    x = np.concatenate([np.zeros((5, 3)), np.ones((2, 3)), np.arange(30).reshape(10, 3)]).astype(np.float32)
    codes = np.repeat([0, 1, 3], [5, 2, 10])  # no point of class 2
    found = centroids(LabelledSet(x, one_hot(codes, 4)), codes, 4, 9, seed=0)
    np.testing.assert_array_equal(np.bincount(found.codes, minlength=4), [4, 2, 0, 3])
    np.testing.assert_array_equal(found.x[:4], np.zeros((4, 3)))
    np.testing.assert_array_equal(found.x[4:6], np.ones((2, 3)))
