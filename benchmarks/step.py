"""Time of a whole KIP step over the time of the two matrix products it cannot avoid, X_t X_sᵀ and Gᵀ X_t.

    python benchmarks/step.py            # three sizes, RBF and FC1, labels fixed and solved
    python benchmarks/step.py --quick    # the first size, fewer repeats
    python benchmarks/step.py --before OTHER_TREE    # ratio of this tree's step to another tree's, nothing else

Everything that is compared is timed in turn, in one run, so that a busy machine slows all of it alike. The products are
taken in float32 on all cores, by NumPy and by jitted JAX, whichever is faster; after each task there is a pause, since
the threads of NumPy's BLAS spin for a while and would slow down what comes next. Below each ratio stands where the time
goes, as multiples of the same two products; "rest" is what the parts, timed on their own, do not account for.

With `--before` each tree has a process of its own; they take turns, and the best step of each counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kip
from kip import algorithm
from kip.algorithm import Config, Problem, adam
from kip.execution import Execution, Shared
from kip.krr import Factor, Ridge
from kip.threads import blas_threads_for
from step_worker import make_problem, whole_step

SIZES = [(500, 6000, 784), (100, 50_000, 3072), (2000, 6000, 784)]
COMPARED = [(s, t, (d,), None, k) for s, t, d in SIZES for k in ("rbf", "fc1")]
COMPARED += [(500, 50_000, (784,), 6000, kernel) for kernel in ("rbf", "fc1")]
COMPARED += [(10, 480, (28, 28, 1), None, "convnet3:nngp")]
"""Support points, targets, shape of a point, batch and kernel that `--before` compares; `--quick` drops large ones."""

QUICK_POINTS = 10_000_000
"""Numbers in the targets up to which a size is quick."""

KERNELS = ["rbf", "fc1"]
LABELS = ["fixed", "solved"]
PAUSE = 0.1
"""Seconds after which the threads of BLAS have fallen asleep."""

Task = Callable[[], Any]


def timed(tasks: dict[str, Task], repeats: int) -> dict[str, list[float]]:
    """Seconds of each task, `repeats` times, the tasks taken in turn; a first round compiles and is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for round_ in range(repeats + 1):
        for name, task in tasks.items():
            time.sleep(PAUSE)
            start = time.perf_counter()
            jax.block_until_ready(task())
            if round_:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def products(problem: Problem, support: int) -> dict[str, Task]:
    x_t = problem.train.x
    x_s = x_t[:support] + np.float32(0.1)
    g = np.random.default_rng(1).standard_normal((len(x_t), support), np.float32)
    a, b, c = map(jnp.asarray, (x_t, x_s, g))
    forward, backward = jax.jit(lambda a, b: a @ b.T), jax.jit(lambda c, a: c.T @ a)
    return {
        "X_t X_sᵀ, NumPy": lambda: x_t @ x_s.T,
        "X_t X_sᵀ, JAX": lambda: forward(a, b),
        "Gᵀ X_t, NumPy": lambda: g.T @ x_t,
        "Gᵀ X_t, JAX": lambda: backward(c, a),
    }


def two_products(seconds: dict[str, list[float]], reduce: Callable[[list[float]], float]) -> float:
    best = {name: reduce(values) for name, values in seconds.items()}
    return sum(min(best[f"{which}, NumPy"], best[f"{which}, JAX"]) for which in ("X_t X_sᵀ", "Gᵀ X_t"))


def settings(kernel: str, support: int, labels: str) -> Config:
    return Config((kip.kernel(kernel),), support, 1000, adam(0.01, 1000), labels=labels)


def step_tasks(problem: Problem, kernel: str, support: int) -> dict[str, Task]:
    tasks: dict[str, Task] = {}
    for labels in LABELS:
        config = settings(kernel, support, labels)
        state = algorithm.init(problem, config, key=0)
        tasks[f"{kernel} {labels}"] = lambda state=state, config=config: whole_step(state, problem, config)
    return tasks


def part_tasks(problem: Problem, name: str, support: int) -> dict[str, Task]:
    """The parts of a step, each on its own, from the same pieces and in the same threads as in the step."""
    kernel, ridge, train = kip.kernel(name).frozen(), Ridge(), problem.train
    x_s = algorithm.init(problem, settings(name, support, "fixed"), key=0).x
    y_s = train.y[:support]
    run = Execution().over(kernel, x_s, train)
    tiles = [run.tiles.tile(rows) for rows in run.tiles.ranges()]
    forward = [run.bound.tile(tile.x) for tile in tiles]
    cotangent = np.ones_like(forward[0][0])
    k_ss, pull_own = run.own()
    factor = Factor(k_ss, ridge)
    alpha = factor.solve(y_s)
    k_bar = factor.cotangent(alpha, alpha)
    total = pull_own(k_bar)

    def over_tiles(fn: Callable[[int], Any]) -> Task:
        def visit(shared: Shared, rows: slice) -> bool:
            return fn(rows.start // shared.tiles.rows) is None

        return lambda: run(visit, max)

    def as_in_a_step(fn: Task) -> Task:
        def task() -> Any:
            with blas_threads_for(support):
                return fn()

        return task

    return {
        "K_ts": over_tiles(lambda index: run.bound.tile(tiles[index].x)),
        "pullback of K_ts": over_tiles(lambda index: forward[index][1](cotangent)),
        "K_tsᵀK_ts in float64": over_tiles(lambda index: normal(forward[index][0])),
        "K_ss in float64": as_in_a_step(lambda: run.own()[0]),
        "pullback of K_ss": as_in_a_step(lambda: pull_own(k_bar)),
        "factor, solve": as_in_a_step(lambda: factor_and_solve(k_ss, ridge, y_s)),
        "cotangent of K_ss": as_in_a_step(lambda: factor.cotangent(alpha, alpha)),
        "bind, finish": as_in_a_step(lambda: kernel.bind(x_s).finish(total)),
    }


def factor_and_solve(k_ss: np.ndarray, ridge: Ridge, y: np.ndarray) -> np.ndarray:
    factor = Factor(k_ss, ridge)
    return factor.solve(factor.solve(y))


def normal(k_st: np.ndarray) -> np.ndarray:
    wide = k_st.astype(np.float64)
    return wide @ wide.T


PARTS_OF = {
    "fixed": [
        "K_ts",
        "pullback of K_ts",
        "K_ss in float64",
        "pullback of K_ss",
        "factor, solve",
        "cotangent of K_ss",
        "bind, finish",
    ],
    "solved": [
        "K_ts",
        "pullback of K_ts",
        "K_tsᵀK_ts in float64",
        "K_ss in float64",
        "pullback of K_ss",
        "factor, solve",
        "cotangent of K_ss",
        "bind, finish",
    ],
}


def report(size: tuple[int, int, int], repeats: int) -> None:
    support, targets, width = size
    problem = make_problem(targets, (width,))
    base = products(problem, support)
    for kernel in KERNELS:
        seconds = timed({**base, **step_tasks(problem, kernel, support)}, repeats)
        best = two_products({name: seconds[name] for name in base}, min)
        median = two_products({name: seconds[name] for name in base}, statistics.median)
        parts = timed(part_tasks(problem, kernel, support), max(2, repeats // 2))
        print(f"\n{support} support, {targets} targets, d = {width}: two products {1e3 * best:.1f} ms at best")
        for labels in LABELS:
            of_step = seconds[f"{kernel} {labels}"]
            print(
                f"  {kernel}, labels {labels}: {min(of_step) / best:.2f} at best, "
                f"{statistics.median(of_step) / median:.2f} median ({1e3 * min(of_step):.1f} ms)"
            )
            shares = {part: min(parts[part]) / best for part in PARTS_OF[labels]}
            shares["rest"] = min(of_step) / best - sum(shares.values())
            print("    " + ", ".join(f"{part} {share:.2f}" for part, share in shares.items()), flush=True)


class Tree:
    """A process that takes steps with the `kip` of one tree."""

    def __init__(self, root: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(root.resolve() / "src")}
        command = [sys.executable, str(Path(__file__).with_name("step_worker.py"))]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)

    def seconds(self, job: dict[str, Any]) -> list[float]:
        """Seconds of the steps that the job asks for."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(job), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"the process of {self.process.args} ended; its message stands above")
        return json.loads(line)


def compare(before: Path, rounds: int, quick: bool) -> None:
    """Print the ratio of this tree's step to that of `before`, case by case, both measured in turn."""
    trees = {"before": Tree(before), "after": Tree(Path(__file__).parents[1])}
    print("time of a KIP step after over before (below 1 is faster), best and median of the steps of each")
    for support, targets, shape, batch, kernel in COMPARED:
        if quick and targets * np.prod(shape) > QUICK_POINTS and batch is None:
            continue
        for labels in LABELS:
            job = {"kernel": kernel, "labels": labels, "support": support, "targets": targets}
            job |= {"shape": shape, "batch": batch}
            seconds: dict[str, list[float]] = {name: [] for name in trees}
            for tree in trees.values():
                tree.seconds({**job, "repeats": 1})  # compiles
            for turn in range(rounds):
                for name in sorted(trees, reverse=bool(turn % 2)):  # neither always goes first
                    seconds[name] += trees[name].seconds({**job, "repeats": 3})
            best, median = ({n: f(s) for n, s in seconds.items()} for f in (min, statistics.median))
            size = f"{support} × {targets if batch is None else f'{batch} of {targets}'} × {shape}"
            print(
                f"  {size}, {kernel}, labels {labels}: {best['after'] / best['before']:.3f} at best "
                f"({1e3 * best['after']:.1f} / {1e3 * best['before']:.1f} ms), "
                f"{median['after'] / median['before']:.3f} median",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first size only, three repeats")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed (5)")
    parser.add_argument("--before", type=Path, metavar="TREE", help="root of another tree to compare steps with")
    parser.add_argument("--rounds", type=int, default=8, help="turns that each tree has with --before (8)")
    options = parser.parse_args()
    if options.before is not None:
        compare(options.before, options.rounds, options.quick)
        return
    print("time of a KIP step over that of the two matrix products it cannot avoid (lower is better; 1 is the least)")
    for size in SIZES[:1] if options.quick else SIZES:
        report(size, 3 if options.quick else options.repeats)


if __name__ == "__main__":
    main()
