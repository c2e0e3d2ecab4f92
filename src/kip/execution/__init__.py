"""Where a pass over tiles of targets runs, and how large tiles are.

A tile's rows follow from the shapes of the problem alone: they determine the order of sums, and so rounding. Memory and
cores decide only how many tiles are visited at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from kip import machine
from kip.execution import device
from kip.execution.base import TILE_MULTIPLE, Executor, KeptTiles, Shared, Tile, Tiles, add, concatenate
from kip.execution.device import DevicePass
from kip.execution.threads import Threads, serial
from kip.kernels.base import Bound, Kernel, Params, Total, on_cpu
from kip.sets import LabelledSet, Selection

__all__ = [
    "DEFAULT",
    "Execution",
    "Executor",
    "KeptTiles",
    "Pass",
    "Shared",
    "Threads",
    "Tile",
    "Tiles",
    "add",
    "concatenate",
    "serial",
]

T = TypeVar("T")

DEFAULT_MEMORY = 256 * 2**20
"""Bytes a pass may take beside the data and the support set."""

TILE_ROWS = 2048
"""Rows of a tile at most. Larger ones leave the cache: measured slower, and no better otherwise."""

CONCURRENT_ROWS = 1024
"""Rows at most where several tiles are visited at the same time."""

TILES_IN_MEMORY = 4
"""Tiles that half of the memory must hold, where several are visited at the same time."""

SMALL_PASS = 2**27
"""Multiplications in K_ts below which a pass keeps to one thread: handing out tiles takes longer than it saves."""


@dataclass(frozen=True)
class Execution:
    """How passes are run: the executor (default: threads of this process), the memory, and a tile size if wanted."""

    executor: Executor | device.Device | None = field(default=None, compare=False)
    memory: int = DEFAULT_MEMORY
    tile: int | None = None

    def rows(self, kernel: Kernel, support: int, targets: int, shape: tuple[int, ...], itemsize: int) -> int:
        """Rows of a tile: as many as memory and cache allow, then evened out over the targets."""
        row, targets = row_bytes(support, shape, itemsize), max(targets, 1)
        if kernel.concurrent:
            most = min(CONCURRENT_ROWS, max(1, self.memory // (2 * TILES_IN_MEMORY * row)))
        else:
            most = min(TILE_ROWS, max(1, self.memory // row))
        most = self.tile or most
        even = -(-targets // -(-targets // most))
        return min(-(-even // TILE_MULTIPLE) * TILE_MULTIPLE, targets)

    def threads(
        self, kernel: Kernel, support: int, targets: int, shape: tuple[int, ...], rows: int, itemsize: int
    ) -> int:
        """Tiles that are visited at the same time."""
        if not kernel.concurrent or support * targets * int(np.prod(shape)) < SMALL_PASS:
            return 1
        return max(1, min(machine.cores(), self.memory // (2 * rows * row_bytes(support, shape, itemsize))))

    def over(self, kernel: Kernel, x_support: np.ndarray, targets: LabelledSet | Selection) -> Pass | DevicePass:
        """A pass over targets, with the kernel bound to the support set."""
        about = kernel, len(x_support), len(targets), x_support.shape[1:]
        itemsize = x_support.dtype.itemsize
        rows = self.rows(*about, itemsize)
        executor: Executor | device.Device | None = self.executor
        if executor is None and kernel.traceable and not on_cpu():
            executor = device.of((device.default_device(),))
        if isinstance(executor, device.Device):
            if not kernel.traceable:
                raise ValueError(f"kernel '{kernel.spec}' cannot run on a device; build it with engine='jax'")
            return executor.begin(kernel, x_support, targets, rows)
        executor = executor or Threads(self.threads(*about, rows, itemsize))
        tiles = Tiles(targets.x, targets.y, rows, x_support.dtype)
        return Pass(kernel.bind(x_support), tiles, executor, self.memory)

    def on_host(self) -> Execution:
        """The same with tiles visited on the host: for passes whose tiles are dense algebra there."""
        elsewhere = not on_cpu() if self.executor is None else isinstance(self.executor, device.Device)
        return replace(self, executor=serial) if elsewhere else self


DEFAULT = Execution()


def row_bytes(support: int, shape: tuple[int, ...], itemsize: int) -> int:
    """A target takes its point, and four entries per support point: K, its residuals, and two cotangents."""
    return itemsize * (4 * support + 2 * int(np.prod(shape)))


@dataclass(frozen=True, eq=False)
class Pass:
    """A kernel bound to its support set, the tiles of the targets, and where they are visited."""

    bound: Bound
    tiles: Tiles
    executor: Executor
    memory: int = DEFAULT_MEMORY

    def keep(self) -> KeptTiles | None:
        """Room for what one visit leaves to the next one, where it fits."""
        size = 2 * len(self.bound.x) * len(self.tiles) * self.bound.x.dtype.itemsize
        return KeptTiles() if size <= self.memory // 2 else None

    def __call__(
        self,
        fn: Callable[[Shared, slice], T],
        combine: Callable[[T, T], T] = add,
        *,
        alpha: np.ndarray | None = None,
        kept: KeptTiles | None = None,
    ) -> T:
        """Visit every tile."""
        return self.executor(fn, Shared(self.bound, self.tiles, alpha, kept), self.tiles.ranges(), combine)

    def own(self) -> tuple[np.ndarray, Callable[[np.ndarray], Total]]:
        """K_ss in float64, and its pullback."""
        return self.bound.own()

    def finish(self, total: Total) -> tuple[np.ndarray, Params]:
        """The cotangents of the support points and of the hyper-parameters, from the sum of all pullbacks."""
        return self.bound.finish(total)
