"""`kip plan`: what a run would take, without running it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from kip.cli import common
from kip.cli.options import (
    BUDGET,
    RUNNING,
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
from kip.cli.progress import console, duration, say

if TYPE_CHECKING:
    from kip.cli.planning import Planned


def plan(
    *,
    data: DataOptions = USUAL_DATA,
    of: SetOptions = USUAL_SET,
    learning: LearnOptions = USUAL_LEARNING,
    running: RunOptions = USUAL_RUN,
    time_budget: Annotated[str | None, BUDGET] = None,
    again: Annotated[
        bool,
        Parameter(group=RUNNING, negative="", show_default=False, help="Measure this machine anew."),
    ] = False,
) -> int:
    """Predict the time, memory and disk that `kip distill` would take with the same options.

    The first time, a few steps on random points are timed on this machine and
    what was found is kept; nothing else is computed and no run is written. Each
    run's metrics.json has what was predicted beside what it came to.

    For example:

        kip plan
        kip plan --data cifar10 --kernel convnet3 --size 100
        kip plan --data mnist --size 500 --time-budget 10m
    """
    from kip import machine
    from kip.cli import planning

    budget = None if time_budget is None else seconds(time_budget)
    common.use_device(running.device)
    dataset = common.load_data(data)
    options = common.api_options(dataset, data, of, learning, running)
    planned = planning.plan(dataset, options, running, budget, again=again)
    limit = machine.memory_limit()
    console.print(_table(planned, limit))
    if planned.prediction.memory > limit:
        planned.refuse(limit)
    if running.seeds > 1:
        say(f"for one seed; {running.seeds} take {duration(running.seeds * planned.prediction.seconds)}")
    return 0


def _table(planned: Planned, limit: int) -> Table:
    from kip.data.checks import megabytes

    found, work = planned.prediction, planned.work
    table = Table(title="what `kip distill` would take", title_justify="left", title_style="bold", show_header=False)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_column("")
    table.add_row("preparing", duration(found.preparing), "preprocessing")
    each = f"{work.steps:,} steps of {_short(found.step)}, judgements of {_short(found.judgement)}"
    table.add_row("learning", duration(found.learning), each)
    table.add_row("publishing", duration(found.publishing), "labels, on the whole training set")
    table.add_row("measuring", duration(found.measuring), "test set, comparisons, pictures")
    table.add_row("time", duration(found.seconds), "", style="bold")
    table.add_row("memory", megabytes(found.memory), f"of {megabytes(limit)}", style="bold")
    table.add_row("disk", megabytes(found.disk), "", style="bold")
    return table


def _short(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else duration(value)
