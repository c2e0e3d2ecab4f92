"""Images in SIMD lanes for the Numba engine: layout, the plan of an architecture, cores, and what is remembered."""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numba.core.config
import numpy as np

from kip.kernels import planes_jit
from kip.kernels.network import Network
from kip.kernels.planes import Level, levels


def spread(count: int, task: Callable[[int, int], Any]) -> None:
    """Call task(worker, n) for n below `count` on all cores.

    Python's threads, since the jitted code gives up the interpreter lock: whoever is free takes the next task, and
    unlike Numba's own threads they may be entered from several threads at once.
    """
    numbers = itertools.count()
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            while not failures and (n := next(numbers)) < count:
                task(worker, n)
        except BaseException as failure:
            failures.append(failure)

    others = [threading.Thread(target=work, args=(worker,)) for worker in range(1, min(threads(), count))]
    for thread in others:
        thread.start()
    work(0)
    for thread in others:
        thread.join()
    if failures:
        raise failures[0]


def threads() -> int:
    """Cores to keep busy: those this process may use, or NUMBA_NUM_THREADS."""
    return int(numba.core.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]


def aligned(*shape: int, dtype: Any) -> np.ndarray:
    """An empty array that begins on a cache line, so that no vector straddles two."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + planes_jit.VECTOR_BYTES, np.uint8)
    start = -raw.ctypes.data % planes_jit.VECTOR_BYTES
    return raw[start : start + size].view(dtype).reshape(shape)


def lanes_of(dtype: Any) -> int:
    """Images in the lanes of a vector."""
    return planes_jit.VECTOR_BYTES // np.dtype(dtype).itemsize


def pack(x: np.ndarray) -> np.ndarray:
    """Rows of numbers (n, m) as blocks of lanes (⌈n/lanes⌉, m·lanes); the last block is filled up with the last row."""
    lanes = lanes_of(x.dtype)
    blocks = -(-len(x) // lanes)
    out = aligned(blocks, x.shape[1], lanes, dtype=x.dtype)
    whole = len(x) // lanes
    out[:whole] = x[: whole * lanes].reshape(whole, lanes, x.shape[1]).transpose(0, 2, 1)
    if whole < blocks:
        rest = len(x) - whole * lanes
        out[-1, :, :rest] = x[whole * lanes :].T
        out[-1, :, rest:] = x[-1][:, None]
    return out.reshape(blocks, x.shape[1] * lanes)


def unpack(blocks: np.ndarray, n: int, lanes: int | None = None) -> np.ndarray:
    """The inverse of `pack`."""
    lanes = lanes or lanes_of(blocks.dtype)
    count = blocks.shape[1] // lanes
    return blocks.reshape(len(blocks), count, lanes).transpose(0, 2, 1).reshape(len(blocks) * lanes, count)[:n]


class Geometry(NamedTuple):
    """An architecture on images of one shape, as the arrays that `planes_jit.Plan` holds."""

    levels: np.ndarray
    convs: np.ndarray
    bases: np.ndarray
    sizes: np.ndarray

    @property
    def work(self) -> int:
        """Vectors of memory a thread needs."""
        half, size, saved, image, maps = (int(n) for n in self.sizes)
        return 6 * half + 4 * size + saved + 3 * image + 5 * maps + 1

    @property
    def maps(self) -> int:
        """Numbers in the own variances of an image."""
        return int(self.sizes[4])


@functools.lru_cache(maxsize=64)
def geometry(network: Network, shape: tuple[int, ...], own: bool) -> Geometry:
    """Lay out the planes of `network` on images of `shape`; with `own`, those of an image with itself."""
    plan = levels(network, shape, own=own) or [Level((), shape[0], shape[1], 0, 0)]
    rows: list[list[int]] = []
    convs: list[list[int]] = []
    bases = [0]
    size = maps = 0
    for n, level in enumerate(plan):
        rows.append([level.height, level.width, level.radius_y, level.radius_x, len(convs), 0, len(bases)])
        for k, layer in enumerate(level.layers):
            if layer == "conv":
                has_relu = level.layers[k + 1 : k + 2] == ("relu",)
                convs.append([has_relu, maps])
                maps += has_relu * level.height * level.width
        rows[-1][5] = len(convs) - rows[-1][4]
        if n > 0:
            for oy in range(-level.radius_y, level.radius_y + 1):
                for ox in range(-level.radius_x, level.radius_x + 1):
                    bases.append(size)
                    size += (level.height - abs(oy)) * (level.width - abs(ox))
    height, width, ch = shape
    saved = 4 * max(row[5] * row[0] * row[1] for row in rows)
    sizes = [(height + 2) * (width + 2), size, saved, height * width * ch, maps]
    arrays = (np.array(a, np.int64) for a in (rows, np.reshape(convs, (-1, 2)), bases, sizes))
    return Geometry(*arrays)


@functools.lru_cache(maxsize=64)
def mirrors(network: Network, shape: tuple[int, ...]) -> bool:
    """Whether a mirrored image has mirrored variances: not where pooling drops a last column."""
    return all(level.width % 2 == 0 for level in levels(network, shape)[:-1])


@functools.lru_cache(maxsize=64)
def mirror_index(network: Network, shape: tuple[int, ...]) -> np.ndarray:
    """Where each number of a row of own variances comes from when the image is mirrored; the last one stays."""
    parts, at = [], 0
    for level in levels(network, shape, own=True):
        for layer in level.layers:
            if layer == "relu":
                area = level.height * level.width
                parts.append(np.arange(at, at + area).reshape(level.height, level.width)[:, ::-1].ravel())
                at += area
    return np.concatenate([*parts, [at]]).astype(np.intp)


class Memo:
    """Own variances by the content of the image, bounded in bytes; a mirrored image finds its mirror's."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self._rows: OrderedDict[tuple[Any, ...], np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, keys: list[tuple[Any, ...]]) -> list[np.ndarray | None]:
        """What is remembered under each key."""
        with self._lock:
            for key in keys:
                if key in self._rows:
                    self._rows.move_to_end(key)
            return [self._rows.get(key) for key in keys]

    def keep(self, keys: list[tuple[Any, ...]], rows: np.ndarray) -> None:
        """Remember one row a key, and forget the oldest beyond the limit."""
        with self._lock:
            for key, row in zip(keys, rows, strict=True):
                old = self._rows.pop(key, None)
                self.bytes += row.nbytes - (0 if old is None else old.nbytes)
                self._rows[key] = row.copy()
            while self.bytes > self.limit:
                self.bytes -= self._rows.popitem(last=False)[1].nbytes


class Room:
    """Bytes that arrays may take together; each gives back its own when it is no longer used."""

    def __init__(self, limit: int) -> None:
        self.limit, self._taken = limit, 0
        self._lock = threading.Lock()
        # Finalisers run at any moment, inside `array` too: they take no lock, and only add to this.
        self._given_back: deque[int] = deque()

    @property
    def taken(self) -> int:
        """Bytes that are taken now."""
        with self._lock:
            return self._settled()

    def array(self, wanted: int, *shape: int, dtype: Any) -> np.ndarray:
        """As many of the `wanted` arrays of `shape` as there is room for, stacked."""
        each = int(np.prod(shape)) * np.dtype(dtype).itemsize
        with self._lock:
            count = min(wanted, (self.limit - self._settled()) // each) if each else 0
            self._taken += count * each
        array = aligned(count, *shape, dtype=dtype)
        weakref.finalize(array, self._given_back.append, count * each)
        return array

    def _settled(self) -> int:
        while self._given_back:
            self._taken -= self._given_back.popleft()
        return self._taken


@functools.lru_cache(maxsize=16)
def _hash_keys(shape: tuple[int, ...]) -> np.ndarray:
    # odd multipliers, drawn once and for all
    return np.random.default_rng(20200).integers(0, 1 << 64, (2, *shape), np.uint64) | np.uint64(1)


def content_hashes(x: np.ndarray) -> np.ndarray:
    """Two 64-bit hashes of each image (n, h, w, ch), then two of its mirror image: (n, 4)."""
    depth = x.shape[3] * x.dtype.itemsize // 4
    words = np.ascontiguousarray(x).view(np.uint32).reshape(*x.shape[:3], depth)
    out = np.zeros((len(x), 4), np.uint64)
    keys, size = _hash_keys(words.shape[1:]), 64
    spread(-(-len(x) // size), lambda _, n: planes_jit.hashes(words[n * size :][:size], keys, out[n * size :][:size]))
    return out
