"""Kernels whose pairs cost far more than a call of compiled code: programs for a fixed number of points or of pairs.

The host calls them in a loop, so that they are compiled once per form, dtype and shape of a point, whatever the number
of points. Inside a compiled pass the loop is a part of the program.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.base import Bound, Params, Pull, Total, as_points, common_points, precision
from kip.kernels.executables import executables
from kip.kernels.traced import Form, TracedBound, TracedKernel, is_traced, learnable

Pairs = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Numbers of pairs to the two points of each: the indices of all pairs would take more memory than K."""


class PairForm(Form):
    """The kernel as functions of a tile of points and of a tile of matched pairs of points."""

    @abc.abstractmethod
    def rows(self, shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
        """Points or pairs per tile, the largest first; a smaller tile takes what would not fill half of one."""

    @abc.abstractmethod
    def represent_tile(self, params: Params, x: Any, tables: Any) -> Any:
        """What is needed of each point of a tile, as a pytree of floating arrays."""

    @abc.abstractmethod
    def matched_tile(self, params: Params, first: Any, second: Any, tables: Any) -> Any:
        """K(first[n], second[n]) for every n of a tile."""

    def of_points(self) -> PairForm:
        """A form with the same `represent_tile`, the same for all that share it."""
        return self

    def represent(self, params: Params, x: Any, tables: Any) -> Any:
        rows = self.rows(x.shape[1:], x.dtype)[0]
        return _map_tiles(jax.checkpoint(lambda x: self.represent_tile(params, x, tables)), jnp.asarray(x), rows)

    def pairs(self, params: Params, first: Any, second: Any, tables: Any) -> Any:
        n1, n2 = (len(jax.tree.leaves(side)[0]) for side in (first, second))
        i, j = jnp.divmod(jnp.arange(n1 * n2), n2)
        return self._matched(params, first, second, i, j, tables).reshape(n1, n2)

    def own(self, params: Params, representation: Any, tables: Any) -> Any:
        """Computed by half."""
        n = len(jax.tree.leaves(representation)[0])
        i, j = jnp.triu_indices(n)
        k = self._matched(params, representation, representation, i, j, tables)
        return jnp.zeros((n, n), k.dtype).at[i, j].set(k).at[j, i].set(k)

    def diag(self, params: Params, representation: Any, tables: Any) -> Any:
        i = jnp.arange(len(jax.tree.leaves(representation)[0]))
        return self._matched(params, representation, representation, i, i, tables)

    def _matched(self, params: Params, first: Any, second: Any, i: Any, j: Any, tables: Any) -> Any:
        """K(first[i], second[j]) for arrays of indices."""

        @jax.checkpoint
        def tile(index: tuple[Any, Any]) -> Any:
            a, b = (jax.tree.map(lambda m, n=n: m[n], side) for side, n in zip((first, second), index, strict=True))
            return self.matched_tile(params, a, b, tables)

        x = jax.tree.leaves(first)[0]
        return _map_tiles(tile, (i, j), self.rows(x.shape[1:], x.dtype)[0])


def _map_tiles(function: Callable[[Any], Any], points: Any, tile: int) -> Any:
    """Map over the leading axis of `points`, `tile` at a time; the last tile is filled up with the first point."""
    n = jax.tree.leaves(points)[0].shape[0]
    tile = max(1, min(tile, n))
    count = -(-n // tile)

    def tiled(x: jax.Array) -> jax.Array:
        filler = jnp.broadcast_to(x[:1], (count * tile - n, *x.shape[1:]))
        return jnp.concatenate([x, filler]).reshape(count, tile, *x.shape[1:])

    out = jax.lax.map(function, jax.tree.map(tiled, points))
    return jax.tree.map(lambda x: x.reshape(count * tile, *x.shape[2:])[:n], out)


class PairwiseKernel(TracedKernel):
    """A kernel given by a `PairForm`. On NumPy arrays the host loops over tiles of points and of pairs."""

    @property
    @abc.abstractmethod
    def form(self) -> PairForm:
        """The pure functions; the same object or an equal one for every kernel that shares compiled code."""

    def gram(self, x1: Any, x2: Any = None) -> Any:
        a, b = common_points(x1, x1 if x2 is None else x2)
        if is_traced(a, b, self.params):
            return super().gram(x1, x2)
        tiles = self._tiles(a)
        first = tiles.represent(a)
        if x2 is None:
            return tiles.own(first)
        return tiles.gram(first, tiles.represent(b))

    def bind(self, x_support: Any) -> Bound:
        x = as_points(x_support, "x_support")
        if is_traced(x, self.params):
            return super().bind(x)
        double = _Tiles(self.form, self._cast(np.float64), x.shape[1:], np.float64)
        return _PairwiseBound(self._tiles(x), double, self._learned, x)

    def diag(self, x: Any) -> Any:
        x = as_points(x)
        if is_traced(x, self.params):
            return super().diag(x)
        tiles = self._tiles(x)
        side = tiles.represent(x)
        return tiles.matched(side, side, len(x), lambda n: (n, n))

    def _tiles(self, x: np.ndarray) -> _Tiles:
        return _Tiles(self.form, self._cast(x.dtype), x.shape[1:], x.dtype)


class _PairwiseBound(Bound):
    """The support set with its representation, in NumPy arrays.

    A pullback computes its pairs again. A total holds the cotangents of the representation and of the hyper-parameters.
    """

    def __init__(self, tiles: _Tiles, double: _Tiles, learned: bool, x: np.ndarray) -> None:
        self.tiles, self.double, self.learned, self.x = tiles, double, learned, x
        self.representation = tiles.represent(x)

    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        tiles, first = self.tiles, self.representation
        if is_traced(x_tile):
            return TracedBound(tiles.form, self.learned, self.x, self.double.params, first, tiles.tables).tile(x_tile)
        x_tile = as_points(x_tile, "x_tile").astype(self.x.dtype, copy=False)
        second = tiles.represent(x_tile)

        def pull(cotangent: Any) -> Total:
            if not self.learned:
                return tiles.first_pull(first, second, cotangent)[0], {}
            first_bar, second_bar, params_bar = tiles.matched_pull(first, second, cotangent)
            _, more = tiles.represent_pull(x_tile, second_bar)
            return first_bar, jax.tree.map(np.add, params_bar, more)

        return tiles.gram(first, second), pull

    def own(self) -> tuple[Any, Pull]:
        tiles, side, double = self.tiles, self.representation, self.double

        def pull(k_bar: Any) -> Total:
            # K and k_bar are symmetric, so the cotangents of both arguments are equal: one of them is enough.
            first_bar, params_bar = tiles.first_pull(side, side, k_bar)
            return jax.tree.map(lambda bar: 2 * bar, first_bar), learnable(self.learned, params_bar)

        return double.own(double.represent(self.x.astype(np.float64))), pull

    def finish(self, total: Total) -> tuple[Any, Params]:
        representation_bar, params_bar = total
        x_bar, more = self.tiles.represent_pull(self.x, representation_bar)
        return x_bar, jax.tree.map(lambda a, b: a + b, params_bar, learnable(self.learned, more))


class _Tiles:
    """The compiled programs of a form, for points of one shape and dtype, and the loops over tiles around them."""

    def __init__(self, form: PairForm, params: Params, shape: tuple[int, ...], dtype: Any) -> None:
        self.form, self.params, self.dtype, self.shape = form, params, np.dtype(dtype), shape
        self.rows = form.rows(shape, dtype)
        with precision(dtype):
            device = jax.config.jax_default_device  # type: ignore[attr-defined]
            self.tables = _placed(_Same(form.tables(shape)), self.dtype, device)

    def represent(self, x: np.ndarray) -> Any:
        """The representation of any number of points, in NumPy arrays."""
        if len(x) == 0:  # one point says how a representation is made up
            return jax.tree.map(lambda leaf: leaf[:0], self.represent(np.zeros((1, *self.shape), self.dtype)))
        parts = [self._run(_represent, self.form.of_points(), x[index]) for index, _ in self._cut(len(x))]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves)[: len(x)], *parts)

    def gram(self, first: Any, second: Any) -> np.ndarray:
        """K of every pair of two represented sets."""
        n1, n2 = _count(first), _count(second)
        return self.matched(first, second, n1 * n2, lambda n: np.divmod(n, n2)).reshape(n1, n2)

    def own(self, side: Any) -> np.ndarray:
        """K of a represented set with itself, computed by half."""
        n = _count(side)
        upper = np.triu(np.ones((n, n), bool))
        starts = np.arange(n) * (2 * n - np.arange(n) + 1) // 2  # where each row of the upper triangle starts

        def at(index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            i = np.searchsorted(starts, index, "right") - 1
            return i, index - starts[i] + i

        k = np.empty((n, n), self.dtype)
        k[upper] = k.T[upper] = self.matched(side, side, n * (n + 1) // 2, at)
        return k

    def matched(self, first: Any, second: Any, count: int, at: Pairs) -> np.ndarray:
        """K of `count` pairs of points."""
        k = np.empty(count, self.dtype)
        for index, entries in self._cut(count):
            i, j = at(index)
            k[index[:entries]] = self._run(_matched, self.form, _at(first, i), _at(second, j))[:entries]
        return k

    def first_pull(self, first: Any, second: Any, cotangent: Any) -> tuple[Any, Params]:
        """The cotangents of `first` and of the hyper-parameters, `second` being fixed."""
        total, params_total = _zeros(first), _zeros(self.params)
        for i, _, bars in self._pulled(_first_pull, first, second, cotangent):
            jax.tree.map(functools.partial(_add_at, i), total, bars[0])
            params_total = jax.tree.map(np.add, params_total, bars[1])
        return self._narrow(total), self._narrow(params_total)

    def matched_pull(self, first: Any, second: Any, cotangent: Any) -> tuple[Any, Any, Params]:
        """The cotangents of both sides and of the hyper-parameters."""
        first_total, second_total, params_total = _zeros(first), _zeros(second), _zeros(self.params)
        for i, j, bars in self._pulled(_matched_pull, first, second, cotangent):
            jax.tree.map(functools.partial(_add_at, i), first_total, bars[0])
            jax.tree.map(functools.partial(_add_at, j), second_total, bars[1])
            params_total = jax.tree.map(np.add, params_total, bars[2])
        return self._narrow(first_total), self._narrow(second_total), self._narrow(params_total)

    def _pulled(
        self, function: Callable[..., Any], first: Any, second: Any, cotangent: Any
    ) -> Iterator[tuple[np.ndarray, np.ndarray, Any]]:
        """The two points of each pair of a tile, and what the pullback `function` gives for them."""
        flat, columns = np.ravel(cotangent), np.shape(cotangent)[1]
        for index, count in self._cut(flat.size):
            i, j = np.divmod(index, columns)
            bar = _filled_with_zeros(flat[index].astype(self.dtype), count)
            yield i, j, self._run(function, self.form, _at(first, i), _at(second, j), bar)

    def represent_pull(self, x: np.ndarray, bar: Any) -> tuple[np.ndarray, Params]:
        """The cotangents of the points and of the hyper-parameters."""
        x_bar, params_total = np.zeros_like(x), _zeros(self.params)
        for index, count in self._cut(len(x)):
            part = jax.tree.map(lambda a, n=count: _filled_with_zeros(a, n), self._narrow(_at(bar, index)))
            found, params_bar = self._run(_represent_pull, self.form.of_points(), x[index], part)
            x_bar[index[:count]] = np.asarray(found)[:count]
            params_total = jax.tree.map(np.add, params_total, params_bar)
        return x_bar, self._narrow(params_total)

    def _cut(self, n: int) -> Iterator[tuple[np.ndarray, int]]:
        """Cut range(n) into tiles, each with its number of entries; the last is filled up with its last entry."""
        start = 0
        while start < n:
            rows = next((rows for rows in self.rows if rows <= 2 * (n - start)), self.rows[-1])
            count = min(rows, n - start)
            yield np.minimum(np.arange(start, start + rows), n - 1), count
            start += count

    def _run(self, function: Callable[..., Any], form: PairForm, *arguments: Any) -> Any:
        options = form.compiler_options
        with precision(self.dtype):
            found = executables.run(function, (form,), self.params, *arguments, self.tables, options=options)
        return jax.tree.map(np.asarray, found)

    def _narrow(self, tree: Any) -> Any:
        return jax.tree.map(lambda a: np.asarray(a, self.dtype), tree)


class _Same:
    """An object that equals itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


@functools.lru_cache(maxsize=64)
def _placed(tables: _Same, dtype: Any, device: Any) -> Any:
    """The tables on the default device; placing them took longer than a small Gram matrix does."""
    del dtype, device
    return jax.device_put(tables.value)


def _count(side: Any) -> int:
    return len(jax.tree.leaves(side)[0])


def _zeros(tree: Any) -> Any:
    """Sums in float64, whatever the dtype of their terms."""
    return jax.tree.map(lambda leaf: np.zeros(np.shape(leaf)), tree)


def _filled_with_zeros(a: np.ndarray, count: int) -> np.ndarray:
    """`a` with 0 from entry `count` on: those only fill up a tile."""
    return np.concatenate([a[:count], np.zeros_like(a[count:])])


def _at(side: Any, index: np.ndarray) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], side)


def _add_at(index: np.ndarray, sums: np.ndarray, bar: np.ndarray) -> None:
    """sums[index] += bar, where an entry may be repeated."""
    order = np.argsort(index, kind="stable")
    starts = np.flatnonzero(np.diff(index[order], prepend=-1))
    sums[index[order][starts]] += np.add.reduceat(bar[order], starts, axis=0, dtype=sums.dtype)


def _represent(form: PairForm, params: Params, x: Any, tables: Any) -> Any:
    return form.represent_tile(params, x, tables)


def _matched(form: PairForm, params: Params, first: Any, second: Any, tables: Any) -> Any:
    return form.matched_tile(params, first, second, tables)


def _first_pull(form: PairForm, params: Params, first: Any, second: Any, cotangent: Any, tables: Any) -> Any:
    _, back = jax.vjp(lambda r, p: form.matched_tile(p, r, second, tables), first, params)
    return back(cotangent)


def _matched_pull(form: PairForm, params: Params, first: Any, second: Any, cotangent: Any, tables: Any) -> Any:
    _, back = jax.vjp(lambda r1, r2, p: form.matched_tile(p, r1, r2, tables), first, second, params)
    return back(cotangent)


def _represent_pull(form: PairForm, params: Params, x: Any, bar: Any, tables: Any) -> Any:
    _, back = jax.vjp(lambda x, p: form.represent_tile(p, x, tables), x, params)
    return back(bar)
