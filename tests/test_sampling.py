"""Class-balanced allocation and sampling, and independent random streams."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from kip.sampling import Stream, allocate, balanced, generator

COUNTS = st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda c: sum(c) > 0)


@given(COUNTS, st.data())
def test_allocation_is_as_equal_as_the_counts_allow(counts: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(0, sum(counts)))
    shares = allocate(size, np.array(counts))
    assert shares.sum() == size
    assert (shares >= 0).all()
    assert (shares <= counts).all()
    # a class that has points left is at most one behind any other
    left = shares < counts
    if left.any():
        assert shares[left].min() >= shares.max() - 1


def test_allocation_by_hand() -> None:
    assert allocate(10, np.array([50, 50, 50])).tolist() == [4, 3, 3]
    assert allocate(10, np.array([1, 50, 50])).tolist() == [1, 5, 4]
    assert allocate(7, np.array([0, 3, 4])).tolist() == [0, 3, 4]


@given(COUNTS, st.data())
def test_sample_has_the_allocated_classes_and_no_row_twice(counts: list[int], data: st.DataObject) -> None:
    codes = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    size = data.draw(st.integers(1, len(codes)))
    rows = balanced(codes, len(counts), size, key=np.random.default_rng(1))
    assert len(np.unique(rows)) == len(rows) == size
    drawn = np.bincount(codes[rows], minlength=len(counts))
    assert drawn.tolist() == allocate(size, np.array(counts)).tolist()


def test_sampling_more_than_there_is_says_so() -> None:
    with pytest.raises(ValueError, match="cannot draw 4 points from 3; ask for at most 3"):
        allocate(4, np.array([1, 2]))


def test_random_numbers_depend_on_key_purpose_and_step_alone() -> None:
    draws = {
        (key, purpose, step): generator(key, purpose, step).random()
        for key in (0, 1)
        for purpose in Stream
        for step in (0, 1, 2)
    }
    assert len(set(draws.values())) == len(draws)
    assert generator(1, Stream.TARGET, 2).random() == draws[1, Stream.TARGET, 2]


def test_what_is_there_already_counts_towards_equal_classes() -> None:
    assert allocate(3, np.array([50, 50, 50]), np.array([10, 0, 5])).tolist() == [0, 3, 0]
    assert allocate(9, np.array([50, 50, 50]), np.array([10, 0, 5])).tolist() == [0, 7, 2]
    assert allocate(5, np.array([50, 2, 50]), np.array([4, 0, 1])).tolist() == [0, 2, 3]
    assert allocate(6, np.array([1, 9, 9]), np.array([0, 0, 0])).tolist() == [1, 3, 2]
