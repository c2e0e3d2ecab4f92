"""An executor whose tiles are visited in other processes, as a cluster would: all that a tile needs is pickled."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

from kip.execution import Shared
from kip.threads import one_blas_thread


def pool(workers: int = 2) -> ProcessPoolExecutor:
    """Processes that share nothing with this one."""
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


@dataclass(frozen=True)
class Processes:
    """Every (fn, shared, range) is sent to a process of the pool; results are combined here, in tile order."""

    pool: ProcessPoolExecutor

    def __call__(
        self,
        fn: Callable[[Shared, slice], Any],
        shared: Shared,
        ranges: Sequence[slice],
        combine: Callable[[Any, Any], Any],
    ) -> Any:
        visits = [self.pool.submit(visit, fn, shared, rows) for rows in ranges]
        return functools.reduce(combine, (visited.result() for visited in visits))


def visit(fn: Callable[[Shared, slice], Any], shared: Shared, rows: slice) -> Any:
    """One tile, with BLAS in one thread as in the threads of a pass: their number determines rounding."""
    with one_blas_thread():
        return fn(shared, rows)
