"""`kip distill`: learn a support set, compare it with what would have been used instead, and write it all down."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kip import runs
from kip.cli import common, plan
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
from kip.cli.progress import Interrupt, say

if TYPE_CHECKING:
    from kip.api import Task
    from kip.artefact import DistilledSet
    from kip.checkpoint import Saver
    from kip.cli.learning import Learned
    from kip.cli.watch import Watch
    from kip.data import Dataset
    from kip.plan import Expected


def distill(
    *,
    data: DataOptions = USUAL_DATA,
    of: SetOptions = USUAL_SET,
    learning: LearnOptions = USUAL_LEARNING,
    running: RunOptions = USUAL_RUN,
    time_budget: Annotated[str | None, BUDGET] = None,
    resume: Annotated[
        bool,
        Parameter(
            group=RUNNING, negative="", show_default=False, help="Go on with the run in --out where it was left."
        ),
    ] = False,
) -> int:
    """Distil a data set into a few images with soft labels (KIP).

    With no option: scikit-learn's digits, ten images, the RBF kernel. The test
    set is scored once, at the end, beside what would be used instead: random
    subsets, solved labels, k-means centroids, the full training set. The run
    folder holds the set (kip.load opens it), config.json, history.jsonl,
    metrics.json and pictures. Ctrl-C saves the set as it stands.

    For example:

        kip distill
        kip distill --data mnist --size 100
        kip distill --data photos/ --resize 32 --kernel fc1 --augment
        kip distill --config runs/digits-rbf-10-s0/config.json --size 20
    """
    if time_budget is not None:
        seconds(time_budget)  # to complain before anything is done
    _check_resume(running, resume)
    common.check_early(data, of, running, resume=resume)
    dataset = common.load_data(data)
    _, memory = plan.checked(dataset, common.api_options(dataset, data, of, learning, running), running)

    def one(seed: int, out: Path | None) -> common.Done:
        nonlocal learning
        seeded = dataclasses.replace(running, seed=seed, out=out)
        done = _Distillation(dataset, data, of, learning, seeded, time_budget, resume, memory)()
        if time_budget is not None:  # all seeds take the steps of the first
            learning = dataclasses.replace(learning, steps=runs.read_config(done.folder)["steps"])
        return done

    return common.over_seeds(running, one)


def _check_resume(running: RunOptions, resume: bool) -> None:
    if not resume:
        return
    if running.out is None:
        raise ValueError("`--resume` needs the run's folder: give it with --out")
    if running.seeds > 1:
        raise ValueError("`--resume` goes on with one run; leave --seeds out")


@dataclasses.dataclass(frozen=True)
class _Distillation:
    """One run of one seed."""

    dataset: Dataset
    data: DataOptions
    of: SetOptions
    learning: LearnOptions
    running: RunOptions
    time_budget: str | None
    resume: bool
    memory: int

    def __call__(self) -> common.Done:
        from kip import kip as algorithm
        from kip.cli import learning
        from kip.plan import Expected

        groups = (self.data, self.of, self.learning, self.running)
        options = common.api_options(self.dataset, *groups)
        budget = None if self.time_budget is None else seconds(self.time_budget)
        start = time.monotonic()
        task = common.ready(self.dataset, options)
        planned = Expected(self.memory)
        words = plan.expectation(self.memory)
        if budget is not None and options.steps is None:
            pace = plan.paced(task, budget)
            task = plan.with_steps(self.dataset, task, options, pace, budget)
            planned = Expected(self.memory, pace.learning(task.config.steps, task.config.judge_every))
            words = plan.expectation(self.memory, planned.learning, pace.step)
            budget = max(budget - pace.spent, 1e-9)
        state = algorithm.init(task.problem, task.config, key=options.seed)
        config = common.described("distill", task, groups, {"time_budget": self.time_budget})
        name = runs.run_name(common.short(self.dataset.name), options.kernel, options.size, options.seed)
        with runs.opened(name, self.running.out, resume=self.resume) as run, Interrupt() as interrupt:
            saves = learning.saver(run, task, self.dataset)
            if self.resume:
                state = learning.resumed(run, state, config, saves)
            else:
                run.configure(config)
            _say_plan(task)
            say(words)
            preparing = time.monotonic() - start
            learned = learning.learn(task, state, run, saves, interrupt, budget)
            return self._conclude(run, task, learned, saves, config, preparing, interrupt, planned)

    def _conclude(
        self,
        run: runs.Run,
        task: Task,
        learned: Learned,
        saves: Saver,
        config: dict[str, Any],
        preparing: float,
        interrupt: Interrupt,
        planned: Expected,
    ) -> common.Done:
        from kip.api import resolve
        from kip.cli import learning
        from kip.cli.watch import Watch

        start = time.monotonic()
        watch = Watch(self.running.cache, run.folder)
        labels = task.config.mode(len(task.problem.train))
        small = _assembled(task, learned, watch, solved=labels == "solved")
        publishing = time.monotonic() - start
        more = {
            "steps": learned.state.step,
            "kept_step": learned.checkpoint.step,
            "labels": labels,
            "checkpoints": {
                "saves": saves.saves,
                "seconds": round(saves.seconds, 4),
                "share": round(saves.seconds / max(learned.seconds, 1e-9), 5),
            },
        }

        def draw(small: DistilledSet, folder: Path) -> None:
            common.draw_set(small, folder, learning.columns(task, learned, small, common.natural(task)))
            learning.draw_curve(folder, f"{self.dataset.name} → {len(small)} points, kernel {small.kernel}")

        spent = {"preparing": preparing, "learning": learned.seconds, "publishing": publishing}
        n, kind = len(task.problem.train), self.dataset.kind
        usual = resolve(dataclasses.replace(task.options, steps=None), n, task.config.kernels, kind).steps
        story = common.Story("distilled", config, learned.stopped, spent, more, draw, planned, usual)
        done = common.conclude(run, small, task, self.dataset, self.running, story, interrupt, watch)
        if interrupt():
            saves.save(learned.state)  # it may have come while measuring
            say(f"go on with it: kip distill --resume --out {shlex.quote(str(run.folder))}")
        else:
            learning.forget(run)
        return dataclasses.replace(done, status=1) if learned.stopped == "diverged" else done


def _assembled(task: Task, learned: Learned, watch: Watch, *, solved: bool) -> DistilledSet:
    """The distilled set, its labels solved on the training set in that mode."""
    from kip import api
    from kip.cli.watch import pass_pairs

    kernels, train = task.config.kernels, task.problem.train
    if not solved or task.config.judging(len(train)) == len(train):
        return api.assemble(task, learned.checkpoint)
    total = pass_pairs(kernels, task.config.size, train.x, len(train), task.config.plan)
    with watch.over("solving for the labels on the training set", kernels, total):
        return api.assemble(watch.task(task), learned.checkpoint)


def _say_plan(task: Task) -> None:
    options, n = task.options, len(task.problem.train)
    size, batch = task.config.size, task.config.batch or n
    augment = "" if options.augment == "none" else f", augmented ({options.augment})"
    say(f"distilling to {size} points: kernel {options.kernel}, labels {task.config.mode(n)}, seed {options.seed}")
    say(f"{options.steps:,} steps of {batch:,} targets{augment}, rate {options.learning_rate:g} ({options.schedule})")
