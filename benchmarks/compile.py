"""What compiling the JAX engine of convolutional kernels costs: CPU time, peak memory and memory mappings.

    python benchmarks/compile.py                            # this source tree
    python benchmarks/compile.py --tree PATH/src            # and another one beside it, such as an earlier version
    python benchmarks/compile.py --every                    # and every kernel of this tree in one process, at 8×8

Each row is one fresh process that computes a Gram matrix and a pullback of three images with four others, in float32.
Compiling is the CPU time of the first calls less that of the next ones; running is the best of three, on the clock and
in CPU time. Mappings and memory are of the whole process; what `import kip` and one addition take is subtracted from
them, but not in the run through every kernel. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CASES = [
    ("conv2", (8, 8, 3)),
    ("convnet3:nngp", (8, 8, 3)),
    ("myrtle5", (8, 8, 3)),
    ("myrtle10", (8, 8, 3)),
    ("conv2", (28, 28, 1)),
    ("convnet3:nngp", (28, 28, 1)),
    ("conv2", (32, 32, 3)),
    ("myrtle5", (32, 32, 3)),
]
LARGE = [("myrtle5", (28, 28, 1)), ("myrtle10", (28, 28, 1)), ("myrtle10", (32, 32, 3))]
NETWORKS = ["conv1", "conv2", "conv3", "convnet1", "convnet2", "convnet3", "myrtle5", "myrtle7", "myrtle10"]
HEADER = "compile s   run ms   CPU ms     MB  mappings  "


def mappings() -> int:
    """Memory mappings of this process."""
    return len(Path("/proc/self/maps").read_text().splitlines())


def megabytes(name: str) -> int:
    """A size that Linux states of this process: VmHWM is its peak, VmRSS what it holds."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) >> 10


def kept() -> int | None:
    """Compiled programs that the kernels keep; None in a tree that does not bound them."""
    try:
        from kip.kernels.executables import executables
    except ImportError:
        return None
    return len(executables)


def one(spec: str, shape: tuple[int, ...], dtype: str = "float32") -> Any:
    """A Gram matrix and a pullback."""
    import numpy as np

    import kip

    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(n, *shape)).astype(dtype) for n in (3, 4))
    kernel = kip.kernel(spec, "jax")
    k = kernel.gram(x)
    _, pull = kernel.vjp(x, y)
    return k, pull(np.ones((3, 4), dtype))


def measure(spec: str, shape: tuple[int, ...]) -> dict[str, Any]:
    """Compile and run one kernel in this process."""
    import jax.numpy as jnp

    import kip  # noqa: F401  (before the first count)

    (jnp.zeros(3) + 1).block_until_ready()
    start = mappings(), megabytes("VmHWM")
    before = time.process_time()
    one(spec, shape)
    first = time.process_time() - before
    runs, wall = [], []
    for _ in range(3):
        cpu, clock = time.process_time(), time.perf_counter()
        one(spec, shape)
        runs.append(time.process_time() - cpu)
        wall.append(time.perf_counter() - clock)
    return {
        "compile_cpu_seconds": round(first - min(runs), 2),
        "run_seconds": round(min(wall), 5),
        "run_cpu_seconds": round(min(runs), 5),
        "peak_megabytes": megabytes("VmHWM") - start[1],
        "mappings": mappings() - start[0],
        "programs": kept(),
    }


def every() -> dict[str, Any]:
    """Go through every kernel, parameterisation, dtype and number of channels in this process; print the progress."""
    import numpy as np

    clock, cpu, most, done = time.perf_counter(), time.process_time(), 0, 0
    for name in NETWORKS:
        for suffix in ("", ":nngp", ":standard=128", ":nngp:standard=128"):
            for channels in (1, 3):
                for dtype in ("float32", "float64"):
                    k, (x_bar, _) = one(name + suffix, (8, 8, channels), dtype)
                    if not (np.isfinite(k).all() and np.isfinite(x_bar).all()):
                        raise FloatingPointError(f"{name}{suffix}, {channels} channels, {dtype}: not finite")
                    most, done = max(most, mappings()), done + 1
        state = {"done": done, "most_mappings": most, "peak_megabytes": megabytes("VmHWM"), "programs": kept()}
        state |= {"seconds": round(time.perf_counter() - clock), "cpu_seconds": round(time.process_time() - cpu)}
        print(json.dumps(state), flush=True)
    return state


def child(tree: Path, arguments: list[str]) -> dict[str, Any]:
    """Run this script in a process of its own against the kernels of `tree`; its last line of output is the result."""
    command = [sys.executable, __file__, "--child", *arguments]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found if done.returncode == 0 else {**found, "died": done.returncode}


def row(found: dict[str, Any]) -> str:
    """The columns of one process."""
    if "died" in found:
        return f"died ({found['died']})".ljust(len(HEADER))
    seconds, run, cpu = found["compile_cpu_seconds"], 1e3 * found["run_seconds"], 1e3 * found["run_cpu_seconds"]
    return f"{seconds:9.1f} {run:8.1f} {cpu:8.1f} {found['peak_megabytes']:6d} {found['mappings']:9d}  "


def main() -> None:
    """Print the table, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, help="the source folder of a version to compare with")
    parser.add_argument("--large", action="store_true", help="Myrtle networks on large images too")
    parser.add_argument("--every", action="store_true", help="every kernel of this tree in one process too")
    parser.add_argument("--out", type=Path, help="write the numbers to this file, such as results/compile.json")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        spec, *shape = options.child
        print(json.dumps(every() if spec == "every" else measure(spec, tuple(map(int, shape)))))
        return
    trees = {"after": Path(__file__).resolve().parents[1] / "src"}
    if options.tree is not None:
        if not (options.tree / "kip").is_dir():
            parser.error(f"--tree needs a folder that holds the package kip; got {options.tree}")
        trees = {"before": options.tree.resolve(), **trees}
    print(" " * 27 + "".join(name.ljust(len(HEADER)) for name in trees) + "\n" + " " * 27 + HEADER * len(trees))
    rows = []
    for spec, shape in CASES + (LARGE if options.large else []):
        size = "×".join(map(str, shape))
        found = {name: child(tree, [spec, *map(str, shape)]) for name, tree in trees.items()}
        rows.append({"kernel": spec, "shape": size, **found})
        print(f"{spec:16s}{size:10s} " + "".join(map(row, found.values())), flush=True)
    result: dict[str, Any] = {"command": " ".join(["benchmarks/compile.py", *flags(options)]), "cases": rows}
    if options.every:
        result["every"] = child(trees["after"], ["every"])
        print("every kernel: " + ", ".join(f"{key} {value}" for key, value in result["every"].items()))
    if options.out is not None:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def flags(options: argparse.Namespace) -> list[str]:
    """The options as given, but for paths of this machine."""
    given = ["--tree PATH/src"] if options.tree else []
    return given + [f"--{name}" for name in ("large", "every") if getattr(options, name)]


if __name__ == "__main__":
    main()
