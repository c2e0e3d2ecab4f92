"""Convolutional and pooled network kernels on offset planes, in Numba for CPUs, with a hand-written pullback.

This module cuts the work of a Gram matrix or a pullback into the tasks of `planes_jit`, and remembers the own variances
of images it has seen, so that targets cost nothing at later steps.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from kip.kernels import planes_jit
from kip.kernels.base import Bound, Params, Pull, Total, as_points, common_points, precision
from kip.kernels.lanes import (
    Memo,
    Room,
    aligned,
    content_hashes,
    geometry,
    lanes_of,
    mirror_index,
    mirrors,
    pack,
    spread,
    threads,
    unpack,
)
from kip.kernels.planes import NetworkKernel, Recipe, State, read_out

MEMO_BYTES = 1 << 30
"""Own variances of images are remembered up to this size, the least recently used forgotten first."""

MEMO_ENTRY = 400
"""Bytes of the key and the headers of one image that is remembered."""

TARGET_BYTES = 1 << 27
"""Targets are packed into lanes by tiles of about this size."""

KEPT_BYTES = 1 << 28
"""Planes between pools are kept for pullbacks up to this size in all; of other pairs they are computed again."""

memo = Memo(MEMO_BYTES)
room = Room(KEPT_BYTES)


class Side(NamedTuple):
    """Images (n, h, w, ch) and, by rows, their own variances d at every ReLU, and last that at the read-in."""

    x: np.ndarray
    own: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """The variance at the read-in."""
        return self.own[:, -1]

    def rows(self) -> np.ndarray:
        """The images as rows of numbers, channels first."""
        return np.ascontiguousarray(self.x.transpose(0, 3, 1, 2)).reshape(len(self.x), int(np.prod(self.x.shape[1:])))


class Bars(NamedTuple):
    """Cotangents of images as rows of numbers, channels first, of their variances d, and of that at the read-in."""

    x: np.ndarray
    d: np.ndarray
    variance: np.ndarray


class NumbaPlanesKernel(NetworkKernel):
    """The NTK or NNGP kernel of a network of infinite width, on a CPU's vector units.

    The same constructor and values as `PlanesKernel`; σ_w² and σ_b² are fixed.
    """

    def with_params(self, params: Mapping[str, Any]) -> NumbaPlanesKernel:
        """Refuse `params`: variances are learnable in the JAX engine only."""
        if params:
            raise ValueError(
                f"the numba engine holds the variances of '{self.spec}' fixed; got {sorted(params)}. Use engine='jax'."
            )
        return self

    def kept_bytes(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
        laid_out = geometry(self.network, shape if len(shape) == 3 else (1, 1, *shape), False)
        planes = int(laid_out.sizes[1]) * (1 if self.nngp else 2)
        return (laid_out.maps + 1) * itemsize + MEMO_ENTRY, planes * itemsize

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        """K(x1, x2), shape (n1, n2); K(x1, x1), computed by half, where `x2` is left out."""
        if x2 is None:
            engine, x = self._engine(as_points(x1, "x1"))
            side = engine.side(x, remember=True)
            k = engine.read_out(engine.sums(side, side, half=True), side, side)
            lower = np.tril_indices(len(x), -1)
            k[lower] = k.T[lower]
            return k
        a, b = common_points(x1, x2)
        engine, a = self._engine(a)
        _, b = self._engine(b)
        return engine.gram(engine.side(a, remember=True), b)

    def bind(self, x_support: Any) -> Bound:
        engine, x = self._engine(as_points(x_support, "x_support"))
        # A support set that is being learned is seen once, so its variances are not remembered.
        return _BoundPlanes(self, engine, engine.side(x, remember=False), x_support.shape)

    def diag(self, x: Any) -> np.ndarray:
        """K(xᵢ, xᵢ) for every point."""
        engine, x = self._engine(as_points(x))
        k = np.empty(len(x), x.dtype)
        for tile in engine.tiles(x):
            side = engine.side(x[tile], remember=True)
            k[tile] = engine.read_out(engine.own_sums(side, nngp=self.nngp), side, side)
        return k

    def _engine(self, x: np.ndarray) -> tuple[_Engine, np.ndarray]:
        """The engine for points like those of `x`, and these as images."""
        self.network.check(x.shape[1:])
        x = _as_images(x)
        return _Engine(self, x.shape[1:], x.dtype), x


def _as_images(x: np.ndarray) -> np.ndarray:
    return x if x.ndim == 4 else x[:, None, None]


class _BoundPlanes(Bound):
    """The support images with their own variances.

    A pullback walks the planes of its tile again; those between pools are kept where there is room. A total holds the
    cotangents of the images and of their own variances, so that the way from these back to the images is taken once.
    """

    def __init__(self, kernel: NumbaPlanesKernel, engine: _Engine, side: Side, shape: tuple[int, ...]) -> None:
        self.kernel, self.engine, self.side, self.shape = kernel, engine, side, shape

    @property
    def x(self) -> Any:
        """The support set."""
        return self.side.x.reshape(self.shape)

    def gram(self, x_tile: Any) -> np.ndarray:
        return self.engine.gram(self.side, _as_images(as_points(x_tile, "x_tile")))

    def tile(self, x_tile: Any) -> tuple[np.ndarray, Pull]:
        engine, side, x = self.engine, self.side, _as_images(as_points(x_tile, "x_tile"))
        k = np.empty((len(side.x), len(x)), engine.dtype)
        tiles, sums, stored = list(engine.tiles(x)), [], []
        last: dict[int, Side] = {}
        for n, tile in enumerate(tiles):
            targets = engine.side(x[tile], remember=True)
            stored.append(engine.room(len(side.x), len(targets.x)))
            sums.append(engine.sums(side, targets, stored=stored[-1]))
            k[:, tile] = engine.read_out(sums[-1], side, targets)
            last = {n: targets}  # the last part, which is often the only one

        def pull(cotangent: np.ndarray) -> Bars:
            cotangent = np.asarray(cotangent, np.float64)
            bars = engine.no_bars(len(side.x))
            for n, (tile, tile_sums, planes) in enumerate(zip(tiles, sums, stored, strict=True)):
                targets = last[n] if n in last else engine.side(x[tile], remember=True)
                sum_bars, variance_bar = engine.read_out_back(tile_sums, side, targets, cotangent[:, tile])
                x_bar, d_bar = engine.pull_pairs(side, targets, sum_bars, planes)
                bars = Bars(bars.x + x_bar, bars.d + d_bar, bars.variance + variance_bar)
            return bars

        return k, pull

    def own(self) -> tuple[np.ndarray, Pull]:
        def pull(k_bar: np.ndarray) -> Bars:
            # X_s is both arguments of K_ss, and the derivative with respect to either is the same.
            return Bars(*(2 * bar for bar in self.tile(self.x)[1](k_bar)))

        return self.kernel.gram(np.asarray(self.x, np.float64)), pull

    def finish(self, total: Total) -> tuple[np.ndarray, Params]:
        x_bar = self.engine.images(self.engine.pull_own(self.side, total))
        return x_bar.astype(self.engine.dtype).reshape(self.shape), {}


# Tasks to have at least, for cores to share; and rows of cotangents to keep at most, about.
_TASKS, _MOST_ROWS = 32, 512


def _parts(others: int) -> int:
    """Into how many parts to cut the support set, where there are already so many tasks by targets."""
    return max(1, -(-_TASKS // max(others, 1)))


def _each(kind: int, blocks: int) -> list[tuple[int, ...]]:
    """One task a block: its own variances, or each of its images paired with itself."""
    return [(kind, -1, 0, j, j + 1, 0, 1) for j in range(blocks)]


_EMPTY = dict.fromkeys(planes_jit.Batch._fields, (2, None)) | {
    "sums": (3, np.float64),
    "bars": (3, None),
    "x_bar": (2, np.float64),
    "d_bar": (2, np.float64),
    "stored": (3, None),
}


class _Engine:
    """One kernel on images of one shape and dtype."""

    def __init__(self, kernel: NumbaPlanesKernel, shape: tuple[int, ...], dtype: Any) -> None:
        self.network, self.nngp, self.shape, self.dtype = kernel.network, kernel.nngp, shape, np.dtype(dtype)
        self.lanes, self.size = lanes_of(dtype), int(np.prod(shape))
        self.params = {"weight_variance": kernel.weight_variance, "bias_variance": kernel.bias_variance}
        self.recipe = Recipe(kernel.network, kernel.nngp, kernel.width)
        self.tangents = self.recipe.tangents(shape, self.params)
        self.needs_variance = "relu" in self.network.hidden
        self.maps = geometry(self.network, shape, False).maps

    def _plan(self, own: bool, nngp: bool) -> tuple[planes_jit.Plan, int]:
        """The plan for the jitted code, and the vectors of memory a thread needs."""
        g = geometry(self.network, self.shape, own)
        tangents = np.reshape(self.tangents[: len(g.convs)], (len(g.convs), 2)).astype(np.float64)
        weight, bias = (float(v) for v in self.params.values())
        return planes_jit.Plan(g.levels, g.convs, tangents, g.bases, g.sizes, weight, bias, not nngp), g.work

    def tiles(self, x: np.ndarray) -> Iterator[slice]:
        """Tiles of targets that fit `TARGET_BYTES` once packed."""
        bytes_each = self.dtype.itemsize * (self.size + 2 * self.maps)
        size = max(1, TARGET_BYTES // (bytes_each * self.lanes)) * self.lanes
        return (slice(first, min(first + size, len(x))) for first in range(0, len(x), size))

    def gram(self, side: Side, x: np.ndarray) -> np.ndarray:
        """K of images with their variances and of others."""
        k = np.empty((len(side.x), len(x)), self.dtype)
        for tile in self.tiles(x):
            targets = self.side(x[tile], remember=True)
            k[:, tile] = self.read_out(self.sums(side, targets), side, targets)
        return k

    # --- images and their own variances

    def side(self, x: np.ndarray, *, remember: bool) -> Side:
        """The images with their own variances, computed or remembered."""
        if self.maps == 0 and not self.needs_variance:
            return Side(x, np.zeros((len(x), 1), self.dtype))
        return Side(x, self._remembered(x) if remember else self._own(x))

    def no_bars(self, n: int) -> Bars:
        """Cotangents of `n` images, all 0."""
        return Bars(np.zeros((n, self.size)), np.zeros((n, self.maps)), np.zeros(n))

    def images(self, rows: np.ndarray) -> np.ndarray:
        """Rows of numbers, channels first, as images."""
        height, width, ch = self.shape
        return rows.reshape(-1, ch, height, width).transpose(0, 2, 3, 1)

    def _own(self, x: np.ndarray) -> np.ndarray:
        """Own variances d, and last that at the read-in (0 where no ReLU follows it): (n, maps + 1)."""
        out = np.zeros((len(x), self.maps + 1), self.dtype)
        for tile in self.tiles(x):
            if self.maps:
                y = self._images(x[tile])
                d = aligned(len(y), self.maps * self.lanes, dtype=self.dtype)
                self._run(_each(planes_jit.OWN, len(y)), own=True, y=y, maps=d)
                out[tile, :-1] = unpack(d, len(x[tile]))
            if self.needs_variance:
                out[tile, -1] = self.own_sums(Side(x[tile], out[tile]), nngp=True)[0]
        return out

    def _remembered(self, x: np.ndarray) -> np.ndarray:
        """Own variances as `_own` gives them, of the images not seen before computed, of the others looked up.

        Of an image and its mirror image one is chosen by its hash and computed, whichever was seen first, so that
        results do not depend on what came before.
        """
        hashes = content_hashes(x)
        direct, mirrored = hashes[:, :2], hashes[:, 2:]
        turn = (mirrored[:, 0] < direct[:, 0]) & mirrors(self.network, self.shape)
        chosen = np.where(turn[:, None], mirrored, direct)
        # a string, whose hash Python keeps, rather than the tuple itself
        name = str((self.network.layers, *map(float, self.params.values()), self.shape, self.dtype.str))
        keys = [(name, int(a), int(b)) for a, b in chosen]
        found = memo.find(keys)
        missing = [n for n, row in enumerate(found) if row is None]
        out = np.empty((len(x), self.maps + 1), self.dtype)
        if missing:
            out[missing] = self._own(np.where(turn[missing, None, None, None], x[missing, :, ::-1], x[missing]))
            memo.keep([keys[n] for n in missing], out[missing])
        for n, row in enumerate(found):
            if row is not None:
                out[n] = row
        if turn.any():
            out[turn] = out[turn][:, mirror_index(self.network, self.shape)]
        return out

    # --- K and Θ at the read-in, and back

    def _normal(self) -> float:
        """1 over the number of pairs of pixels that the read-in averages."""
        level = geometry(self.network, self.shape, False).levels[-1]
        pixels = float(level[0] * level[1])
        return 1 / (pixels if self.network.read_in == "flatten" else pixels**2)

    def room(self, n: int, targets: int) -> np.ndarray:
        """Room for the planes between levels of `n` support images, for as many blocks of the targets as there is."""
        size = int(geometry(self.network, self.shape, False).sizes[1]) * (1 if self.nngp else 2)
        return room.array(-(-targets // self.lanes), n, size * self.lanes, dtype=self.dtype)

    def sums(self, side: Side, targets: Side, *, half: bool = False, stored: np.ndarray | None = None) -> np.ndarray:
        """K and Θ at the read-in, (2, n1, n2) in float64; with `half`, where j ≥ i at least.

        The planes between levels are left in `stored`, as far as it reaches.
        """
        n, arrays = len(side.x), {**self._support(side), **self._targets(targets)}
        if stored is not None:
            arrays["stored"] = stored
        blocks = len(arrays["y"])
        length = max(1, min(planes_jit.TOGETHER, blocks // _TASKS))
        step = max(1, -(-n // _parts(blocks // length)))
        tasks = [
            (planes_jit.FORTH, i, min(i + step, end), j, min(j + length, blocks), 0, 1)
            for j in range(0, blocks, length)
            for end in [min(n, (j + length) * self.lanes) if half else n]
            for i in range(0, end, step)
        ]
        out = np.zeros((2, n, blocks * self.lanes))
        self._run(tasks, nngp=self.nngp, sums=out, **arrays)
        return out[:, :, : len(targets.x)] * self._normal()

    def own_sums(self, side: Side, *, nngp: bool) -> np.ndarray:
        """K and Θ at the read-in of each image with itself, (2, n)."""
        arrays = self._targets(side)
        out = np.zeros((2, 1, len(arrays["y"]) * self.lanes))
        self._run(_each(planes_jit.FORTH, len(arrays["y"])), nngp=nngp, sums=out, **arrays)
        return out[:, 0, : len(side.x)] * self._normal()

    def pull_pairs(
        self, side: Side, targets: Side, bars: np.ndarray, stored: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Cotangents of K and Θ at the read-in to those of the images and of their own variances d.

        `stored` is what `sums` left.
        """
        n, arrays = len(side.x), {**self._support(side), **self._targets(targets)}
        blocks = len(arrays["y"])
        # the number of shares does not depend on the machine, so that sums are taken in one order everywhere
        length = max(1, -(-blocks // -(-_MOST_ROWS // max(n, 1))))
        starts = range(0, blocks, length)
        step = max(1, -(-n // _parts(len(starts))))
        tasks = [
            (planes_jit.BACK, i, min(i + step, n), j, min(j + length, blocks), share, len(starts))
            for share, j in enumerate(starts)
            for i in range(0, n, step)
        ]
        x_bar, d_bar = (np.zeros((n * len(starts), m)) for m in (self.size, self.maps))
        padded = self._padded(bars, blocks)
        self._run(tasks, nngp=self.nngp, bars=padded, x_bar=x_bar, d_bar=d_bar, stored=stored, **arrays)
        return x_bar.reshape(n, len(starts), self.size).sum(1), d_bar.reshape(n, len(starts), self.maps).sum(1)

    def pull_own(self, side: Side, bars: Bars) -> np.ndarray:
        """Cotangents of images, of their variances d and of that at the read-in to one of the images alone."""
        n, x_bar, d_bar = len(side.x), bars.x, bars.d
        if self.needs_variance:
            x_more, d_more = self._pull_variance(side, bars.variance)
            x_bar, d_bar = x_bar + x_more, d_bar + d_more
        if self.maps == 0 or n == 0:
            return x_bar
        y, maps_bar = self._images(side.x), pack(d_bar.astype(self.dtype))
        maps, image_bar = np.empty_like(maps_bar), np.empty_like(y)
        self._run(_each(planes_jit.OWN, len(y)), own=True, y=y, maps=maps, maps_bar=maps_bar, image_bar=image_bar)
        return x_bar + unpack(image_bar, n)

    def _pull_variance(self, side: Side, bar: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The cotangent of each image's variance at the read-in to those of the image and of its variances d."""
        arrays = self._targets(side)
        blocks = len(arrays["y"])
        bars = self._padded(np.stack([bar, np.zeros_like(bar)])[:, None], blocks)
        x_bar, d_bar = (np.zeros((blocks, m * self.lanes)) for m in (self.size, self.maps))
        self._run(_each(planes_jit.BACK, blocks), bars=bars, x_bar=x_bar, d_bar=d_bar, **arrays)
        # the image stands on both sides, and the derivative to either is the same
        return 2 * unpack(x_bar, len(bar), self.lanes), 2 * unpack(d_bar, len(bar), self.lanes)

    def _padded(self, bars: np.ndarray, blocks: int) -> np.ndarray:
        """Cotangents of the read-in's averages as those of its sums, 0 in the lanes that only fill up."""
        out = np.zeros((*bars.shape[:2], blocks * self.lanes), self.dtype)
        out[:, :, : bars.shape[2]] = bars * self._normal()
        return out

    def _support(self, side: Side) -> dict[str, Any]:
        s = np.sqrt(side.own[:, : self.maps])
        r = np.divide(1, s, out=np.zeros_like(s), where=s > 0)
        return {"x": side.rows() * self.dtype.type(1 / self.shape[2]), "xs": s * self.dtype.type(0.5), "xr": r}

    def _targets(self, side: Side) -> dict[str, Any]:
        """The images in blocks of lanes, with √d and 1/√d (0 where d is) of as many variances as `side` has."""
        n, maps = len(side.x), min(side.own.shape[1], self.maps)
        blocks, images = (
            -(-n // self.lanes),
            np.ascontiguousarray(side.x).reshape(n, self.size // self.shape[2], self.shape[2]),
        )
        y, s, r = (aligned(blocks, m * self.lanes, dtype=self.dtype) for m in (self.size, maps, maps))
        spread(blocks, lambda _, j: planes_jit.pack(images, side.own, y[j], s[j], r[j], j))
        return {"y": y, "ys": s, "yr": r}

    def _images(self, x: np.ndarray) -> np.ndarray:
        """The images in blocks of lanes."""
        return self._targets(Side(x, np.empty((len(x), 0), self.dtype)))["y"]

    def _run(self, tasks: Sequence[tuple[int, ...]], *, own: bool = False, nngp: bool = True, **arrays: Any) -> None:
        """Do the tasks of `planes_jit.run` on all cores."""
        plan, vectors = self._plan(own, nngp)
        empty = {name: np.empty((0,) * dim, dtype or self.dtype) for name, (dim, dtype) in _EMPTY.items()}
        batch = planes_jit.Batch(**{**empty, **arrays})
        rows = np.array(tasks, np.int64)
        memory = [aligned(vectors * self.lanes, dtype=self.dtype) for _ in range(min(threads(), len(tasks)))]
        spread(len(tasks), lambda worker, n: planes_jit.run(plan, batch, rows[n], memory[worker]))

    # --- the dense layers

    def read_out(self, sums: np.ndarray, side: Side, targets: Side) -> np.ndarray:
        """The kernel's values from K and Θ at the read-in."""
        if not self.network.hidden:
            sw, sb = self.params.values()
            return (sw * (sums[0] if self.nngp else sums[0] + sums[1]) + sb).astype(self.dtype)
        with precision(self.dtype):
            return np.array(_dense(self.recipe, self.shape, *self._dense_inputs(sums, side, targets)))

    def read_out_back(
        self, sums: np.ndarray, side: Side, targets: Side, cotangent: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The cotangent of the kernel's values to those of K and Θ at the read-in and of the support's variances."""
        if not self.network.hidden:
            bar = self.params["weight_variance"] * cotangent
            return np.stack([bar, np.zeros_like(bar) if self.nngp else bar]), np.zeros(len(side.x))
        with precision(self.dtype):
            inputs = self._dense_inputs(sums, side, targets)
            bars = _dense_back(self.recipe, self.shape, *inputs, cotangent.astype(self.dtype))
            return np.asarray(bars[0]), np.asarray(bars[1]).sum(1)

    def _dense_inputs(self, sums: np.ndarray, side: Side, targets: Side) -> tuple[Any, ...]:
        """K and Θ at the read-in, both variances there and the parameters, in one dtype.

        One dtype matters: an image with itself must find its own K equal to its variance to the last bit.
        """
        v1, v2 = (side.variance, targets.variance) if sums.ndim == 2 else (side.variance[:, None], targets.variance)
        v1, v2 = (np.broadcast_to(v, sums.shape[1:]) for v in (v1, v2))
        return sums.astype(self.dtype), v1, v2, {name: self.dtype.type(v) for name, v in self.params.items()}


@functools.partial(jax.jit, static_argnums=(0, 1))
def _dense(recipe: Recipe, shape: Any, sums: Any, v1: Any, v2: Any, params: Params) -> Any:
    return read_out(recipe, State(sums[0], None if recipe.nngp else sums[1]), v1, v2, shape, params)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _dense_back(recipe: Recipe, shape: Any, sums: Any, v1: Any, v2: Any, params: Params, cotangent: Any) -> Any:
    return jax.vjp(lambda s, v: _dense(recipe, shape, s, v, v2, params), sums, v1)[1](cotangent)
