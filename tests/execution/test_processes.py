"""Passes in other processes give the bits that threads give."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from tests.execution.processes import Processes, pool

import kip
from kip.execution import Execution, Threads
from kip.gradients import gradients, solved_gradients
from kip.kernels import Kernel
from kip.krr import KernelRidge, Ridge
from kip.label_solver import solve_labels
from kip.sets import LabelledSet

RIDGE = Ridge(1e-2)
KERNELS = {
    "rbf": lambda: kip.kernel("rbf"),
    "fc1": lambda: kip.kernel("fc1"),
    "sum": lambda: kip.kernel("0.5*rbf&fc2:nngp"),
    "conv1@jax": lambda: kip.kernel("conv1", "jax"),
    "conv1@numba": lambda: kip.kernel("conv1", "numba"),
}


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with pool() as workers:
        yield Processes(workers)


@cache
def problem() -> tuple[LabelledSet, LabelledSet]:
    rng = np.random.default_rng(0)

    def draw(n: int) -> LabelledSet:
        x, y = rng.normal(size=(n, 4, 4, 1)), rng.normal(size=(n, 3))
        return LabelledSet(x.astype(np.float32), y.astype(np.float32))

    return draw(5), draw(37)


def everything(kernel: Kernel, executor: Any) -> list[Any]:
    """Gradients at labels given and solved, Label Solve and predictions, from passes of three tiles."""
    (support, targets), how = problem(), Execution(executor=executor, tile=16)
    solution = solve_labels([kernel], support.x, targets, RIDGE, execution=how)
    return [
        vars(gradients(kernel, support, targets, RIDGE, how)),
        vars(solved_gradients(kernel, support.x, targets, RIDGE, 1e-3, how)),
        solution.y,
        solution.loss,
        KernelRidge([kernel], support, RIDGE, how).predict(targets.x),
    ]


@pytest.mark.parametrize("name", KERNELS)
def test_processes_give_the_bits_of_threads(name: str, processes: Processes) -> None:
    kernel = KERNELS[name]()
    here, there = everything(kernel, Threads()), everything(kernel, processes)
    assert jax.tree.structure(here) == jax.tree.structure(there)
    assert jax.tree.all(jax.tree.map(np.array_equal, there, here))


def test_an_error_of_a_process_is_raised(processes: Processes) -> None:
    support, targets = problem()
    run = Execution(executor=processes, tile=16).over(kip.kernel("rbf"), support.x, targets)
    with pytest.raises(ArithmeticError, match="rows from 0"):
        run(fail)


def fail(shared: Any, rows: slice) -> Any:
    raise ArithmeticError(f"rows from {rows.start}")
