"""The default: a pass in the threads of this process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from kip.execution.base import Shared
from kip.kernels.base import on_this_device
from kip.threads import on_all_cores

T = TypeVar("T")


@dataclass(frozen=True)
class Threads:
    """One tile per core, combined in tile order whichever is done first; `threads` None means as many as cores."""

    threads: int | None = None

    def __call__(
        self, fn: Callable[[Shared, slice], T], shared: Shared, ranges: Sequence[slice], combine: Callable[[T, T], T]
    ) -> T:
        visit = on_this_device(functools.partial(fn, shared))
        return functools.reduce(combine, on_all_cores(visit, ranges, self.threads))


def serial(
    fn: Callable[[Shared, slice], T], shared: Shared, ranges: Sequence[slice], combine: Callable[[T, T], T]
) -> T:
    """One tile after the other in this thread, with BLAS's own threads: for tiles of much dense algebra."""
    return functools.reduce(combine, (fn(shared, rows) for rows in ranges))
