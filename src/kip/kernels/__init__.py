"""Kernels by name: `kernel("fc2:nngp")`, and families of them."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kip.kernels.base import Kernel, on_cpu
from kip.kernels.inner import FC, RBF, InnerProductKernel, Linear
from kip.kernels.traced import OWN, FunctionKernel

__all__ = ["Kernel", "KernelLike", "family", "from_products", "kernel"]

ENGINES = ("jax", "numba")
_NAMES = ("linear", "rbf", "fc1", "fc2", "fc3", "conv1", "conv2", "conv3", "convnet3", "myrtle5", "myrtle7", "myrtle10")


KernelLike = str | Kernel | Callable[[Any, Any], Any]
"""What names a kernel: a spec, a kernel, or a function of two sets of points written with jax.numpy."""


def kernel(spec: KernelLike, engine: str | None = None) -> Kernel:
    """Return the kernel that `spec` names.

    A name, then options after colons: `"rbf:gamma=0.5"`, `"fc2:nngp"`, `"fc1:standard=1024"` (standard parameterisation
    and its hidden width; the NTK parameterisation is the default), `"fc1:weight_variance=2:bias_variance=1e-4"`. Sums
    and positive multiples are written `"0.5*rbf&fc1"`. `"convnet3:sampled=128"` is the kernel of networks with random
    weights and that many channels, drawn anew at every step (`kip.kernels.sampled`). A function of two sets of points,
    written with jax.numpy, becomes a custom kernel (`kip.kernels.traced.FunctionKernel`).

    `engine` is "jax" or "numba" (convolutional kernels on a CPU), never with a silent fall-back; None chooses by
    device.

    >>> import numpy as np, kip
    >>> x = np.eye(3)
    >>> kip.kernel("rbf:gamma=0.5").gram(x).shape
    (3, 3)
    """
    if isinstance(spec, Kernel):
        return spec
    if callable(spec):
        if engine is not None:
            raise ValueError(
                f"`engine` applies to a kernel given by name, not to a function; got {engine!r}. Leave it out"
            )
        return FunctionKernel(spec)
    if engine is not None and engine not in ENGINES:
        raise ValueError(f"`engine` must be one of {', '.join(ENGINES)} or None; got {engine!r}")
    text = spec.strip()
    if OWN in text:
        raise ValueError(
            f"{spec!r} is a custom kernel, which no string can rebuild; pass the kernel itself, "
            "as in kip.load(folder, kernel=mine)"
        )
    if "+" in re.sub(r"e\+", "e", text):
        raise ValueError(
            f"{spec!r} names a family of kernels: pass it where a family is taken, or write 'a&b' for a sum"
        )
    total: Kernel | None = None
    for part in text.split("&"):
        term = _term(part.strip(), engine)
        total = term if total is None else total & term
    assert total is not None
    return total


def family(spec: KernelLike | Sequence[KernelLike], engine: str | None = None) -> tuple[Kernel, ...]:
    """Return the kernels of a family: `"fc1+conv2"`, a list of names or kernels, or a single one.

    >>> import kip
    >>> [kernel.spec for kernel in kip.family("rbf:gamma=0.5+fc2:nngp")]
    ['rbf:gamma=0.5', 'fc2:nngp']
    """
    if isinstance(spec, Kernel) or callable(spec):
        return (kernel(spec, engine),)
    if not isinstance(spec, str | list | tuple):
        raise ValueError(f"`kernel` must be a name, a kernel, a function, or a list of these; got {spec!r}")
    parts = re.split(r"(?<![0-9]e)\+", spec) if isinstance(spec, str) else list(spec)
    if not parts:
        raise ValueError("`kernel` names no kernel; give one such as 'rbf', or a family such as 'fc1+conv2'")
    return tuple(kernel(part, engine) for part in parts)


def from_products(kernel: Kernel, x1x2: np.ndarray, x1x1: np.ndarray, x2x2: np.ndarray, d: int) -> np.ndarray:
    """K(x1, x2) from ⟨x1, x2⟩, ‖x1‖² and ‖x2‖² of points with d coordinates, in the dtype of ⟨x1, x2⟩.

    For kernels that are functions of these (linear, RBF, FC-m): several of them, and any subsets of the points, can
    share one matrix product.

    >>> import numpy as np, kip
    >>> x = np.eye(2)
    >>> from_products(kip.kernel("rbf"), x @ x.T, np.ones(2), np.ones(2), 2).round(3).tolist()
    [[1.0, 0.368], [0.368, 1.0]]
    """
    if not isinstance(kernel, InnerProductKernel):
        raise ValueError(f"`kernel` must be a function of inner products (linear, rbf, fcM); got {kernel.spec!r}")
    return kernel.from_products(x1x2, x1x1, x2x2, d)


def _term(text: str, engine: str | None) -> Kernel:
    head, star, tail = text.partition("*")
    if not star:
        return _single(text, engine)
    try:
        factor = float(head)
    except ValueError:
        raise ValueError(f"a multiple of a kernel is written '0.5*rbf'; got {text!r}") from None
    return factor * _single(tail.strip(), engine)


def _single(text: str, engine: str | None) -> Kernel:
    name, *raw = text.lower().split(":")
    options = _Options(text, raw)
    if name in ("linear", "rbf") or (re.fullmatch(r"fc\d+", name) and not options.given("sampled")):
        if engine == "numba":
            raise ValueError(f"kernel {name!r} runs on the jax engine only; leave `engine` out")
        if name == "linear":
            found: Kernel = Linear()
        elif name == "rbf":
            found = RBF(options.number("gamma", 1.0))
        else:
            found = FC(int(name[2:]), **options.network())
    else:
        found = _spatial(name, options, engine)
    options.finish()
    return found


def _spatial(name: str, options: _Options, engine: str | None) -> Kernel:
    from kip.kernels import network

    architecture = network.named(name)
    if architecture is None:
        near = difflib.get_close_matches(name, _NAMES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown kernel {name!r}{hint} (known: linear, rbf, fcM, convM, convnetM, myrtle5|7|10)")
    if options.given("sampled"):
        from kip.kernels.sampled import SampledKernel

        if engine == "numba":
            raise ValueError(f"kernel {options.text!r} runs on the jax engine only; leave `engine` out")
        return SampledKernel(architecture, **options.sampled())
    if "norm" in architecture.layers:
        raise ValueError(f"'norm' in kernel {name!r} has no exact kernel; write {name}:sampled=128 to sample networks")
    if engine is None:
        engine = "numba" if on_cpu() else "jax"
    if engine == "numba":
        from kip.kernels.planes_cpu import NumbaPlanesKernel

        if not on_cpu():
            raise ValueError("engine='numba' runs on CPUs only and JAX's default device is none; use engine='jax'")
        return NumbaPlanesKernel(architecture, **options.network())
    from kip.kernels.planes import PlanesKernel

    return PlanesKernel(architecture, **options.network())


class _Options:
    """The options of one kernel string, taken one by one; whatever is left over at the end is an error."""

    def __init__(self, text: str, raw: list[str]) -> None:
        self.text = text
        self.values = {key: value for key, _, value in (part.partition("=") for part in raw)}
        self.known: list[str] = []

    def number(self, key: str, default: float) -> float:
        self.known.append(f"{key}=…")
        raw = self.values.pop(key, None)
        if raw is None:
            return default
        try:
            return float(raw)
        except ValueError:
            raise ValueError(f"`{key}` in kernel {self.text!r} must be a number; got {raw!r}") from None

    def network(self) -> dict[str, Any]:
        self.known += ["nngp", "ntk"]
        nngp = self._flag("nngp")
        if self._flag("ntk") and nngp:
            raise ValueError(f"kernel {self.text!r} is either 'ntk' or 'nngp', not both")
        standard = "standard" in self.values
        width = self.number("standard", 1.0)
        if not (np.isfinite(width) and width >= 1 and width == int(width)):
            raise ValueError(
                f"`standard` in kernel {self.text!r} is the hidden width, a whole number of at least 1; got {width:g}"
            )
        return {
            "nngp": nngp,
            "width": int(width) if standard else None,
            "weight_variance": self.number("weight_variance", 2.0),
            "bias_variance": self.number("bias_variance", 1e-4),
        }

    def given(self, key: str) -> bool:
        """Whether an option is there."""
        return key in self.values

    def whole(self, key: str, default: int) -> int:
        """A whole number."""
        value = self.number(key, default)
        if value != int(value):
            raise ValueError(f"`{key}` in kernel {self.text!r} must be a whole number; got {value:g}")
        return int(value)

    def sampled(self) -> dict[str, Any]:
        """The options of a kernel of sampled networks; what only exact kernels have is left over, and refused."""
        return {
            "width": self.whole("sampled", 0),
            "ensemble": self.whole("ensemble", 8),
            "draw": self.whole("draw", 0),
            "nets": self.whole("nets", 1),
            "weight_variance": self.number("weight_variance", 2.0),
            "bias_variance": self.number("bias_variance", 1e-4),
        }

    def _flag(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def finish(self) -> None:
        if self.values:
            known = ", ".join(self.known) or "none"
            raise ValueError(f"kernel {self.text!r} has an unknown option {min(self.values)!r}; it takes: {known}")
