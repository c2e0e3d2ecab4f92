"""The contract of a kernel: Gram matrices, and a kernel bound to its support set that visits targets tile by tile.

The algorithms know a kernel only through what is declared here. Nothing asks for its type: a kernel states itself what
it costs, where it can run and how it is written down.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

S = TypeVar("S")
T = TypeVar("T")

Params = dict[str, Any]
"""A kernel's learnable hyper-parameters: a pytree of positive numbers, empty where there are none."""

Total = Any
"""A pytree of arrays that can be added: cotangents of the representation of a support set and of `Kernel.params`."""

Pull = Callable[[Any], Total]
"""Maps a cotangent of K(X_s, x_tile), shape (n_s, n_tile), to its `Total`."""

EXPENSIVE = 1_000.0
"""Operations per pair, beyond an inner product, from which a kernel counts as expensive."""


class Bound(abc.ABC):
    """A kernel bound to its support set X_s.

    What depends on X_s alone (norms, variance maps, features) is computed once, when the kernel is bound. Then tiles of
    targets are visited, each of which gives a cotangent the size of the support set, whatever the size of the tile.
    These add up, and `finish` takes the sum the rest of the way back to X_s and to the hyper-parameters.
    """

    x: Any

    @abc.abstractmethod
    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        """K(X_s, x_tile), shape (n_s, n_tile), and its pullback."""

    def gram(self, x_tile: Any) -> Any:
        """K(X_s, x_tile) alone, where no pullback will be asked for."""
        return self.tile(x_tile)[0]

    @abc.abstractmethod
    def own(self) -> tuple[Any, Pull]:
        """K_ss in float64 and its pullback, which takes a symmetric cotangent: X_s is both arguments."""

    @abc.abstractmethod
    def finish(self, total: Total) -> tuple[Any, Params]:
        """The cotangents of X_s and of the hyper-parameters, from the sum of what the pullbacks gave."""


class Kernel(abc.ABC):
    """A positive semi-definite function K(x, x′) of two points, evaluated on sets of points.

    Points are images (n, h, w, ch) or vectors (n, d). Every method computes in the dtype of its inputs (float64 in,
    float64 out; anything else is float32), whatever JAX's global switch says. NumPy arrays give NumPy arrays; where a
    kernel is `traceable`, JAX arrays give JAX arrays, inside a compiled function too.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> str:
        """The canonical string from which `kip.kernel` rebuilds this kernel."""

    @abc.abstractmethod
    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        """K(x1, x2), shape (n1, n2); K(x1, x1), exactly symmetric, where `x2` is left out."""

    @abc.abstractmethod
    def bind(self, x_support: Any) -> Bound:
        """Bind the kernel to a support set."""

    @abc.abstractmethod
    def diag(self, x: Any) -> np.ndarray:
        """K(xᵢ, xᵢ) for every point, shape (n,)."""

    def cost(self, shape: tuple[int, ...]) -> float:
        """About how many operations a pair of points of `shape` takes beyond an inner product."""
        del shape
        return 50.0

    def expensive(self, shape: tuple[int, ...]) -> bool:
        """Whether a pair of points costs so much that a step should see fewer targets."""
        return self.cost(shape) >= EXPENSIVE

    def kept_bytes(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
        """Bytes that the kernel keeps of every image it has seen, and of every pair within a step."""
        del shape, itemsize
        return 0, 0

    @property
    def concurrent(self) -> bool:
        """Whether a pass gains by visiting tiles in several threads; not where the engine fills all cores by itself."""
        return False

    @property
    def traceable(self) -> bool:
        """Whether the kernel takes JAX arrays, so that a whole pass can run on a device."""
        return False

    @property
    def params(self) -> Params:
        """The hyper-parameters that may be learned."""
        return {}

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        """Return this kernel with other values of `params`; compiled code is shared."""
        if params:
            raise ValueError(f"kernel '{self.spec}' has no learnable hyper-parameters; got {sorted(params)}")
        return self

    def frozen(self) -> Kernel:
        """Return this kernel with its hyper-parameters frozen: a pullback may then give {} for their cotangents."""
        return self

    def at(self, *, key: int, step: int) -> Kernel:
        """The kernel that one step sees: this one, unless it is drawn anew at every step."""
        del key, step
        return self

    def vjp(self, x1: Any, x2: Any) -> tuple[Any, Callable[[Any], tuple[Any, Params]]]:
        """K(x1, x2) and its pullback to `x1` and `params`, shaped like `jax.vjp`; `x2` is fixed.

        For one tile. With several, bind the kernel to `x1` once.
        """
        x1, x2 = common_points(x1, x2)
        bound = self.bind(x1)
        k, pull = bound.tile(x2)
        return k, lambda cotangent: bound.finish(pull(cotangent))

    def __and__(self, other: Kernel) -> Kernel:
        """Sum of two kernels, written as in a spec: "rbf&fc1"."""
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __add__(self, other: object) -> Kernel:
        raise TypeError("`+` joins kernels to a family in a spec; write k1 & k2 for their sum, [k1, k2] for a family")

    __radd__ = __add__

    def __mul__(self, factor: float) -> Kernel:
        """Positive multiple of a kernel."""
        return Scaled(self, float(factor))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"kip.kernel({self.spec!r})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and isinstance(other, Kernel) and other._identity == self._identity

    def __hash__(self) -> int:
        return hash((type(self), self._identity))

    @property
    def _identity(self) -> Any:
        """What kernels of one class differ in: the spec, which names a custom kernel only loosely."""
        return self.spec


class Sum(Kernel):
    """K₁ + K₂."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        self.left, self.right = left, right

    @property
    def spec(self) -> str:
        return f"{self.left.spec}&{self.right.spec}"

    @property
    def _identity(self) -> Any:
        return self.left, self.right

    def cost(self, shape: tuple[int, ...]) -> float:
        return self.left.cost(shape) + self.right.cost(shape)

    def kept_bytes(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
        left, right = self.left.kept_bytes(shape, itemsize), self.right.kept_bytes(shape, itemsize)
        return left[0] + right[0], left[1] + right[1]

    @property
    def concurrent(self) -> bool:
        return self.left.concurrent and self.right.concurrent

    @property
    def traceable(self) -> bool:
        return self.left.traceable and self.right.traceable

    def frozen(self) -> Kernel:
        return Sum(self.left.frozen(), self.right.frozen())

    @property
    def params(self) -> Params:
        return {"left": self.left.params, "right": self.right.params}

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return Sum(self.left.with_params(params["left"]), self.right.with_params(params["right"]))

    def at(self, *, key: int, step: int) -> Kernel:
        return Sum(self.left.at(key=key, step=step), self.right.at(key=key, step=step))

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        return self.left.gram(x1, x2) + self.right.gram(x1, x2)

    def bind(self, x_support: Any) -> Bound:
        return _BoundSum(self.left.bind(x_support), self.right.bind(x_support))

    def diag(self, x: Any) -> np.ndarray:
        return self.left.diag(x) + self.right.diag(x)


class _BoundSum(Bound):
    """Both parts, each bound; a total is the pair of theirs."""

    def __init__(self, left: Bound, right: Bound) -> None:
        self.left, self.right = left, right

    @property
    def x(self) -> Any:
        """The support set."""
        return self.left.x

    def gram(self, x_tile: Any) -> Any:
        return self.left.gram(x_tile) + self.right.gram(x_tile)

    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        return self._both(self.left.tile(x_tile), self.right.tile(x_tile))

    def own(self) -> tuple[Any, Pull]:
        return self._both(self.left.own(), self.right.own())

    def _both(self, left: tuple[Any, Pull], right: tuple[Any, Pull]) -> tuple[Any, Pull]:
        (k_left, pull_left), (k_right, pull_right) = left, right
        return k_left + k_right, lambda cotangent: (pull_left(cotangent), pull_right(cotangent))

    def finish(self, total: Total) -> tuple[Any, Params]:
        x_left, params_left = self.left.finish(total[0])
        x_right, params_right = self.right.finish(total[1])
        return x_left + x_right, {"left": params_left, "right": params_right}


class Scaled(Kernel):
    """c·K for c > 0."""

    def __init__(self, kernel: Kernel, factor: float) -> None:
        if not (np.isfinite(factor) and factor > 0):
            raise ValueError(f"a kernel can be multiplied by a positive number only; got {factor}")
        self.kernel, self.factor = kernel, factor

    @property
    def spec(self) -> str:
        parts = self.kernel.spec.split("&")  # multiplication binds tighter than the sum sign in a spec
        return "&".join(_multiplied(part, self.factor) for part in parts)

    @property
    def _identity(self) -> Any:
        return self.kernel, self.factor

    def cost(self, shape: tuple[int, ...]) -> float:
        return self.kernel.cost(shape)

    def kept_bytes(self, shape: tuple[int, ...], itemsize: int) -> tuple[int, int]:
        return self.kernel.kept_bytes(shape, itemsize)

    @property
    def concurrent(self) -> bool:
        return self.kernel.concurrent

    @property
    def traceable(self) -> bool:
        return self.kernel.traceable

    def frozen(self) -> Kernel:
        return Scaled(self.kernel.frozen(), self.factor)

    @property
    def params(self) -> Params:
        return self.kernel.params

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return Scaled(self.kernel.with_params(params), self.factor)

    def at(self, *, key: int, step: int) -> Kernel:
        return Scaled(self.kernel.at(key=key, step=step), self.factor)

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        k = self.kernel.gram(x1, x2)
        return k * k.dtype.type(self.factor)

    def bind(self, x_support: Any) -> Bound:
        return _BoundMultiple(self.kernel.bind(x_support), self.factor)

    def diag(self, x: Any) -> np.ndarray:
        k = self.kernel.diag(x)
        return k * k.dtype.type(self.factor)


class _BoundMultiple(Bound):
    """The kernel bound; cotangents are multiplied on their way in."""

    def __init__(self, bound: Bound, factor: float) -> None:
        self.bound, self.factor = bound, factor

    @property
    def x(self) -> Any:
        """The support set."""
        return self.bound.x

    def gram(self, x_tile: Any) -> Any:
        k = self.bound.gram(x_tile)
        return k * k.dtype.type(self.factor)

    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        return self._times(*self.bound.tile(x_tile))

    def own(self) -> tuple[Any, Pull]:
        return self._times(*self.bound.own())

    def _times(self, k: Any, pull: Pull) -> tuple[Any, Pull]:
        return k * k.dtype.type(self.factor), lambda cotangent: pull(cotangent * cotangent.dtype.type(self.factor))

    def finish(self, total: Total) -> tuple[Any, Params]:
        return self.bound.finish(total)


# A bound kernel is a pytree, so that a pass on a device takes one as an argument: its arrays are the leaves.
jax.tree_util.register_pytree_node(
    _BoundSum,
    lambda bound: ((bound.left, bound.right), None),
    lambda _, parts: _BoundSum(*parts),
)
jax.tree_util.register_pytree_node(
    _BoundMultiple,
    lambda bound: ((bound.bound,), bound.factor),
    lambda factor, parts: _BoundMultiple(parts[0], factor),
)


def _multiplied(part: str, factor: float) -> str:
    head, star, tail = part.partition("*")
    return f"{number(factor * float(head))}*{tail}" if star else f"{number(factor)}*{part}"


def number(value: float) -> str:
    """The shortest text from which `float` gives `value` back: 0.1 stays "0.1" in a spec."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def as_points(x: Any, name: str = "x") -> Any:
    """`x` as a floating array of points: float64 stays, every other dtype becomes float32; a JAX array stays one."""
    if not isinstance(x, jax.Array):
        x = np.asarray(x)
    if x.dtype != np.float64:
        x = x.astype(np.float32, copy=False) if isinstance(x, np.ndarray) else x.astype(np.float32)
    if x.ndim not in (2, 4):
        raise ValueError(f"`{name}` must be images (n, h, w, channels) or vectors (n, d); got shape {x.shape}")
    return x


def common_points(x1: Any, x2: Any) -> tuple[Any, Any]:
    """Both sets of points in one dtype, checked to have the same shape of point."""
    a, b = as_points(x1, "x1"), as_points(x2, "x2")
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"`x1` and `x2` must hold points of one shape; got {a.shape[1:]} and {b.shape[1:]}")
    if a.dtype == b.dtype:
        return a, b
    return a.astype(np.float64), b.astype(np.float64)


def on_cpu() -> bool:
    """Whether JAX's default device, as `jax.default_device` or JAX_DEFAULT_DEVICE made it, is a CPU.

    There its arrays and NumPy's are the same memory. Asked for every product, so no array is made to find out.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is None:
        return jax.default_backend() == "cpu"
    return (device if isinstance(device, str) else device.platform) == "cpu"


def on_this_device(function: Callable[[S], T]) -> Callable[[S], T]:
    """`function` for other threads, with this thread's default device: JAX's settings belong to a thread."""
    device = jax.config.jax_default_device  # type: ignore[attr-defined]

    def on_it(argument: S) -> T:
        with jax.default_device(device):
            return function(argument)

    return on_it


@contextlib.contextmanager
def precision(dtype: Any) -> Iterator[None]:
    """A context in which JAX computes in `dtype`, float32 products in full; its switches are local, never global."""
    with jax.enable_x64(np.dtype(dtype) == np.float64), jax.default_matmul_precision("highest"):
        yield
