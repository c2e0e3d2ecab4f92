"""A pass over tiles of targets: what a tile is, what all tiles share, and how what they give is combined.

A pass maps a function over tiles and combines what comes back in tile order. An executor says where that happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

from kip.kernels.base import Bound, precision
from kip.sets import aligned_empty

T = TypeVar("T")


TILE_MULTIPLE = 16
"""Tiles are multiples of this, the widest SIMD vector of float32."""


class Executor(Protocol):
    """Where a pass runs.

    `fn(shared, range)` is called for every range of rows, `fn` being a function of a module and `shared` something that
    can be pickled. Results are combined in the order of the ranges: the order determines rounding. `combine` is
    associative and may overwrite its left argument.
    """

    def __call__(
        self, fn: Callable[[Shared, slice], T], shared: Shared, ranges: Sequence[slice], combine: Callable[[T, T], T]
    ) -> T: ...


@dataclass(frozen=True, eq=False)
class Tile:
    """Targets of one tile. `mask` is 1 for targets and 0 for rows that fill up the last tile, or None where none do."""

    index: int
    x: Any
    y: Any
    mask: Any

    def masked(self, values: Any) -> Any:
        """`values` (a row per target) with 0 in the rows that only fill up."""
        return values if self.mask is None else values * self.mask[:, None]


@dataclass(frozen=True, eq=False)
class Tiles:
    """Targets cut into tiles of `rows` rows, so that each kernel compiles once; their points as `dtype`."""

    x: Any
    y: Any
    rows: int
    dtype: Any = None

    def __len__(self) -> int:
        return len(self.x)

    def ranges(self) -> list[slice]:
        """The rows of each tile."""
        return [slice(start, min(start + self.rows, len(self))) for start in range(0, len(self), self.rows)]

    def tile(self, rows: slice) -> Tile:
        """The targets in these rows."""
        index, missing = rows.start // self.rows, self.rows - (rows.stop - rows.start)
        x, y = self.x[rows], None if self.y is None else self.y[rows]
        if self.dtype is not None:  # tile by tile, so that the points are never all there twice
            x = x.astype(self.dtype, copy=False)
        if missing == 0:
            return Tile(index, x, y, None)
        mask = np.zeros(self.rows, x.dtype)
        mask[: len(x)] = 1
        return Tile(index, _filled(x, self.rows), None if y is None else _filled(y, self.rows), mask)


def _filled(rows: np.ndarray, to: int) -> np.ndarray:
    # With copies of the last row, not with zeros: what fills up must be as harmless to a kernel as the data is.
    filled = aligned_empty((to, *rows.shape[1:]), rows.dtype)
    filled[: len(rows)], filled[len(rows) :] = rows, rows[-1]
    return filled


class KeptTiles(dict[int, Any]):
    """K and pullbacks that a pass leaves for the next one: losing them costs time, never bits. Not pickled."""

    def __reduce__(self) -> Any:
        return KeptTiles, ()


@dataclass(frozen=True, eq=False)
class Shared:
    """What every tile of a pass needs: the bound kernel, the targets, and the coefficients α where there are any."""

    bound: Bound
    tiles: Tiles
    alpha: Any = None
    kept: KeptTiles | None = field(default=None)


def add(left: Any, right: Any) -> Any:
    """The sum of two pytrees of arrays, in float64; it overwrites the left one."""
    return jax.tree.map(_sum, left, right)


def _sum(left: Any, right: Any) -> Any:
    if isinstance(left, jax.Array):
        with precision(np.float64):
            return left.astype(np.float64) + right
    if isinstance(left, np.ndarray) and left.dtype == np.float64 and left.ndim and left.flags.writeable:
        return np.add(left, right, out=left)
    return np.add(left, right, dtype=np.float64)


def concatenate(left: list[Any], right: list[Any]) -> list[Any]:
    """Rows of results, tile after tile."""
    return left + right
