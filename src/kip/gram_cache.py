"""Gram matrices that take long: computed by tiles, shown as they go, and cached on disk so that a kill loses little.

`CachedGram` wraps any kernel. A tile is keyed by its content (the kernel, the dtype and the points themselves), so a
run that was killed or is repeated finds what it has, and a changed input finds nothing; a damaged
file is computed again.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kip._version import __version__
from kip.files import write_atomic
from kip.kernels.base import Bound, Kernel, Params, Pull, Total, as_points, common_points
from kip.kernels.traced import OWN

TILE = (64, 256)
"""Rows and columns of a tile at most: at Myrtle-10's speed seconds of work are lost by a kill, not minutes."""

LIMIT = 4 * 2**30
"""Bytes that a folder of tiles may grow to."""

SPARE = 2**30
"""Bytes of the disk that tiles leave free."""

_DIGEST = 32


class Store:
    """Tiles in `folder`, as many as `limit` and the disk have room for.

    Where there is no more room, or the disk refuses, nothing more is written and `say` is told so once: the computation
    goes on, only a repetition of it will find less.
    """

    def __init__(self, folder: Path, *, limit: int = LIMIT, say: Callable[[str], None] | None = None) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`cache` {folder} is a file; choose a folder")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.limit, self.say, self.full = folder, limit, say, False
        self._bytes = sum(path.stat().st_size for path in folder.glob("*.gram"))

    def read(self, key: str, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray | None:
        """The tile called `key`, or None where there is none or it is not whole."""
        path = self._path(key)
        try:
            if path.stat().st_size != shape[0] * shape[1] * dtype.itemsize + _DIGEST:
                return None
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data[:-_DIGEST]).digest() != data[-_DIGEST:]:
            return None
        return np.frombuffer(data[:-_DIGEST], dtype).reshape(shape)

    def write(self, key: str, tile: np.ndarray) -> None:
        """Keep a tile, if there is room."""
        if self.full:
            return
        size = tile.nbytes + _DIGEST
        try:
            if self._bytes + size > self.limit:
                self._stop(f"it has reached its limit of {self.limit / 2**30:.3g} GiB")
            elif shutil.disk_usage(self.folder).free < SPARE + size:
                self._stop(f"its disk has less than {SPARE / 2**30:.3g} GiB left")
            else:
                data = tile.tobytes()
                # not flushed to the disk tile by tile: what a power failure tears is known by its hash
                write_atomic(self._path(key), data, hashlib.sha256(data).digest(), flush=False)
                self._bytes += size
        except OSError as error:
            self._stop(str(error.strerror or error).lower())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.gram"

    def _stop(self, why: str) -> None:
        self.full = True
        if self.say is not None:
            self.say(f"  (kernel values are no longer kept in {self.folder}: {why}; computing continues)")


class CachedGram(Kernel):
    """A kernel whose Gram matrices are computed tile by tile and kept in `store` (None: only watched).

    `progress(pairs, fresh)` is told after each tile how many pairs it holds, and whether they were computed or found;
    what it raises stops the computation there. `tile` is rows and columns; None leaves a Gram matrix whole.

    >>> import numpy as np, kip
    >>> from kip.gram_cache import CachedGram
    >>> x = np.random.default_rng(0).normal(size=(6, 2))
    >>> cached = CachedGram(kip.kernel("rbf"), tile=(4, 4), progress=lambda pairs, fresh: print(pairs, fresh))
    >>> cached.gram(x[:2], x).shape
    8 True
    4 True
    (2, 6)
    """

    def __init__(
        self,
        kernel: Kernel,
        store: Store | None = None,
        *,
        progress: Callable[[int, bool], None] | None = None,
        tile: tuple[int, int] | None = TILE,
    ) -> None:
        self.kernel, self.progress, self.tile = kernel, progress, tile
        # The spec of a custom kernel does not tell two functions of one name apart, so its values are not cached.
        self.store = None if OWN in kernel.spec else store

    @property
    def spec(self) -> str:
        return self.kernel.spec

    @property
    def params(self) -> Params:
        return self.kernel.params

    @property
    def concurrent(self) -> bool:
        return self.kernel.concurrent

    def cost(self, shape: tuple[int, ...]) -> float:
        return self.kernel.cost(shape)

    def kept_bytes(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
        return self.kernel.kept_bytes(shape, itemsize)

    def frozen(self) -> Kernel:
        return CachedGram(self.kernel.frozen(), self.store, progress=self.progress, tile=self.tile)

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return CachedGram(self.kernel.with_params(params), self.store, progress=self.progress, tile=self.tile)

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        if x2 is None:
            return self._symmetric(as_points(x1, "x1"))
        x1, x2 = common_points(x1, x2)
        out = np.empty((len(x1), len(x2)), x1.dtype)
        left, right = self._digests(x1, 0), self._digests(x2, 1)
        for columns, b in right:
            for rows, a in left:
                out[rows, columns] = self._tile(x1[rows], x2[columns], a + b)
        return out

    def _symmetric(self, x: np.ndarray) -> np.ndarray:
        """K(x, x) by the tiles on and above the diagonal, which are square."""
        out = np.empty((len(x), len(x)), x.dtype)
        parts = self._digests(x, 1)
        for n, (rows, a) in enumerate(parts):
            out[rows, rows] = self._tile(x[rows], None, a)
            for columns, b in parts[n + 1 :]:
                out[rows, columns] = self._tile(x[rows], x[columns], a + b)
                out[columns, rows] = out[rows, columns].T
        return out

    def bind(self, x_support: Any) -> Bound:
        return _BoundCached(self, self.kernel.bind(x_support))

    def diag(self, x: Any) -> np.ndarray:
        return self.kernel.diag(x)

    def _digests(self, x: np.ndarray, axis: int) -> list[tuple[slice, bytes]]:
        """The parts into which tiles cut `x`, each with the hash of its points; empty where nothing is kept."""
        step = len(x) if self.tile is None else self.tile[axis]
        parts = list(_parts(len(x), step))
        if self.store is None:
            return [(part, b"") for part in parts]
        return [(part, hashlib.sha256(np.ascontiguousarray(x[part]).data).digest()) for part in parts]

    def _tile(self, x1: np.ndarray, x2: np.ndarray | None, digest: bytes) -> np.ndarray:
        shape, k, key = (len(x1), len(x1 if x2 is None else x2)), None, ""
        if self.store is not None:
            about = f"{__version__} {self.spec} {_names(self.kernel)} {x1.dtype} {x1.shape[1:]} "
            key = hashlib.sha256(about.encode() + digest).hexdigest()
            k = self.store.read(key, shape, x1.dtype)
        fresh = k is None
        if k is None:
            k = np.ascontiguousarray(self.kernel.gram(x1, x2))
            if self.store is not None:
                self.store.write(key, k)
        if self.progress is not None:
            self.progress(shape[0] * shape[1], fresh)
        return k


class _BoundCached(Bound):
    """The kernel bound to its support set, whose Gram matrices without a pullback are cached."""

    def __init__(self, cached: CachedGram, bound: Bound) -> None:
        self.cached, self.bound = cached, bound

    @property
    def x(self) -> Any:
        """The support set."""
        return self.bound.x

    def gram(self, x_tile: Any) -> np.ndarray:
        return self.cached.gram(self.bound.x, x_tile)

    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        return self.bound.tile(x_tile)

    def own(self) -> tuple[Any, Pull]:
        return self.bound.own()

    def finish(self, total: Total) -> tuple[Any, Params]:
        return self.bound.finish(total)


def _parts(count: int, step: int) -> Iterator[slice]:
    return (slice(start, min(start + step, count)) for start in range(0, count, max(step, 1)))


def _names(kernel: Kernel) -> str:
    """What computes a kernel: the values of two engines differ in their last bits."""
    inner = [_names(part) for part in vars(kernel).values() if isinstance(part, Kernel)]
    return f"{type(kernel).__name__}({','.join(inner)})"


def symmetric_pairs(n: int, tile: tuple[int, int] | None = TILE) -> int:
    """The pairs that `CachedGram` tells of for K(x, x) of `n` points: those of the tiles on and above the diagonal."""
    sizes = [part.stop - part.start for part in _parts(n, n if tile is None else tile[1])]
    return (n * n + sum(size * size for size in sizes)) // 2
