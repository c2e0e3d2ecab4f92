"""A pass on a device: the training set resident there, all tiles of a pass in one compiled program.

The support set, row numbers, coefficients and cotangents of K_ss are sent explicitly and counted; nothing else goes
from the host to a device within a step. Several devices share the tiles. Results equal those of the host to rounding.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from kip.execution.base import TILE_MULTIPLE, KeptTiles, Shared, Tile, add, concatenate
from kip.kernels.base import Bound, Kernel, Params, Total, precision
from kip.sets import LabelledSet, Selection

T = TypeVar("T")

AXIS = "devices"


@dataclass
class Transfers:
    """Explicit transfers from the host: how many arrays, and their bytes."""

    arrays: int = 0
    bytes: int = 0


@dataclass(eq=False)
class Device:
    """Visits tiles on JAX's default device, or on several that share them; for kernels that are `traceable`."""

    devices: tuple[jax.Device, ...] = ()
    transfers: Transfers = field(default_factory=Transfers)
    _resident: dict[int, tuple[jax.Array, jax.Array]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.devices = self.devices or (default_device(),)
        self.mesh = Mesh(np.array(self.devices), (AXIS,))

    def put(self, value: Any, *axes: str) -> Any:
        """Send arrays: whole to every device, or cut along `axes`."""
        for leaf in jax.tree.leaves(value):
            self.transfers.arrays += 1
            self.transfers.bytes += leaf.nbytes
        return jax.device_put(value, NamedSharding(self.mesh, PartitionSpec(*axes)))

    def begin(self, kernel: Kernel, x_support: np.ndarray, targets: LabelledSet | Selection, rows: int) -> DevicePass:
        """Bind the kernel on the device, and find the targets there or send them."""
        # As many tiles for each device, even where one tile would hold all targets.
        share = -(-len(targets) // len(self.devices))
        rows = min(rows, -(-share // TILE_MULTIPLE) * TILE_MULTIPLE)
        with precision(np.float64):
            bound = kernel.bind(self.put(x_support))
            if isinstance(targets, Selection):
                x, y = self._kept(targets.source)
                numbers = np.arange(len(targets)) if targets.rows is None else targets.rows
            else:
                x, y = self.put((np.asarray(targets.x), np.asarray(targets.y)))
                numbers = np.arange(len(targets))
            parts, mask = self.put(self._parts(numbers, rows, x_support.dtype), AXIS)
            return DevicePass(self, bound, x, y, parts, mask, len(numbers))

    def _kept(self, source: LabelledSet) -> tuple[jax.Array, jax.Array]:
        """The training set on the device, for as long as it lives on the host."""
        key = id(source)
        if key not in self._resident:
            self._resident[key] = self.put((source.x, source.y))
            weakref.finalize(source, _forget, weakref.ref(self), key)
        return self._resident[key]

    def _parts(self, numbers: np.ndarray, rows: int, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
        """Row numbers by tile, (tiles, rows), as many tiles for each device; what fills up is masked."""
        tiles = -(-len(numbers) // (rows * len(self.devices))) * len(self.devices)
        parts = np.full(tiles * rows, numbers[-1], np.int32)
        parts[: len(numbers)] = numbers
        mask = (np.arange(tiles * rows) < len(numbers)).astype(dtype)
        return parts.reshape(tiles, rows), mask.reshape(tiles, rows)


def _forget(device: weakref.ref[Device], key: int) -> None:
    alive = device()
    if alive is not None:
        alive._resident.pop(key, None)


@dataclass(frozen=True, eq=False)
class DevicePass:
    """A kernel bound to its support set on a device, and the targets there."""

    device: Device
    bound: Bound
    x: jax.Array
    y: jax.Array
    parts: jax.Array
    mask: jax.Array
    count: int

    def keep(self) -> KeptTiles | None:
        """Nothing: K is computed again, which on a device costs less than keeping it."""
        return None

    def __call__(
        self,
        fn: Callable[[Shared, slice], T],
        combine: Callable[[T, T], T] = add,
        *,
        alpha: np.ndarray | None = None,
        kept: KeptTiles | None = None,
    ) -> T:
        """Visit every tile; results are added up, or with `concatenate` put one after another."""
        del kept
        if combine not in (add, concatenate):
            raise ValueError("a pass on a device adds results up or concatenates them; run other passes on the host")
        with precision(np.float64):
            alpha = None if alpha is None else self.device.put(alpha)
            stacked = combine is concatenate
            found = _visit(fn, self.device.mesh, stacked, self.bound, self.x, self.y, self.parts, self.mask, alpha)
        if not stacked:
            return found
        values: Any = [np.asarray(each).reshape(-1, each.shape[-1])[: self.count] for each in found]
        return values

    def own(self) -> tuple[np.ndarray, Callable[[np.ndarray], Total]]:
        """K_ss in float64, on the host, and its pullback."""

        def pull(k_bar: np.ndarray) -> Total:
            with precision(np.float64):
                return _own_pull(self.bound, self.device.put(k_bar))

        with precision(np.float64):
            return np.asarray(_own(self.bound)), pull

    def finish(self, total: Total) -> tuple[np.ndarray, Params]:
        """The cotangents of the support points and of the hyper-parameters, on the host."""
        with precision(np.float64):
            found: tuple[np.ndarray, Params] = jax.tree.map(np.asarray, _finish(self.bound, total))
        return found


@dataclass(frozen=True, eq=False)
class _OneTile:
    """The tile that a step of the loop is at."""

    current: Tile

    def tile(self, rows: slice) -> Tile:
        del rows
        return self.current


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _visit(
    fn: Callable[[Any, slice], Any],
    mesh: Mesh,
    stacked: bool,
    bound: Bound,
    x: Any,
    y: Any,
    parts: Any,
    mask: Any,
    alpha: Any,
) -> Any:
    """A loop over tiles on every device; sums are taken in float64, first within a device and then over all."""

    def one(bound: Bound, x: Any, y: Any, alpha: Any, part: Any) -> Any:
        numbers, valid = part
        tile: Any = _OneTile(Tile(0, x[numbers].astype(valid.dtype), y[numbers], valid))
        return fn(Shared(bound, tile, alpha), slice(0, 0))

    def on_a_device(bound: Bound, x: Any, y: Any, alpha: Any, parts: Any, mask: Any) -> Any:
        visit = functools.partial(one, bound, x, y, alpha)
        if stacked:
            return jax.lax.map(visit, (parts, mask))
        form = jax.eval_shape(visit, (parts[0], mask[0]))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, np.float64), form)

        def step(sums: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(lambda a, b: a + b, sums, visit(part)), None

        sums, _ = jax.lax.scan(step, zeros, (parts, mask))
        return jax.lax.psum(sums, AXIS)

    whole, cut = PartitionSpec(), PartitionSpec(AXIS)
    shared = jax.shard_map(
        on_a_device,
        mesh=mesh,
        in_specs=(whole, whole, whole, whole, cut, cut),
        out_specs=cut if stacked else whole,
        check_vma=False,
    )
    return shared(bound, x, y, alpha, parts, mask)


@jax.jit
def _own(bound: Bound) -> Any:
    return bound.own()[0]


@jax.jit
def _own_pull(bound: Bound, k_bar: Any) -> Total:
    return bound.own()[1](k_bar)


@jax.jit
def _finish(bound: Bound, total: Total) -> tuple[Any, Params]:
    return bound.finish(total)


def default_device() -> jax.Device:
    """The device JAX computes on where none is named."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is None or isinstance(device, str):
        return jax.devices(device)[0]
    found: jax.Device = device
    return found


@functools.cache
def of(devices: tuple[jax.Device, ...]) -> Device:
    """The executor of these devices: one for as long as the process lives, since it keeps training sets there."""
    return Device(devices)
