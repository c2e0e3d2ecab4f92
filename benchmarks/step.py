"""Time of a whole KIP step over the time of the two matrix products it cannot avoid, X_t X_sᵀ and Gᵀ X_t.

    python benchmarks/step.py            # three sizes, RBF and FC1, labels fixed and solved
    python benchmarks/step.py --quick    # the first size, fewer repeats

Everything that is compared is timed in turn, in one run, so that a busy machine slows all of it alike. The products are
taken in float32 on all cores, by NumPy and by jitted JAX, whichever is faster; after each task there is a pause, since
the threads of NumPy's BLAS spin for a while and would slow down what comes next. Below each ratio stands where the time
goes, as multiples of the same two products; "rest" is what the parts, timed on their own, do not account for.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import kip
from kip import kip as algorithm
from kip.kip import Config, Problem, State, adam
from kip.krr import Factor, Ridge, calm_threads
from kip.sets import LabelledSet, aligned_empty, one_hot
from kip.stream import SIDE_BY_SIDE, Plan, Tile

SIZES = [(500, 6000, 784), (100, 50_000, 3072), (2000, 6000, 784)]
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


def make_problem(targets: int, width: int) -> Problem:
    rng = np.random.default_rng(0)
    x = aligned_empty((targets, width), np.float32)  # as preprocessing gives it
    rng.standard_normal(out=x, dtype=np.float32)
    codes = np.arange(targets) % 10
    return Problem(LabelledSet(x, one_hot(codes, 10)), codes, 10)


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


def whole_step(state: State, problem: Problem, config: Config) -> Any:
    moved, _ = algorithm.step(state, problem, config)
    return moved.x, moved.opt_state


def part_tasks(problem: Problem, name: str, support: int) -> dict[str, Task]:
    """The parts of a step, each on its own, from the same pieces and in the same threads as in the step."""
    kernel, ridge = kip.kernel(name).held(), Ridge()
    x_s = algorithm.init(problem, settings(name, support, "fixed"), key=0).x
    double, y_s = x_s.astype(np.float64), problem.train.y[:support]
    plan = Plan().side_by_side(kernel, x_s, len(problem.train.x))
    tiles = plan.tiles(problem.train.x, problem.train.y, support)
    forward = [kernel.vjp(x_s, tile.x) for tile in tiles]
    cotangent = np.ones_like(forward[0][0])
    own_tiles = replace(plan, tile=-(-support // SIDE_BY_SIDE)).tiles(x_s, None, support)
    k_ss = kernel.gram(double)
    factor = Factor(k_ss, ridge)
    alpha = factor.solve(y_s)

    def pullback_of_k_ss() -> Any:
        def visit(tile: Tile) -> bool:
            k_st, pull = kernel.vjp(x_s, tile.x)
            return pull(k_st) is None

        return plan.executor(visit, own_tiles, max)

    def over_tiles(fn: Callable[[Tile], Any]) -> Task:
        return lambda: plan.executor(lambda tile: fn(tile) is None, tiles, max)

    def calm(fn: Task) -> Task:
        def task() -> Any:
            with calm_threads(support):
                return fn()

        return task

    return {
        "K_ts": over_tiles(lambda tile: kernel.vjp(x_s, tile.x)),
        "pullback of K_ts": over_tiles(lambda tile: forward[tile.index][1](cotangent)),
        "K_tsᵀK_ts in float64": over_tiles(lambda tile: normal(forward[tile.index][0])),
        "K_ss in float64": calm(lambda: kernel.gram(double)),
        "pullback of K_ss": pullback_of_k_ss,
        "factor, solve": calm(lambda: factor_and_solve(k_ss, ridge, y_s)),
        "cotangent of K_ss": calm(lambda: factor.cotangent(alpha, alpha)),
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
    ],
    "solved": [
        "K_ts",
        "pullback of K_ts",
        "K_tsᵀK_ts in float64",
        "K_ss in float64",
        "pullback of K_ss",
        "factor, solve",
        "cotangent of K_ss",
    ],
}


def report(size: tuple[int, int, int], repeats: int) -> None:
    support, targets, width = size
    problem = make_problem(targets, width)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first size only, three repeats")
    parser.add_argument("--repeats", type=int, default=5, help="how often each is timed (5)")
    options = parser.parse_args()
    print("time of a KIP step over that of the two matrix products it cannot avoid (lower is better; 1 is the least)")
    for size in SIZES[:1] if options.quick else SIZES:
        report(size, 3 if options.quick else options.repeats)


if __name__ == "__main__":
    main()
