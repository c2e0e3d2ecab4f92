"""Milliseconds a pair for convolutional kernels: both engines, and neural-tangents 0.6.5 beside them in one run.

    python benchmarks/spatial.py [--quick] [--skip-neural-tangents] [--only conv2,myrtle5] [--environment FOLDER]

neural-tangents imports on no current JAX, so the script makes it a virtual environment of its own with the last JAX it
works with; its `experimental` module, which needs TensorFlow, is replaced by an empty one before the import.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

# name, image, and numbers of support and target images for (numba, jax, neural-tangents)
CASES = [
    ("conv2", (32, 32, 3), (16, 1024), (8, 64), (8, 16)),
    ("convnet3", (32, 32, 3), (8, 128), (2, 8), (1, 4)),
    ("myrtle5", (28, 28, 1), (4, 64), (1, 4), (1, 2)),
    ("myrtle10", (32, 32, 3), (4, 32), (1, 2), (1, 1)),
]

THEIRS = """
import json, os, sys, time, types
for name in ("neural_tangents.experimental", "neural_tangents.experimental.empirical_tf"):
    sys.modules[name] = types.ModuleType(name)
import jax, jax.numpy as jnp
from neural_tangents import stax

W = dict(W_std=2 ** 0.5, b_std=1e-2)
LAYER = dict(
    conv=lambda: stax.Conv(128, (3, 3), padding="SAME", **W), relu=lambda: stax.Relu(),
    pool=lambda: stax.AvgPool((2, 2), (2, 2)), flatten=lambda: stax.Flatten(), gap=lambda: stax.GlobalAvgPool(),
    dense=lambda: stax.Dense(1, **W),
)
for line in sys.stdin:
    job = json.loads(line)
    _, _, kernel_fn = stax.serial(*(LAYER[name]() for name in job["layers"]))
    x1, x2 = (jax.random.normal(jax.random.key(n), (n, *job["shape"])) for n in job["sizes"])
    value = jax.jit(lambda a, b: kernel_fn(a, b, job["get"]))
    both = jax.jit(jax.value_and_grad(lambda a, b: kernel_fn(a, b, job["get"]).sum()))
    out = {}
    for name, function in (("forward", value), ("both", both)):
        if name == "both" and not job["gradient"]:
            continue
        jax.block_until_ready(function(x1, x2))
        times = []
        for _ in range(job["repeats"]):
            start = time.perf_counter()
            jax.block_until_ready(function(x1, x2))
            times.append(time.perf_counter() - start)
        out[name] = min(times) / (x1.shape[0] * x2.shape[0]) * 1e3
    print(json.dumps(out), flush=True)
"""


def best(function: Callable[[], Any], repeats: int) -> float:
    """The shortest of several times, in ms, after one call that compiles."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def ours(engine: str, name: str, nngp: bool, shape: tuple[int, ...], sizes: tuple[int, int], repeats: int) -> dict:
    """Forward, and forward with the pullback, in ms a pair; targets seen before, as in every step but the first."""
    import kip

    kernel, rng = kip.kernel(f"{name}:nngp" if nngp else name, engine), np.random.default_rng(0)
    x1, x2 = (rng.standard_normal((n, *shape)).astype(np.float32) for n in sizes)
    pairs, cotangent = sizes[0] * sizes[1], np.ones(sizes, np.float32)
    forward = best(lambda: kernel.gram(x1, x2), repeats)
    both = best(lambda: kernel.vjp(x1, x2)[1](cotangent), repeats)
    return {"forward": forward / pairs, "both": both / pairs}


class NeuralTangents:
    """A process of neural-tangents 0.6.5 in an environment of its own."""

    def __init__(self, folder: Path) -> None:
        python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        done = folder / "installed"
        if not done.exists():
            print(f"making an environment for neural-tangents in {folder} …", flush=True)
            venv.create(folder, with_pip=True, clear=True)
            pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "jax==0.5.3", "jaxlib==0.5.3", "numpy", "scipy", "frozendict"], check=True)
            subprocess.run([*pip, "--no-deps", "neural-tangents==0.6.5"], check=True)
            done.touch()
        self.process = subprocess.Popen(
            [str(python), "-c", THEIRS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def measure(
        self, name: str, nngp: bool, shape: tuple[int, ...], sizes: tuple[int, int], repeats: int, gradient: bool
    ) -> dict:
        """Forward and, where asked for, forward with the gradient, in ms a pair."""
        from kip.kernels.network import named

        network = named(name)
        assert network is not None
        job = {
            "layers": network.layers,
            "get": "nngp" if nngp else "ntk",
            "shape": shape,
            "sizes": sizes,
            "repeats": repeats,
            "gradient": gradient,
        }
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        return json.loads(answer) if answer else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and no gradients of neural-tangents")
    parser.add_argument("--skip-neural-tangents", action="store_true")
    parser.add_argument("--only", default="", help="kernels to measure, such as conv2,myrtle5")
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "kip-neural-tangents-0.6.5")
    options = parser.parse_args()
    theirs = None if options.skip_neural_tangents else NeuralTangents(options.environment)
    repeats = 1 if options.quick else 3
    chosen = [case for case in CASES if not options.only or case[0] in options.only.split(",")]
    titles = ("numba", "jax", "neural-tangents", "ratio to numba")
    print(f"ms a pair, float32, {os.cpu_count()} cores; the shortest of {repeats}")
    print(f"{'kernel':<16}{'image':<11}{'':<10}" + "".join(f"{title:>17}" for title in titles))
    for name, shape, few, fewer, fewest in chosen:
        for nngp in (True, False):
            found = [
                ours("numba", name, nngp, shape, few, repeats),
                ours("jax", name, nngp, shape, fewer, repeats),
                theirs.measure(name, nngp, shape, fewest, repeats, not options.quick) if theirs else {},
            ]
            for part, title in (("forward", "forward"), ("both", "+pullback")):
                values = [result.get(part) for result in found]
                cells = ["–" if v is None else f"{v:.4f}" for v in values]
                cells.append("–" if values[2] is None else f"{values[2] / values[0]:.0f}×")
                label = f"{name}{':nngp' if nngp else ''}"
                print(
                    f"{label:<16}{'×'.join(map(str, shape)):<11}{title:<10}" + "".join(f"{c:>17}" for c in cells),
                    flush=True,
                )


if __name__ == "__main__":
    sys.exit(main())
