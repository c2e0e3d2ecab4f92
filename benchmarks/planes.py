"""Where the Numba engine's time goes: nanoseconds a point of a plane, for each thing that is done to one.

    python benchmarks/planes.py [--size 32] [--repeats 2000]

A plane of one block of pairs, as many as there are lanes, is taken through each function of `kip.kernels.planes_jit` on
its own, in one thread; the cost of calling it, measured on an empty plane, is taken off. Shares are of a level that has
one convolution and ReLU, as every level of ConvNet has, forward and back.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kip.kernels import planes_jit as jit
from kip.kernels.lanes import aligned, lanes_of

CHANNELS = 3


def tasks(size: int) -> dict[str, Callable[[int], Any]]:
    """Each function on a plane of the given height and the whole width."""
    lanes, zero, one = lanes_of(np.float32), np.int64(0), np.int64(1)
    rng = np.random.default_rng(0)
    area, half = size * size, (size + 2) ** 2

    def buffer(vectors: int) -> np.ndarray:
        out = aligned(vectors * lanes, dtype=np.float32)
        out[:] = rng.uniform(0.1, 1, out.size)
        return out

    planes, stored, saved = buffer(6 * half), buffer(2 * area), buffer(4 * area)
    y, ys, yr, x_bar, d_bar = (buffer(n) for n in (CHANNELS * area, area, area, CHANNELS * area, area))
    x, xs, xr = (rng.uniform(0.1, 1, n).astype(np.float32) for n in (CHANNELS * area, area, area))
    w, n = np.int64(size), np.int64(size)
    level = np.array([size, size, 0, 0, 0, 1, 1], np.int64)
    above = np.array([size // 2, size // 2, 0, 0, 1, 1, 1], np.int64)
    bases = np.zeros(4, np.int64)

    def relu(h: int, mode: int) -> None:
        jit._conv_relu_nngp(
            planes, zero, 2 * half, 4 * half, h, w, zero, zero, w, xs, xr, ys, yr, 2.0, 1e-4, saved, zero, mode, d_bar
        )

    def pool(h: int, back: Any) -> None:
        level[0] = h
        above[0] = h // 2
        jit._pool(planes, 2 * half, stored, zero, zero, zero, level, above, bases, back)

    return {
        "inner products of pixels": lambda h: jit._inner_products(x, y, planes, h, w, zero, zero, w, area, CHANNELS),
        "convolution and ReLU": lambda h: relu(h, jit.PLAIN),
        "pooling": lambda h: pool(h, zero),
        "convolution and ReLU, turning round": lambda h: relu(h, jit.TURN),
        "pooling, back": lambda h: pool(h, one),
        "convolution, back": lambda h: jit._conv_back(
            planes, 2 * half, zero, half, h, w, 2.0, 0.0, False, False, saved, zero, d_bar, zero, w
        ),
        "to the image": lambda h: jit._to_image(planes, zero, y, x_bar, h, w, zero, zero, w, n * w, CHANNELS),
    }


FORWARD = ("inner products of pixels", "convolution and ReLU", "pooling")
BACK = (
    "inner products of pixels",
    "pooling, back",
    "convolution and ReLU, turning round",
    "convolution, back",
    "to the image",
)


def nanoseconds(task: Callable[[int], Any], size: int, repeats: int) -> float:
    """A point of a plane of all lanes, the call taken off: the best of five."""

    def once(h: Any) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            task(h)
        return time.perf_counter() - start

    whole, empty = np.int64(size), np.int64(0)
    once(whole)
    best = min(once(whole) for _ in range(5)) - min(once(empty) for _ in range(5))
    return best / repeats / (size * size) * 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=1000)
    options = parser.parse_args()
    found = {name: nanoseconds(task, options.size, options.repeats) for name, task in tasks(options.size).items()}
    print(f"float32, {lanes_of(np.float32)} pairs at once, {options.size}×{options.size}×{CHANNELS}, NNGP, one thread")
    for title, names in (("forward", FORWARD), ("pullback", BACK)):
        total = sum(found[name] for name in names)
        print(f"{title}: {total:.1f} ns a point")
        for name in names:
            print(f"    {found[name]:6.1f}  {found[name] / total:4.0%}  {name}")


if __name__ == "__main__":
    main()
