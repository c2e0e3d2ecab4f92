"""Compiled programs of pure functions: a bounded number is kept, the least recently used is given back first.

XLA maps every executable into the process, and a process may have no more than some 65,000 mappings on Linux; so a
session that goes through many kernels must give back what it no longer uses.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import jax

from kip.kernels.base import on_cpu

LIMIT = 64
"""Executables kept; a distillation uses about eight per kernel."""


class Executables:
    """Compiled functions by what they were compiled for, at most `limit` of them."""

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._kept: OrderedDict[Any, Any] = OrderedDict()
        self._lock = threading.Lock()

    def run(
        self, function: Callable[..., Any], static: tuple[Any, ...], *arguments: Any, options: Mapping[str, Any]
    ) -> Any:
        """Call function(*static, *arguments), compiled; within a trace, as a part of that.

        `static` is hashable; `options` are XLA's, for CPUs.
        """
        leaves, tree = jax.tree.flatten(arguments)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            return function(*static, *arguments)
        return self._compiled(function, static, tree, leaves, options)(*arguments)

    def _compiled(
        self, function: Callable[..., Any], static: tuple[Any, ...], tree: Any, leaves: list[Any], options: Any
    ) -> Any:
        shapes = tuple((leaf.shape, leaf.dtype) if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves)
        key = (function, static, tree, shapes, jax.config.jax_enable_x64, jax.config.jax_default_device)  # type: ignore[attr-defined]
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                known = _known(tuple(sorted(options.items()))) if options and on_cpu() else {}
                found = self._kept[key] = jax.jit(functools.partial(function, *static), compiler_options=known)
            self._kept.move_to_end(key)
            dropped = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self.limit)]
        for old in dropped:
            old.clear_cache()
        return found

    def clear(self) -> None:
        """Give back all of them."""
        with self._lock:
            dropped = list(self._kept.values())
            self._kept.clear()
        for old in dropped:
            old.clear_cache()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)


@functools.cache
def _known(options: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    """The options that this version of XLA has: they change from one to the next, and only make programs smaller."""
    found = {}
    for name, value in options:
        try:
            jax.jit(lambda x: x, compiler_options={name: value}).lower(0.0).compile()
        except jax.errors.JaxRuntimeError:
            continue
        found[name] = value
    return found


executables = Executables()
"""The process's own."""
