"""Long Gram matrices in commands: a bar with an end, tiles kept on disk, and an interrupt heard between two tiles.

Kernels are wrapped here and handed to the algorithms, which know nothing of it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kip.cli.progress import Interrupt, pairs, say, working
from kip.execution import Execution
from kip.files import remove_partials
from kip.gram_cache import CachedGram, Store, symmetric_pairs
from kip.kernels import Kernel
from kip.task import Task

GRAMS = "grams"
"""The folder in that of a run where tiles are kept until it ends."""


def is_slow(task: Task) -> bool:
    """Whether a Gram matrix of any of the task's kernels may take long."""
    return any(kernel.expensive(task.preprocess.shape) for kernel in task.config.kernels)


class Watch:
    """Wraps kernels: the expensive ones are computed by tiles, shown as they go, and kept in a folder.

    That is `cache`, which lasts, or one in `run`, the folder of a run, which `forget` removes; without either nothing
    is kept. What a run that was killed has left there is found by the next one in the same folder.
    """

    def __init__(self, cache: Path | None = None, run: Path | None = None) -> None:
        self._own = run / GRAMS if run is not None and cache is None else None
        self._folder = cache or self._own
        self._store: Store | None = None
        self._show: Callable[[int, bool], None] | None = None
        self._interrupt: Interrupt | None = None
        self._last, self._spent, self._fresh = 0.0, 0.0, 0

    def kernels(self, kernels: Sequence[Kernel], shape: tuple[int, ...]) -> tuple[Kernel, ...]:
        """The kernels, wrapped, for points of `shape`."""
        return tuple(
            CachedGram(kernel, self._kept_in(), progress=self._told)
            if kernel.expensive(shape)
            else CachedGram(kernel, progress=self._told, tile=None)
            for kernel in kernels
        )

    def task(self, task: Task) -> Task:
        """The task with its kernels wrapped."""
        kernels = self.kernels(task.config.kernels, task.preprocess.shape)
        return dataclasses.replace(task, config=dataclasses.replace(task.config, kernels=kernels))

    def _kept_in(self) -> Store | None:
        if self._store is None and self._folder is not None:
            if self._own is not None:  # a run has its folder to itself
                remove_partials(self._own)
            self._store = Store(self._folder, say=say)
        return self._store

    @contextlib.contextmanager
    def over(self, text: str, slow: bool, total: int | None, interrupt: Interrupt | None = None) -> Iterator[None]:
        """Show how far `total` pairs have come, with a bar where they are `slow`.

        An `interrupt` is heard between two tiles, or two whole Gram matrices where kernels are quick: StoppedError.
        """
        with pairs(text, total) if slow else working(text) as show:
            self._show, self._interrupt, self._last = show, interrupt, time.monotonic()
            try:
                yield
            finally:
                self._show = self._interrupt = None

    def _told(self, count: int, fresh: bool) -> None:
        now = time.monotonic()
        if fresh:
            self._spent, self._fresh = self._spent + now - self._last, self._fresh + count
        self._last = now
        if self._show is not None:
            self._show(count, fresh)
        if self._interrupt is not None:
            self._interrupt.check()

    def seconds_per_pair(self, kernels: Sequence[Kernel], x_support: np.ndarray) -> float:
        """Seconds per pair: measured on those computed so far, or anew on a few where all were found."""
        if not self._fresh:
            for kernel in kernels:
                bare = kernel.kernel if isinstance(kernel, CachedGram) else kernel
                bare.gram(x_support[:1], x_support[:1])  # loads or compiles what the next one is timed with
                start = time.monotonic()
                self._fresh += bare.gram(x_support[:16], x_support[:64]).size
                self._spent += time.monotonic() - start
        return self._spent / self._fresh

    def forget(self) -> None:
        """Remove what was kept for the run alone."""
        if self._own is not None:
            shutil.rmtree(self._own, ignore_errors=True)


def pass_pairs(kernels: Sequence[Kernel], size: int, x: np.ndarray, count: int, execution: Execution) -> int:
    """Pairs of one pass of `count` points like those of `x` over `size` support points: K_ss, and K_ts as padded."""
    pairs = 0
    for kernel in kernels:
        rows = execution.rows(kernel, size, count, x.shape[1:], x.dtype.itemsize)
        pairs += symmetric_pairs(size) + -(-count // rows) * rows * size
    return pairs
