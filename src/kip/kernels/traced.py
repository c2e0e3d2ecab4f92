"""Kernels written as two pure JAX functions, and custom kernels as a single function.

K(x₁, x₂) = pairs(θ, represent(θ, x₁), represent(θ, x₂)). What `represent` gives of a point (its norm, variance maps,
features) is computed once per step for the support set and once per tile for the targets. The derivatives follow from
the two functions: `pairs` is pulled back tile by tile to the support's representation, `represent` once per step.
"""

from __future__ import annotations

import abc
import copy
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from kip.kernels.base import Bound, Kernel, Params, Pull, Total, as_points, common_points, precision
from kip.kernels.executables import executables


class Form(abc.ABC):
    """The two functions. Hashable and equal where they are the same, since compiled code is kept by form."""

    compiler_options: ClassVar[Mapping[str, Any]] = {}
    """XLA's options on CPUs."""

    def tables(self, shape: tuple[int, ...]) -> Any:
        """Arrays of indices for points of `shape`: arguments of compiled code rather than constants in it."""
        del shape
        return ()

    @abc.abstractmethod
    def represent(self, params: Params, x: Any, tables: Any) -> Any:
        """What is needed of each point, as a pytree of floating arrays."""

    @abc.abstractmethod
    def pairs(self, params: Params, first: Any, second: Any, tables: Any) -> Any:
        """K of every pair of two represented sets."""

    def own(self, params: Params, representation: Any, tables: Any) -> Any:
        """K of a represented set with itself, exactly symmetric."""
        k = self.pairs(params, representation, representation, tables)
        return (k + k.T) / 2

    def diag(self, params: Params, representation: Any, tables: Any) -> Any:
        """K of every represented point with itself."""

        def one(point: Any) -> Any:
            alone = jax.tree.map(lambda a: a[None], point)
            return self.pairs(params, alone, alone, tables)[0, 0]

        return jax.vmap(one)(representation)


class TracedKernel(Kernel):
    """A kernel given by its `form`; it computes on JAX's default device, or inside a compiled pass."""

    _learned = True

    @property
    @abc.abstractmethod
    def form(self) -> Form:
        """The pure functions; the same object or an equal one for every kernel that shares compiled code."""

    @property
    def traceable(self) -> bool:
        return True

    def frozen(self) -> Kernel:
        frozen = copy.copy(self)
        frozen._learned = False
        return frozen

    def gram(self, x1: Any, x2: Any = None) -> Any:
        x1, x2_ = common_points(x1, x1 if x2 is None else x2)
        params = self._cast(x1.dtype)
        if is_traced(x1, x2_, params):
            return _run(_gram, (self.form, x2 is None), params, x1, x2_, self.form.tables(x1.shape[1:]))
        with precision(x1.dtype):
            k = _run(_gram, (self.form, x2 is None), params, x1, x2_, self.form.tables(x1.shape[1:]))
        return like(k, x1)

    def bind(self, x_support: Any) -> Bound:
        x = as_points(x_support, "x_support")
        params, tables = self._cast(x.dtype), self.form.tables(x.shape[1:])
        if is_traced(x, params):
            full = self._cast(np.float64)
            if not isinstance(x, jax.core.Tracer):
                params, full, tables = jax.device_put((params, full, tables), x.sharding)
            representation = _run(_represent, (self.form,), params, x, tables)
            return TracedBound(self.form, self._learned, x, full, representation, tables)
        with precision(x.dtype):
            representation = _run(_represent, (self.form,), params, x, tables)
        return TracedBound(self.form, self._learned, x, self._cast(np.float64), representation, tables)

    def diag(self, x: Any) -> Any:
        x = as_points(x)
        params = self._cast(x.dtype)
        with precision(x.dtype):
            return like(_run(_diag, (self.form,), params, x, self.form.tables(x.shape[1:])), x)

    def _cast(self, dtype: Any) -> Params:
        """The hyper-parameters in the dtype of the points: a Python number would decide it by JAX's global switch."""
        return jax.tree.map(lambda v: v if isinstance(v, jax.Array) else np.asarray(v, dtype), self.params)


class TracedBound(Bound):
    """A support set with its representation; a total holds the cotangents of that and of the hyper-parameters.

    `params` are in float64, as K_ss needs them; tiles take them in the dtype of the points.

    On NumPy arrays each method is one compiled call. On JAX arrays, as in a pass on a device, it is part of whatever is
    being traced.
    """

    def __init__(self, form: Form, learned: bool, x: Any, params: Params, representation: Any, tables: Any) -> None:
        self.form, self.learned = form, learned
        self.x, self.params, self.representation, self.tables = x, params, representation, tables

    @property
    def _narrow(self) -> Params:
        return jax.tree.map(lambda v: v.astype(self.x.dtype), self.params)

    def __getstate__(self) -> dict[str, Any]:
        # As NumPy's arrays: JAX would unpickle a float64 array of its own as float32.
        return {name: jax.tree.map(_on_host, value) for name, value in vars(self).items()}

    def tile(self, x_tile: Any) -> tuple[Any, Pull]:
        form, learned = self.form, self.learned
        if is_traced(self.x, x_tile):
            return _pulled(form, learned, self._narrow, self.representation, x_tile, self.tables)
        arguments = (self._narrow, self.representation, x_tile, self.tables)
        with precision(self.x.dtype):
            k = _run(_tile, (form,), *arguments)

        def pull(cotangent: Any) -> Total:
            with precision(self.x.dtype):
                return jax.tree.map(lambda a: like(a, self.x), _run(_tile_pull, (form, learned), *arguments, cotangent))

        return like(k, self.x), pull

    def own(self) -> tuple[Any, Pull]:
        form, learned = self.form, self.learned
        arguments = (self._narrow, self.representation, self.tables)
        if is_traced(self.x):
            k_ss = _run(_own, (form,), wide(self.params), self.x.astype(np.float64), self.tables)
            return k_ss, functools.partial(_run, _own_pull, (form, learned), *arguments)
        with precision(np.float64):
            k_ss = _run(_own, (form,), wide(self.params), np.asarray(self.x, np.float64), self.tables)

        def pull(k_bar: Any) -> Total:
            with precision(self.x.dtype):
                found = _run(_own_pull, (form, learned), *arguments, k_bar.astype(self.x.dtype))
            return jax.tree.map(lambda a: like(a, self.x), found)

        return like(k_ss, self.x), pull

    def finish(self, total: Total) -> tuple[Any, Params]:
        form, learned = self.form, self.learned
        representation_bar, params_bar = total
        narrow = jax.tree.map(lambda a, b: a.astype(b.dtype), representation_bar, self.representation)
        if is_traced(self.x):
            x_bar, more = _run(_finish, (form, learned), self._narrow, self.x, self.tables, narrow)
        else:
            with precision(self.x.dtype):
                x_bar, more = _run(_finish, (form, learned), self._narrow, self.x, self.tables, narrow)
            x_bar, more = like(x_bar, self.x), jax.tree.map(np.asarray, more)
        return x_bar, jax.tree.map(lambda a, b: a + b, params_bar, more)


jax.tree_util.register_pytree_node(
    TracedBound,
    lambda bound: ((bound.x, bound.params, bound.representation, bound.tables), (bound.form, bound.learned)),
    lambda about, parts: TracedBound(*about, *parts),
)


class FunctionKernel(TracedKernel):
    """A custom kernel: a function of two sets of points, written with jax.numpy, that gives K(x1, x2).

    >>> import jax.numpy as jnp, numpy as np, kip
    >>> def cubic(x1, x2):
    ...     return (1 + x1 @ x2.T / x1.shape[1]) ** 3
    >>> kip.kernel(cubic).gram(np.eye(2)).round(2).tolist()
    [[3.38, 1.0], [1.0, 3.38]]

    Sets that are distilled with it predict; to open a saved one, hand the function in again:
    `kip.load(folder, kernel=cubic)`.
    """

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    @property
    def spec(self) -> str:
        return f"{OWN}{getattr(self.function, '__qualname__', type(self.function).__name__)}"

    @property
    def form(self) -> Form:
        return _OwnForm(self.function)

    @property
    def _identity(self) -> Any:
        return self.function


OWN = "own:"
"""How the spec of a kernel begins that no string can rebuild."""


@dataclass(frozen=True)
class _OwnForm(Form):
    """A function of points: what represents a point is the point itself."""

    function: Callable[[Any, Any], Any]

    def represent(self, params: Params, x: Any, tables: Any) -> Any:
        del params, tables
        return jnp.asarray(x)

    def pairs(self, params: Params, first: Any, second: Any, tables: Any) -> Any:
        del params, tables
        return self.function(first, second)


def check_own(kernel: Kernel, shape: tuple[int, ...]) -> None:
    """Refuse a custom kernel that is none: tried on a few points of `shape`."""
    if OWN not in kernel.spec:
        return
    x = np.random.default_rng(0).normal(size=(3, *shape)).astype(np.float32)
    try:
        k, k_own = kernel.gram(x, x[:2]), kernel.gram(x)
    except (TypeError, ValueError, IndexError, jax.errors.JAXTypeError) as error:
        raise ValueError(
            f"`kernel` {kernel.spec!r} failed on points of shape {shape}: {str(error).splitlines()[0]}; write it with "
            "jax.numpy, for two arrays (n, …) of points"
        ) from None
    if k.shape != (3, 2) or k_own.shape != (3, 3):
        raise ValueError(f"`kernel` {kernel.spec!r} must give a matrix (n1, n2); got {k.shape} for 3 and 2 points")
    if not (np.isfinite(k).all() and (np.diagonal(k_own) > 0).all() and np.allclose(k, k_own[:, :2], atol=1e-3)):
        raise ValueError(
            f"`kernel` {kernel.spec!r} must be finite and symmetric, and positive for a point with itself; it is not"
        )


def is_traced(*values: Any) -> bool:
    """Whether any of the arrays is JAX's own: what is computed from it stays on its device, or in its trace."""
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values))


def like(value: Any, x: Any) -> Any:
    """`value` as NumPy's array where `x` is one."""
    return value if isinstance(x, jax.Array) else np.asarray(value)


def _on_host(leaf: Any) -> Any:
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf


def wide(params: Params) -> Params:
    """`params` in float64."""
    return jax.tree.map(lambda v: v.astype(np.float64), params)


def learnable(learned: bool, params_bar: Params) -> Params:
    """The cotangents of the hyper-parameters; {} where these are frozen."""
    return params_bar if learned else {}


def _run(function: Callable[..., Any], static: tuple[Any, ...], *arguments: Any) -> Any:
    return executables.run(function, static, *arguments, options=static[0].compiler_options)


def _gram(form: Form, own: bool, params: Params, x1: Any, x2: Any, tables: Any) -> Any:
    if own:
        return _own(form, params, x1, tables)
    return form.pairs(params, form.represent(params, x1, tables), form.represent(params, x2, tables), tables)


def _own(form: Form, params: Params, x: Any, tables: Any) -> Any:
    return form.own(params, form.represent(params, x, tables), tables)


def _diag(form: Form, params: Params, x: Any, tables: Any) -> Any:
    return form.diag(params, form.represent(params, x, tables), tables)


def _represent(form: Form, params: Params, x: Any, tables: Any) -> Any:
    return form.represent(params, x, tables)


def _tile(form: Form, params: Params, representation: Any, x_tile: Any, tables: Any) -> Any:
    return form.pairs(params, representation, form.represent(params, x_tile, tables), tables)


def _pulled(
    form: Form, learned: bool, params: Params, representation: Any, x_tile: Any, tables: Any
) -> tuple[Any, Pull]:
    k, back = jax.vjp(lambda r, p: form.pairs(p, r, form.represent(p, x_tile, tables), tables), representation, params)

    def pull(cotangent: Any) -> Total:
        representation_bar, params_bar = back(cotangent)
        return representation_bar, learnable(learned, params_bar)

    return k, pull


def _tile_pull(form: Form, learned: bool, *arguments: Any) -> Total:
    *rest, cotangent = arguments
    return _pulled(form, learned, *rest)[1](cotangent)


def _own_pull(form: Form, learned: bool, params: Params, representation: Any, tables: Any, k_bar: Any) -> Total:
    _, back = jax.vjp(lambda r, p: form.pairs(p, r, r, tables), representation, params)
    representation_bar, params_bar = back(k_bar.astype(jax.tree.leaves(representation)[0].dtype))
    return representation_bar, learnable(learned, params_bar)


def _finish(form: Form, learned: bool, params: Params, x: Any, tables: Any, bar: Any) -> tuple[Any, Params]:
    _, back = jax.vjp(lambda x, p: form.represent(p, x, tables), x, params)
    x_bar, params_bar = back(bar)
    return x_bar, learnable(learned, params_bar)
