"""Steps of whichever `kip` is imported, as jobs on standard input ask for: the process behind `step.py --before`.

A job is a line of JSON, answered by the seconds of its repeats. Both sides of a comparison run this file, so it also
takes steps with a `kip` whose `step` draws its own batch.
"""

from __future__ import annotations

import functools
import importlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import kip
from kip.sets import LabelledSet, aligned_empty, one_hot

try:
    algorithm = importlib.import_module("kip.algorithm")
except ImportError:
    algorithm = importlib.import_module("kip.kip")


def make_problem(targets: int, shape: tuple[int, ...]) -> Any:
    x = aligned_empty((targets, *shape), np.float32)  # as preprocessing gives it
    np.random.default_rng(0).standard_normal(out=x, dtype=np.float32)
    codes = np.arange(targets) % 10
    return algorithm.Problem(LabelledSet(x, one_hot(codes, 10)), codes, 10)


def whole_step(state: Any, problem: Any, config: Any) -> Any:
    """The state after a step, its draw included."""
    seen = algorithm.draw(state, problem, config) if hasattr(algorithm, "draw") else problem
    return algorithm.step(state, seen, config)[0]


@functools.lru_cache(maxsize=1)
def stepper(
    kernel: str, labels: str, support: int, targets: int, shape: tuple[int, ...], batch: int | None
) -> Callable:
    problem = make_problem(targets, shape)
    rate = algorithm.adam(0.01, 1000)
    config = algorithm.Config((kip.kernel(kernel),), support, 1000, rate, labels=labels, batch=batch)
    state = algorithm.init(problem, config, key=0)
    return lambda: whole_step(state, problem, config)


def main() -> None:
    for line in sys.stdin:
        job = json.loads(line)
        repeats, job["shape"] = job.pop("repeats"), tuple(job["shape"])
        take_step, seconds = stepper(**job), []
        for _ in range(repeats):
            start = time.perf_counter()
            take_step()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main()
