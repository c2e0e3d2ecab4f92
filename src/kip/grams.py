"""Gram matrices that take long: computed by tiles, watched, and kept on disk so that nothing is computed twice.

`Kept` wraps any kernel. A tile is keyed by its content (the kernel, the dtype and the points themselves), so a killed
repeated run finds what it has, and a changed input finds nothing; a damaged file is computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kip.files import write_atomic
from kip.kernels.base import Kernel, Params, Pull, common_points

TILE_COLUMNS = 256
"""Columns of a tile: at Myrtle-10's speed some seconds of work are lost by a kill, not minutes."""

_DIGEST = 32


class Kept(Kernel):
    """A kernel whose Gram matrices are computed tile by tile and kept in `folder` (None: only watched).

    `progress(pairs)` is told how many pairs each tile had, once it is there.
    """

    def __init__(
        self,
        kernel: Kernel,
        folder: Path | None = None,
        *,
        progress: Callable[[int], None] | None = None,
        tile: int = TILE_COLUMNS,
    ) -> None:
        self.kernel, self.folder, self.progress, self.tile = kernel, folder, progress, tile
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    @property
    def spec(self) -> str:
        return self.kernel.spec

    @property
    def params(self) -> Params:
        return self.kernel.params

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return Kept(self.kernel.with_params(params), self.folder, progress=self.progress, tile=self.tile)

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        if x2 is None:
            x, _ = common_points(x1, x1)
            return self._tile(x, None)
        x1, x2 = common_points(x1, x2)
        out = np.empty((len(x1), len(x2)), x1.dtype)
        for columns in self._columns(len(x2)):
            out[:, columns] = self._tile(x1, x2[columns])
        return out

    def vjp(self, x1: Any, x2: Any) -> tuple[np.ndarray, Pull]:
        return self.kernel.vjp(x1, x2)

    def diag(self, x: Any) -> np.ndarray:
        return self.kernel.diag(x)

    def _columns(self, count: int) -> Iterator[slice]:
        return (slice(start, min(start + self.tile, count)) for start in range(0, count, self.tile))

    def _tile(self, x1: np.ndarray, x2: np.ndarray | None) -> np.ndarray:
        shape = (len(x1), len(x1 if x2 is None else x2))
        path = None if self.folder is None else self.folder / f"{self._key(x1, x2)}.gram"
        k = None if path is None else _read(path, shape, x1.dtype)
        if k is None:
            k = np.ascontiguousarray(self.kernel.gram(x1, x2))
            if path is not None:
                data = k.tobytes()
                write_atomic(path, data, hashlib.sha256(data).digest())
        if self.progress is not None:
            self.progress(shape[0] * shape[1])
        return k

    def _key(self, x1: np.ndarray, x2: np.ndarray | None) -> str:
        digest = hashlib.sha256(f"{self.kernel.spec} {type(self.kernel).__name__} {x1.dtype} {x1.shape}".encode())
        digest.update(np.ascontiguousarray(x1).tobytes())
        if x2 is not None:
            digest.update(np.ascontiguousarray(x2).tobytes())
        return digest.hexdigest()


def _read(path: Path, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray | None:
    """The tile in `path`, or None where there is none or it is not whole."""
    expected = shape[0] * shape[1] * dtype.itemsize + _DIGEST
    try:
        if path.stat().st_size != expected:
            return None
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
        return None
    return np.frombuffer(data[:-_DIGEST], dtype).reshape(shape)
