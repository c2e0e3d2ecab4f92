"""Milliseconds a pair for convolutional kernels: both engines, and neural-tangents 0.6.5 beside them in one run.

    python benchmarks/spatial.py [--quick] [--skip-neural-tangents] [--only conv2,myrtle5] [--out results/spatial.json]
                                 [--environment FOLDER]

Each is measured at several sizes of batch and counted at its best. neural-tangents imports on no current JAX, so the
script makes it a virtual environment of its own with the last JAX it works with; its `experimental` module, which needs
TensorFlow, is replaced by an empty one before the import.
"""

from __future__ import annotations

import argparse
import functools
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

# name, image, and numbers of support and target images to try, for numba, jax and neural-tangents
CASES = [
    ("conv2", (32, 32, 3), [(16, 1024), (100, 1024)], [(8, 64)], [(8, 16), (16, 64), (32, 128)]),
    ("convnet3", (32, 32, 3), [(8, 128), (10, 480)], [(2, 8)], [(1, 4), (2, 8)]),
    ("myrtle5", (28, 28, 1), [(4, 64)], [(1, 4)], [(1, 2), (2, 4)]),
    ("myrtle10", (32, 32, 3), [(4, 32)], [(1, 2)], [(1, 1), (2, 2)]),
]

ENGINES = ("numba", "jax", "neural-tangents")
THEIR_VERSIONS = {"neural-tangents": "0.6.5", "jax": "0.5.3"}

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


def ours(engine: str, name: str, nngp: bool, shape: tuple[int, ...], repeats: int, sizes: tuple[int, int]) -> dict:
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
            jax, tangents = (THEIR_VERSIONS[name] for name in ("jax", "neural-tangents"))
            subprocess.run([*pip, f"jax=={jax}", f"jaxlib=={jax}", "numpy", "scipy", "frozendict"], check=True)
            subprocess.run([*pip, "--no-deps", f"neural-tangents=={tangents}"], check=True)
            done.touch()
        self.process = subprocess.Popen(
            [str(python), "-c", THEIRS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def measure(
        self, name: str, nngp: bool, shape: tuple[int, ...], repeats: int, gradient: bool, sizes: tuple[int, int]
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


def best_of(measure: Callable[[tuple[int, int]], dict], sizes: list[tuple[int, int]]) -> dict:
    """Each part in ms a pair at the size that suits it best, with that size."""
    found: dict[str, Any] = {}
    for size in sizes:
        for part, value in measure(size).items():
            if value < found.get(part, {"ms": np.inf})["ms"]:
                found[part] = {"ms": value, "support": size[0], "targets": size[1]}
    return found


def rows_of(name: str, nngp: bool, shape: tuple[int, ...], found: dict[str, dict]) -> list[dict[str, Any]]:
    """What is printed and written: a row for the forward pass, and one for it with the pullback."""
    rows = []
    for part, title in (("forward", "forward"), ("both", "forward+pullback")):
        measured = {engine: parts[part] for engine, parts in found.items() if part in parts}
        row = {"kernel": f"{name}{':nngp' if nngp else ''}", "image": list(shape), "part": title, **measured}
        if "neural-tangents" in measured:
            row["ratio"] = measured["neural-tangents"]["ms"] / measured["numba"]["ms"]
        if part == "both":
            forward = found["numba"]["forward"]["ms"]
            row["pullback_over_forward"] = (measured["numba"]["ms"] - forward) / forward
        rows.append(row)
    return rows


def shown(row: dict[str, Any]) -> str:
    cells = [f"{row[engine]['ms']:.4f}" if engine in row else "–" for engine in ENGINES]
    cells.append(f"{row['ratio']:.0f}×" if "ratio" in row else "–")
    cells.append(f"{row['pullback_over_forward']:.1f}×" if "pullback_over_forward" in row else "")
    image = "×".join(map(str, row["image"]))
    return f"{row['kernel']:<16}{image:<11}{row['part']:<18}" + "".join(f"{cell:>17}" for cell in cells)


def write(path: Path, rows: list[dict[str, Any]], repeats: int) -> None:
    """Write the rows, in place of earlier ones of the same kernels; rows of others stay."""
    import jax
    import numba

    import kip

    about = {
        "command": "python " + " ".join(sys.argv),
        "cores": os.cpu_count(),
        "repeats": repeats,
        "versions": {
            "kip": kip.__version__,
            "jax": jax.__version__,
            "numba": numba.__version__,
            "numpy": np.__version__,
            "neural-tangents": THEIR_VERSIONS,
        },
    }
    stored = json.loads(path.read_text()) if path.exists() else []
    mine = {row["kernel"] for row in rows}
    kept = [row for row in stored if row["kernel"] not in mine]
    path.write_text(json.dumps([*kept, *({**row, **about} for row in rows)], indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats, and no gradients of neural-tangents")
    parser.add_argument("--skip-neural-tangents", action="store_true")
    parser.add_argument("--only", default="", help="kernels to measure, such as conv2,myrtle5")
    parser.add_argument("--out", type=Path, help="JSON file to record the measurements in")
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "kip-neural-tangents-0.6.5")
    options = parser.parse_args()
    theirs = None if options.skip_neural_tangents else NeuralTangents(options.environment)
    repeats = 1 if options.quick else 3
    chosen = [case for case in CASES if not options.only or case[0] in options.only.split(",")]
    print(f"ms a pair, float32, {os.cpu_count()} cores; the shortest of {repeats}")
    titles = (*ENGINES, "ratio to numba", "pullback/forward")
    print(f"{'kernel':<16}{'image':<11}{'':<18}" + "".join(f"{title:>17}" for title in titles))
    rows: list[dict[str, Any]] = []
    for name, shape, few, fewer, fewest in chosen:
        for nngp in (True, False):
            found = {
                engine: best_of(functools.partial(ours, engine, name, nngp, shape, repeats), sizes)
                for engine, sizes in (("numba", few), ("jax", fewer))
            }
            if theirs is not None:
                measure = functools.partial(theirs.measure, name, nngp, shape, repeats, not options.quick)
                found["neural-tangents"] = best_of(measure, fewest)
            for row in rows_of(name, nngp, shape, found):
                rows.append(row)
                print(shown(row), flush=True)
            if options.out is not None:
                write(options.out, rows, repeats)


if __name__ == "__main__":
    sys.exit(main())
