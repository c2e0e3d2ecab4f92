"""`kip bench`: how fast this machine computes each family of kernels."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number
from rich.table import Table

from kip import machine
from kip.cli import common
from kip.cli.progress import console, working
from kip.timing import shortest

if TYPE_CHECKING:
    from kip.kernels import Kernel

KERNELS = "rbf,fc1,conv2,convnet3,myrtle5,myrtle10"
SUPPORT = 16
TARGETS = {"many": 4096, "few": 16}
"""Target images at first: kernels of inner products are too quick for few, those of pixels too slow for many."""


def bench(
    *,
    kernels: Annotated[str, Parameter(help="Kernels with commas between.")] = KERNELS,
    size: Annotated[int, Parameter(validator=Number(gte=4, lte=512), help="Height and width of the images.")] = 32,
    channels: Annotated[int, Parameter(validator=Number(gte=1, lte=64), help="Channels of the images.")] = 3,
    seconds: Annotated[
        float, Parameter(validator=Number(gt=0, lte=3600), help="Time to spend on a measurement, about.")
    ] = 0.5,
    engine: Annotated[Literal["jax", "numba"] | None, Parameter(help="What computes kernels: by the device.")] = None,
    device: Annotated[str | None, Parameter(help="JAX device, such as cpu or gpu:1.")] = None,
) -> int:
    """Measure how many pairs of images a second each kernel takes here.

    In float32, alone and with the gradient; the first call, which compiles, is
    shown apart. For planning: a step of KIP takes a pair with gradient for each
    target and support image, a prediction takes a pair.

    For example:

        kip bench
        kip bench --kernels conv2,myrtle10:nngp --size 28 --channels 1
    """
    from kip.kernels import kernel

    common.use_device(device)
    chosen = [kernel(name.strip(), _engine(name, engine)) for name in kernels.split(",") if name.strip()]
    if not chosen:
        raise ValueError(f"`--kernels` names no kernel; got {kernels!r}. Write rbf,fc1")
    table = Table(
        title=f"images of {size}×{size}×{channels}, {machine.cores()} cores", title_justify="left", title_style="bold"
    )
    for heading in ("kernel", "first call", "pairs/s", "a pair", "with gradient", "a pair"):
        table.add_column(heading, justify="left" if heading == "kernel" else "right")
    for each in chosen:
        with working(f"measuring {each.spec}"):
            first, forward, both = _measure(each, (size, size, channels), seconds)
        table.add_row(
            each.spec, f"{first:.1f} s", f"{1 / forward:,.0f}", _time(forward), f"{1 / both:,.0f}", _time(both)
        )
    console.print(table)
    return 0


def _engine(name: str, engine: str | None) -> str | None:
    """Kernels of inner products have one engine; a choice between two is for the others."""
    quick = name.strip().lower().startswith(("rbf", "linear", "fc"))
    return None if quick else engine


def _measure(each: Kernel, shape: tuple[int, int, int], seconds: float) -> tuple[float, float, float]:
    """Seconds of the first call, and seconds a pair without and with the pullback."""
    import numpy as np

    count = TARGETS["few" if each.expensive(shape) else "many"]
    rng = np.random.default_rng(0)
    x_support = rng.standard_normal((SUPPORT, *shape), np.float32)
    x_target = rng.standard_normal((count, *shape), np.float32)
    cotangent = np.ones((SUPPORT, count), np.float32)

    def both() -> None:
        each.vjp(x_support, x_target)[1](cotangent)

    start = time.perf_counter()
    each.gram(x_support, x_target)
    first = time.perf_counter() - start
    pairs = SUPPORT * count
    forward = shortest(lambda: each.gram(x_support, x_target), seconds) / pairs
    both()
    return first, forward, shortest(both, seconds) / pairs


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)):
        if seconds * scale >= 1:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
