"""Work on all cores: in order, with its errors, and with BLAS in one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl

from kip import threads
from kip.threads import FEW_POINTS, blas_threads_for, on_all_cores, one_blas_thread


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        yield


@pytest.mark.parametrize("count", [None, 1, 3])
def test_results_come_in_the_order_of_the_parts(count: int | None) -> None:
    def late(part: int) -> int:
        time.sleep(0.02 * (part == 0))  # the first is done last
        return part * part

    assert list(on_all_cores(late, range(7), count)) == [0, 1, 4, 9, 16, 25, 36]
    assert list(on_all_cores(late, iter([2]), count)) == [4]
    assert list(on_all_cores(late, [], count)) == []


def test_parts_are_visited_by_several_threads_and_one_part_by_the_caller() -> None:
    here, meeting = threading.get_ident(), threading.Barrier(2, timeout=30)

    def meet(part: int) -> int:
        meeting.wait()  # which one thread alone would never pass
        return threading.get_ident()

    assert here not in set(on_all_cores(meet, range(2), 2))
    assert list(on_all_cores(lambda _: threading.get_ident(), range(3), 1)) == [here] * 3


@pytest.mark.parametrize("count", [1, 2])
def test_an_error_is_raised_and_later_work_goes_on(count: int) -> None:
    def fail(part: int) -> int:
        if part == 1:
            raise ArithmeticError(f"part {part}")
        return part

    with pytest.raises(ArithmeticError, match="part 1"):
        list(on_all_cores(fail, range(4), count))
    assert list(on_all_cores(abs, [-1, -2], count)) == [1, 2]


@pytest.mark.parametrize("count", [1, 2])
def test_blas_has_one_thread_inside_and_its_own_again_outside(count: int, two_blas_threads: None) -> None:
    assert list(on_all_cores(lambda _: blas_threads(), range(3), count)) == [{1}] * 3
    assert blas_threads() == {2}
    with pytest.raises(ZeroDivisionError):
        list(on_all_cores(lambda n: 1 // n, range(3), count))
    assert blas_threads() == {2}


def test_blas_threads_are_left_to_large_support_sets(two_blas_threads: None) -> None:
    for support, expected in ((1, 1), (FEW_POINTS, 1), (FEW_POINTS + 1, 2)):
        with blas_threads_for(support):
            assert blas_threads() == {expected}
    with one_blas_thread():
        assert blas_threads() == {1}


def test_products_of_matrices_are_the_same_in_any_thread() -> None:
    a = np.random.default_rng(0).normal(size=(60, 50))
    alone, *others = on_all_cores(lambda _: a @ a.T, range(4), 2)
    assert all(np.array_equal(alone, other) for other in others)


def test_a_pool_is_kept_per_process_and_size() -> None:
    assert threads._pool(2, 1) is threads._pool(2, 1)
    assert threads._pool(2, 1) is not threads._pool(2, 2)


def test_the_limit_of_blas_ends_with_the_last_that_asked_for_it() -> None:
    def limits() -> list[int]:
        return [each["num_threads"] for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]

    before = limits()
    first, second = threads.one_blas_thread(), threads.one_blas_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert set(limits()) == {1}
    second.__exit__(None, None, None)
    assert limits() == before


def test_few_results_wait_to_be_combined() -> None:
    begun: list[int] = []
    results = threads.on_all_cores(lambda n: begun.append(n) or n, range(60), threads=2)
    assert next(results) == 0
    time.sleep(0.05)
    assert len(begun) <= 5
    assert list(results) == list(range(1, 60))
    assert sorted(begun) == list(range(60))
