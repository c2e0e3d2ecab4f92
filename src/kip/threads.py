"""Work shared among the cores of this process: Python's threads, for code that gives up the interpreter lock.

The order in which results are combined never depends on how many threads there are.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import threadpoolctl

from kip import machine

S = TypeVar("S")
T = TypeVar("T")


def on_all_cores(function: Callable[[S], T], parts: Iterable[S], threads: int | None = None) -> Iterator[T]:
    """function(part) for every part, in their order, whichever thread is free first.

    BLAS keeps to the thread that calls it, so that every core has one part. There are as many threads as cores, or
    `threads`.
    """
    parts = list(parts)
    count = min(machine.cores() if threads is None else threads, len(parts))
    with one_blas_thread():
        yield from map(function, parts) if count <= 1 else _windowed(_pool(count, os.getpid()), function, parts, count)


def _windowed(pool: ThreadPoolExecutor, function: Callable[[S], T], parts: Iterable[S], count: int) -> Iterator[T]:
    """Results in order, with no more than twice as many parts begun as there are threads: few results exist at once."""
    begun: deque[Future[T]] = deque()
    try:
        for part in parts:
            if len(begun) >= 2 * count:
                yield begun.popleft().result()
            begun.append(pool.submit(function, part))
        while begun:
            yield begun.popleft().result()
    finally:
        for future in begun:
            future.cancel()


@functools.cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Threads that wait from call to call: to start them took longer than a step on small data does.

    A process has its own, since threads do not survive a fork.
    """
    del process
    return ThreadPoolExecutor(threads, thread_name_prefix="kip")


@functools.cache
def _thread_pools() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()


class _OneThread:
    """BLAS's limit, which is one for the whole process: the first to enter sets it, the last to leave restores it."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._limit: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._inside == 0:
                self._limit = _thread_pools().limit(limits=1, user_api="blas")
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if self._inside == 0:
                    self._limit.restore_original_limits()


_one_thread = _OneThread()


def one_blas_thread() -> contextlib.AbstractContextManager[None]:
    """A context in which BLAS works in the thread that calls it, and wakes no other.

    BLAS's own threads spin for a while after each call in case there is another, on the cores that others would use.
    """
    return _one_thread()


FEW_POINTS = 1000
"""Support points up to which BLAS's threads cost more than they give: above, a factorisation is worth them."""


@contextlib.contextmanager
def blas_threads_for(support: int) -> Iterator[None]:
    """`one_blas_thread` for support sets whose matrices are small.

    A step on 500 points took twice as long with BLAS's threads, Label Solve on 10 points fourteen times as long.
    """
    with contextlib.nullcontext() if support > FEW_POINTS else one_blas_thread():
        yield
