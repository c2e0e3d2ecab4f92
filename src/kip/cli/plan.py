"""`kip plan`: what a run would take, from shapes and a few of its steps; and what `kip distill` asks of the same."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

from kip.cli import common
from kip.cli.options import (
    BUDGET,
    USUAL_DATA,
    USUAL_LEARNING,
    USUAL_RUN,
    USUAL_SET,
    DataOptions,
    LearnOptions,
    RunOptions,
    SetOptions,
    seconds,
)
from kip.cli.progress import duration, say, working

if TYPE_CHECKING:
    from kip.api import Options, Task
    from kip.data import Dataset
    from kip.kernels import Kernel
    from kip.machine import Limit
    from kip.plan import Pace, Work


def plan(
    *,
    data: DataOptions = USUAL_DATA,
    of: SetOptions = USUAL_SET,
    learning: LearnOptions = USUAL_LEARNING,
    running: RunOptions = USUAL_RUN,
    time_budget: Annotated[str | None, BUDGET] = None,
) -> int:
    """Say what time, memory and disk `kip distill` would take with the same options.

    Memory is computed from shapes, and what would not fit is refused. Then the
    data are prepared and a few steps and evaluations are timed; no run is
    written. The time is that of learning: comparing the finished set with
    others comes after it, and `--draws 0` leaves that out.

    For example:

        kip plan
        kip plan --data cifar10 --kernel convnet3 --size 100
        kip plan --data mnist --size 500 --time-budget 10m
    """
    from kip import plan as arithmetic

    budget = None if time_budget is None else seconds(time_budget)
    common.use_device(running.device)
    dataset = common.load_data(data)
    options = common.api_options(dataset, data, of, learning, running)
    work, needed = checked(dataset, options, running)
    start = time.monotonic()
    task = common.ready(dataset, options)
    preparing = time.monotonic() - start
    pace = paced(task, budget)
    if budget is not None and options.steps is None:
        task = with_steps(dataset, task, options, pace, budget)
    steps, every = task.config.steps, task.config.judge_every
    learned = pace.compiling + pace.learning(steps, every)
    said = expectation(needed, learned * running.seeds, pace.step)
    say(f"{said}, {amount(arithmetic.disk(dataclasses.replace(work, steps=steps)) * running.seeds)} of disk")
    say(f"  {steps:,} steps of {short(pace.step)}, an evaluation of {short(pace.evaluation)} every {every:,} of them")
    say(f"  {short(pace.compiling)} to compile; {short(preparing)} to prepare the data, which was done now")
    return 0


def checked(dataset: Dataset, options: Options, running: RunOptions) -> tuple[Work, int]:
    """The shapes of a run and the memory it needs; what does not fit here is refused."""
    from kip import machine
    from kip import plan as arithmetic

    outline = common.outlined(dataset, options)
    _import_what_runs(outline.options)
    work = arithmetic.Work.of(
        outline, len(dataset.x_test), threads=machine.cores(), draws=running.draws, full=running.full
    )
    floor, limit = machine.resident(), machine.tightest_limit()
    needed = arithmetic.memory(work, floor)
    if needed > limit.resident:
        raise ValueError(_refusal(needed, limit, arithmetic.remedy(work, floor, limit.resident)))
    free = machine.free_memory()
    if free is not None and needed - floor > free:
        say(f"  ({amount(needed)} of memory are needed and only {amount(free)} are free now: the rest is in use)")
    return work, needed


def _import_what_runs(options: Options) -> None:
    """Load the libraries that the run will load, so that what they take of memory and address space is measured."""
    import jax

    from kip.cli import learning
    from kip.report import pictures

    del learning, pictures
    jax.devices()
    if options.augment != "none":
        from kip.data import augment

        del augment


def _refusal(needed: int, limit: Limit, remedy: str) -> str:
    words = f"this run needs about {amount(needed + limit.beside)} of {limit.of} and "
    if limit.name is None:
        return f"{words}this machine has {amount(limit.total)}; {remedy}"
    return f"{words}the limit here is {amount(limit.total)} ({limit.name}); raise it, or {remedy}"


def paced(task: Task, budget: float | None, clock: Callable[[], float] = time.perf_counter) -> Pace:
    """Time steps of the run at hand, with each kernel of a family, and an evaluation."""
    from kip import kip as algorithm
    from kip import plan as arithmetic
    from kip.cli.measure import validation_accuracy

    patience = arithmetic.QUICK if budget is None else min(arithmetic.QUICK, budget / 20)
    start = clock()
    subset = algorithm.judging_set(task.problem, task.config, key=task.options.seed)
    state = algorithm.init(task.problem, task.config, key=task.options.seed)

    def evaluate() -> None:
        algorithm.judge(state, task.problem, task.config, subset)
        if task.validation is not None:
            validation_accuracy(task, task.config.kernels, state.x, state.y)

    with working("timing a few steps"):
        each = [arithmetic.timed(_stepping(task, k), clock, patience, again=True) for k in task.config.kernels]
        judged = arithmetic.timed(evaluate, clock, patience, again=False)
    step = sum(later for _, later in each) / len(each)
    compiling = sum(max(first - later, 0.0) for first, later in [*each, judged])
    return arithmetic.Pace(step, judged[1], compiling, clock() - start)


def _stepping(task: Task, kernel: Kernel) -> Callable[[], None]:
    """A call that takes a step with one kernel of the family, each time from where the last one came to."""
    from kip import kip as algorithm

    config = dataclasses.replace(task.config, kernels=(kernel,))
    start = state = algorithm.init(task.problem, config, key=task.options.seed)

    def step() -> None:
        nonlocal state
        try:
            state, _ = algorithm.step(state, task.problem, config)
        except algorithm.DivergedError:  # for the run itself to report, if it happens there
            state = start

    return step


def with_steps(dataset: Dataset, task: Task, options: Options, pace: Pace, budget: float) -> Task:
    """The task of `options` with the steps that a time budget allows, and the schedule that follows from them."""
    from kip.api import resolve

    def chosen(steps: int) -> Options:
        return dataclasses.replace(options, steps=steps)

    def every(steps: int) -> int:
        found = resolve(chosen(steps), len(task.problem.train), task.config.kernels, dataset.kind)
        assert found.judge_every is not None
        return found.judge_every

    outline = common.outlined(dataset, chosen(pace.steps_within(budget, every)))
    return dataclasses.replace(task, config=outline.config, options=outline.options)


def expectation(memory: int, learning: float | None = None, step: float | None = None) -> str:
    """What a run will take, in a line."""
    time = "" if learning is None or step is None else f"{duration(learning)} ({short(step)} per step), "
    return f"about {time}{amount(memory)} of memory"


def short(value: float) -> str:
    """Seconds of one step, short ones in milliseconds."""
    return f"{1000 * value:.3g} ms" if value < 1 else duration(value)


def amount(count: int) -> str:
    """Bytes for people.

    >>> amount(2_600_000_000), amount(420_000_000), amount(610_000)
    ('2.6 GB', '420 MB', '0.6 MB')
    """
    if count >= 1e9:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.0f} MB" if count >= 1e7 else f"{count / 1e6:.1f} MB"
