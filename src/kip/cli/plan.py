"""`kip plan`: what a run would take, from shapes and a few of its steps; and what `kip distill` asks of the same."""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

from kip.cli import common
from kip.cli.options import BUDGET, USUAL, USUAL_DATA, USUAL_RUN, Arguments, DataArguments, RunArguments, seconds
from kip.cli.progress import duration, say, working
from kip.options import Options, RunOptions

if TYPE_CHECKING:
    from kip.data import Dataset
    from kip.machine import Limit
    from kip.plan import Pace, Work
    from kip.task import Task


def plan(
    *,
    data: DataArguments = USUAL_DATA,
    options: Arguments = USUAL,
    running: RunArguments = USUAL_RUN,
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
    from kip import learning
    from kip import plan as arithmetic

    budget = None if time_budget is None else seconds(time_budget)
    common.check_early(data, options, running, resume=True)  # nothing is written
    dataset = common.load_data(data)
    work, needed = checked(dataset, options, running)
    start = time.monotonic()
    task = common.ready(dataset, options)
    preparing = time.monotonic() - start
    pace = paced(task, budget)
    if budget is not None and options.steps is None:
        task = learning.with_steps(task, options, pace, budget)
    steps, every = task.config.steps, task.config.evaluate_every
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
    _import_what_runs(outline.options, compared=running.draws != 0)
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


def _import_what_runs(options: Options, *, compared: bool) -> None:
    """Load the libraries that the run will load, so that what they take of memory and address space is measured."""
    import jax

    from kip import recording
    from kip.report import pictures

    del recording, pictures
    jax.devices()
    if compared:
        import sklearn.cluster  # the k-means baseline

        del sklearn
    if options.augment != "none":
        from kip.data import augment

        del augment


def _refusal(needed: int, limit: Limit, remedy: str) -> str:
    words = f"this run needs about {amount(needed + limit.beside)} of {limit.of} and "
    if limit.name is None:
        return f"{words}this machine has {amount(limit.total)}; {remedy}"
    return f"{words}the limit here is {amount(limit.total)} ({limit.name}); raise it, or {remedy}"


def with_steps(task: Task, asked: Options, budget: float) -> tuple[Task, Pace]:
    """The task with the steps that a time budget allows, and what timing a few of them gave."""
    from kip import learning

    pace = paced(task, budget)
    return learning.with_steps(task, asked, pace, budget), pace


def paced(task: Task, budget: float | None) -> Pace:
    """Time a few steps of the run at hand, and an evaluation."""
    from kip import learning

    with working("timing a few steps"):
        return learning.paced(task, budget)


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
