"""The contract of a kernel: its Gram matrix, and the pullback of that matrix to its first argument.

The algorithms know a kernel only through `Kernel.gram` and `Kernel.vjp`, so an engine need not be JAX.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

Params = dict[str, Any]
"""A kernel's learnable hyper-parameters: a pytree of positive numbers, empty where there are none."""

Pull = Callable[[np.ndarray], tuple[np.ndarray, Params]]
"""Maps a cotangent of K(x1, x2), shape (n1, n2), to the cotangents of `x1` and of `Kernel.params`."""


class Kernel(abc.ABC):
    """A positive semi-definite function K(x, x′) of two points, evaluated on sets of points.

    Points are images (n, h, w, ch) or vectors (n, d). Every method computes in the dtype of its inputs (float64 in,
    float64 out; anything else is float32), whatever JAX's global switch says.
    """

    @property
    @abc.abstractmethod
    def spec(self) -> str:
        """The canonical string from which `kip.kernel` rebuilds this kernel."""

    @property
    def concurrent(self) -> bool:
        """Whether a pass gains by visiting tiles in several threads; not where the engine fills all cores by itself."""
        return False

    def held(self) -> Kernel:
        """Return this kernel with its hyper-parameters held: a pullback may then give {} for their cotangents."""
        return self

    @property
    def params(self) -> Params:
        """The hyper-parameters that may be learned."""
        return {}

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        """Return this kernel with other values of `params`; compiled code is shared."""
        if params:
            raise ValueError(f"kernel '{self.spec}' has no learnable hyper-parameters; got {sorted(params)}")
        return self

    @abc.abstractmethod
    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        """K(x1, x2), shape (n1, n2); K(x1, x1), exactly symmetric, where `x2` is left out."""

    @abc.abstractmethod
    def vjp(self, x1: Any, x2: Any) -> tuple[np.ndarray, Pull]:
        """K(x1, x2) and its pullback to `x1` and `params`, shaped like `jax.vjp`.

        `x2` is held fixed even where it is the same array: for K(x, x) with a symmetric cotangent the whole
        derivative is twice what the pullback gives.
        """

    @abc.abstractmethod
    def diag(self, x: Any) -> np.ndarray:
        """K(xᵢ, xᵢ) for every point, shape (n,)."""

    def __add__(self, other: Kernel) -> Kernel:
        """Sum of two kernels."""
        return Sum(self, other)

    def __mul__(self, factor: float) -> Kernel:
        """Positive multiple of a kernel."""
        return Scaled(self, float(factor))

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"kip.kernel({self.spec!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kernel) and type(other) is type(self) and other.spec == self.spec

    def __hash__(self) -> int:
        return hash((type(self), self.spec))


class Sum(Kernel):
    """K₁ + K₂."""

    def __init__(self, left: Kernel, right: Kernel) -> None:
        self.left, self.right = left, right

    @property
    def spec(self) -> str:
        return f"{self.left.spec}&{self.right.spec}"

    @property
    def concurrent(self) -> bool:
        return self.left.concurrent and self.right.concurrent

    def held(self) -> Kernel:
        return Sum(self.left.held(), self.right.held())

    @property
    def params(self) -> Params:
        return {"left": self.left.params, "right": self.right.params}

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return Sum(self.left.with_params(params["left"]), self.right.with_params(params["right"]))

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        return self.left.gram(x1, x2) + self.right.gram(x1, x2)

    def vjp(self, x1: Any, x2: Any) -> tuple[np.ndarray, Pull]:
        k_left, pull_left = self.left.vjp(x1, x2)
        k_right, pull_right = self.right.vjp(x1, x2)

        def pull(cotangent: np.ndarray) -> tuple[np.ndarray, Params]:
            x_left, p_left = pull_left(cotangent)
            x_right, p_right = pull_right(cotangent)
            return x_left + x_right, {"left": p_left, "right": p_right}

        return k_left + k_right, pull

    def diag(self, x: Any) -> np.ndarray:
        return self.left.diag(x) + self.right.diag(x)


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
    def concurrent(self) -> bool:
        return self.kernel.concurrent

    def held(self) -> Kernel:
        return Scaled(self.kernel.held(), self.factor)

    @property
    def params(self) -> Params:
        return self.kernel.params

    def with_params(self, params: Mapping[str, Any]) -> Kernel:
        return Scaled(self.kernel.with_params(params), self.factor)

    def gram(self, x1: Any, x2: Any = None) -> np.ndarray:
        k = self.kernel.gram(x1, x2)
        return k * k.dtype.type(self.factor)

    def vjp(self, x1: Any, x2: Any) -> tuple[np.ndarray, Pull]:
        k, pull = self.kernel.vjp(x1, x2)
        factor = k.dtype.type(self.factor)
        return k * factor, lambda cotangent: pull(np.asarray(cotangent) * factor)

    def diag(self, x: Any) -> np.ndarray:
        k = self.kernel.diag(x)
        return k * k.dtype.type(self.factor)


def _multiplied(part: str, factor: float) -> str:
    head, star, tail = part.partition("*")
    return f"{number(factor * float(head))}*{tail}" if star else f"{number(factor)}*{part}"


def number(value: float) -> str:
    """The shortest text from which `float` gives `value` back: 0.1 stays "0.1" in a spec."""
    short = f"{value:g}"
    return short if float(short) == value else repr(float(value))


def as_points(x: Any, name: str = "x") -> np.ndarray:
    """`x` as a floating array of points: float64 stays, every other dtype becomes float32."""
    x = np.asarray(x)
    if x.dtype != np.float64:
        x = np.asarray(x, np.float32)
    if x.ndim not in (2, 4):
        raise ValueError(f"`{name}` must be images (n, h, w, channels) or vectors (n, d); got shape {x.shape}")
    return x


def common_points(x1: Any, x2: Any) -> tuple[np.ndarray, np.ndarray]:
    """Both sets of points in one dtype, checked to have the same shape of point."""
    a, b = as_points(x1, "x1"), as_points(x2, "x2")
    if a.shape[1:] != b.shape[1:]:
        raise ValueError(f"`x1` and `x2` must hold points of one shape; got {a.shape[1:]} and {b.shape[1:]}")
    dtype = np.result_type(a, b)
    return a.astype(dtype, copy=False), b.astype(dtype, copy=False)


def on_cpu() -> bool:
    """Whether JAX's default device, as `jax.default_device` or JAX_DEFAULT_DEVICE made it, is a CPU.

    There its arrays and NumPy's are the same memory. Asked for every product, so no array is made to find out.
    """
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    if device is None:
        return jax.default_backend() == "cpu"
    return (device if isinstance(device, str) else device.platform) == "cpu"


def precision(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which JAX computes in `dtype`: the 64-bit switch is thrown locally, never globally."""
    return jax.enable_x64(np.dtype(dtype) == np.float64)
