"""Time of a KIP step by the device executor over that by threads of the host, on the device JAX has (here: a CPU).

    python benchmarks/device.py            # RBF, FC1, and convolutional kernels of JAX beside Numba's
    python benchmarks/device.py --quick    # smaller problems, fewer repeats

Both are timed in turn in one run. Above 1 the host path is faster, which is why it is the default on CPUs. On an
accelerator the device executor is the default; it has been run on CPUs only, on one device and on several forced by
XLA_FLAGS=--xla_force_host_platform_device_count.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

import kip
from kip import algorithm, machine
from kip.algorithm import Config, Problem, adam
from kip.execution import Execution
from kip.execution.device import Device
from kip.sets import LabelledSet, aligned_empty, one_hot

CASES = [
    ("rbf", None, (500, 6000), (784,)),
    ("fc1", None, (500, 6000), (784,)),
    ("rbf", None, (2000, 6000), (784,)),
    ("conv1", "jax", (10, 480), (28, 28, 1)),
    ("convnet2:nngp", "jax", (10, 240), (28, 28, 1)),
]
QUICK = [("rbf", None, (100, 2000), (784,)), ("conv1", "jax", (10, 96), (14, 14, 1))]
RESULTS = Path("results") / "device.json"


def make_problem(targets: int, shape: tuple[int, ...]) -> Problem:
    x = aligned_empty((targets, *shape), np.float32)
    np.random.default_rng(0).standard_normal(out=x, dtype=np.float32)
    codes = np.arange(targets) % 10
    return Problem(LabelledSet(x, one_hot(codes, 10)), codes, 10)


def seconds(problem: Problem, config: Config) -> Any:
    """A call that takes a step, and its time."""
    state = algorithm.init(problem, config, key=0)

    def call() -> float:
        batch = algorithm.draw(state, problem, config)
        start = time.perf_counter()
        algorithm.step(state, batch, config)
        return time.perf_counter() - start

    return call


def measure(case: tuple[Any, ...], labels: str, repeats: int) -> dict[str, Any]:
    spec, engine, (support, targets), shape = case
    problem = make_problem(targets, shape)
    ways = {
        "host": (kip.kernel(spec, "numba" if engine else None), Execution()),
        "device": (kip.kernel(spec, engine), Execution(Device())),
    }
    calls = {
        name: seconds(
            problem, Config((kernel,), support, 9, adam(0.01, 9), labels=labels, batch=targets, execution=execution)
        )
        for name, (kernel, execution) in ways.items()
    }
    first = {name: call() for name, call in calls.items()}
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            taken[name].append(call())
    best = {name: min(values) for name, values in taken.items()}
    return {
        "kernel": spec,
        "support": support,
        "targets": targets,
        "shape": list(shape),
        "labels": labels,
        "seconds": best,
        "first_call": first,
        "device_over_host": best["device"] / best["host"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller problems, three repeats, nothing written")
    parser.add_argument("--repeats", type=int, default=7, help="how often each is timed (7)")
    options = parser.parse_args()
    print(f"step on {jax.devices()[0].platform} by the device executor over that by host threads")
    rows = []
    for case in QUICK if options.quick else CASES:
        for labels in ("fixed", "solved"):
            row = measure(case, labels, 3 if options.quick else options.repeats)
            rows.append(row)
            ms = {name: 1e3 * value for name, value in row["seconds"].items()}
            print(
                f"  {row['kernel']} {row['support']} × {row['targets']} × {tuple(row['shape'])}, labels {labels}: "
                f"{row['device_over_host']:.2f} (device {ms['device']:.1f} ms, host {ms['host']:.1f} ms)",
                flush=True,
            )
    if not options.quick:
        about = {"cores": machine.cores(), "jax": jax.__version__, "platform": jax.devices()[0].platform}
        RESULTS.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
