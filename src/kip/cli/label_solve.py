"""`kip label-solve`: the best labels for natural images, in closed form."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

from kip import runs
from kip.cli import common
from kip.cli.options import (
    USUAL_DATA,
    USUAL_RUN,
    USUAL_SET,
    DataArguments,
    RunArguments,
    SetArguments,
    kept,
)
from kip.cli.progress import Interrupt, StoppedError, say

if TYPE_CHECKING:
    from kip.artefact import DistilledSet
    from kip.cli.watch import Watch
    from kip.data import Dataset
    from kip.task import Task


def label_solve(
    *,
    data: DataArguments = USUAL_DATA,
    options: SetArguments = USUAL_SET,
    running: RunArguments = USUAL_RUN,
) -> int:
    """Solve for the best labels of a few natural images, in closed form.

    The images are drawn at random with all classes alike; their labels are the
    minimum-norm solution of one least-squares problem, without steps or rates.
    The run folder is like that of kip distill, without a history.

    For example:

        kip label-solve --data mnist --size 500
        kip label-solve --data cifar10 --size 100 --kernel convnet3:nngp
        kip label-solve --data mnist --size 100 --seeds 5
    """
    common.check_early(data, options, running)
    dataset = common.load_data(data)

    def one(seed: int, out: Path | None) -> common.Done:
        return _solve(dataset, data, dataclasses.replace(options, seed=seed), running, out)

    return common.over_seeds(options.seed, running, one)


def _solve(
    dataset: Dataset, data: DataArguments, asked: SetArguments, running: RunArguments, out: Path | None
) -> common.Done:
    from kip.api import solving
    from kip.cli.watch import Watch

    start = time.monotonic()
    task = common.ready(dataset, solving(asked))
    options, around = task.options, kept(data, running)
    names = {field.name for field in dataclasses.fields(asked)}
    config = common.described("label-solve", task, around)
    config = {name: value for name, value in config.items() if name in {*names, *around, "command", "version"}}
    name = runs.run_name(
        common.short(dataset.name), options.kernel or "", task.config.size, options.seed, kind="label-solve"
    )
    with runs.opened(name, out) as run, Interrupt() as interrupt:
        run.configure(config)
        prepared = time.monotonic()
        watch = Watch(running.cache, run.folder)
        try:
            small = _solved(task, watch, interrupt)
        except StoppedError:
            say("interrupted before there were labels; the same command continues from what it has computed")
            return common.Done(run.folder, options.seed, math.nan, interrupt.status)
        spent = {"preparing": prepared - start, "learning": time.monotonic() - prepared}

        def draw(small: DistilledSet, folder: Path) -> None:
            drawn = task.natural()
            columns = [("natural images", drawn.x, drawn.y)]
            if small.corruption.rho:
                columns.append((f"corrupted, ρ = {small.corruption.rho:g}", small.x, small.y))
            common.draw_set(small, folder, columns)

        story = common.Story("labels solved", config, "solved", spent, {"labels": "solved"}, draw)
        return common.conclude(run, small, task, dataset, running, story, interrupt, watch)


def _solved(task: Task, watch: Watch, interrupt: Interrupt) -> DistilledSet:
    from kip.cli.watch import is_slow, pass_pairs

    kernels, train, size = task.config.kernels, task.problem.train, task.config.size
    total = pass_pairs(kernels, size, train.x, len(train), task.config.execution)
    with watch.over(f"solving for the labels of {size} of {len(train):,} points", is_slow(task), total, interrupt):
        return watch.task(task).solved()
