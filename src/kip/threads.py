"""Work shared among the cores of this process: Python's threads, for code that gives up the interpreter lock.

The order in which results are combined never depends on how many threads there are.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
        yield from map(function, parts) if count <= 1 else _pool(count, os.getpid()).map(function, parts)


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


def one_blas_thread() -> contextlib.AbstractContextManager[Any]:
    """A context in which BLAS works in the thread that calls it, and wakes no other.

    BLAS's own threads spin for a while after each call in case there is another, on the cores that others would use.
    """
    return _thread_pools().limit(limits=1, user_api="blas")


FEW_POINTS = 1000
"""Support points up to which BLAS's threads cost more than they give: above, a factorisation is worth them."""


@contextlib.contextmanager
def blas_threads_for(support: int) -> Iterator[None]:
    """`one_blas_thread` for support sets whose matrices are small.

    A step on 500 points took twice as long with BLAS's threads, Label Solve on 10 points fourteen times as long.
    """
    with contextlib.nullcontext() if support > FEW_POINTS else one_blas_thread():
        yield
