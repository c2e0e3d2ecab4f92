"""`kip distill`: learn a support set, compare it with what would have been used instead, and write it all down."""

from __future__ import annotations

import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from kip import runs
from kip.cli import common, plan
from kip.cli.options import (
    BUDGET,
    RESUME,
    USUAL,
    USUAL_DATA,
    USUAL_RUN,
    Arguments,
    DataArguments,
    RunArguments,
    kept,
    seconds,
)
from kip.cli.progress import Interrupt, say, steps

if TYPE_CHECKING:
    import numpy as np

    from kip.algorithm import State
    from kip.artefact import DistilledSet
    from kip.cli.watch import Watch
    from kip.data import Dataset
    from kip.learning import Learned
    from kip.plan import Expected
    from kip.recording import Record
    from kip.task import Task


def distill(
    *,
    data: DataArguments = USUAL_DATA,
    options: Arguments = USUAL,
    running: RunArguments = USUAL_RUN,
    time_budget: Annotated[str | None, BUDGET] = None,
    resume: Annotated[bool, RESUME] = False,
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
        kip distill --start runs/digits-rbf-10-s0 --size 20
        kip distill --config runs/digits-rbf-10-s0/config.json --size 20
    """
    if time_budget is not None:
        seconds(time_budget)  # to complain before anything is done
    _check_resume(running, resume)
    common.check_early(data, options, running, resume=resume)
    dataset = common.load_data(data)
    _, memory = plan.checked(dataset, options, running)

    def one(seed: int, out: Path | None) -> common.Done:
        nonlocal options
        seeded = dataclasses.replace(options, seed=seed)
        done = _Distillation(dataset, data, seeded, running, out, time_budget, resume, memory)()
        if time_budget is not None:  # all seeds take the steps of the first
            options = dataclasses.replace(options, steps=runs.read_config(done.folder)["steps"])
        return done

    return common.over_seeds(options.seed, running, one)


def _check_resume(running: RunArguments, resume: bool) -> None:
    if not resume:
        return
    if running.out is None:
        raise ValueError("`--resume` needs the run's folder: give it with --out")
    if running.seeds > 1:
        raise ValueError("`--resume` continues one run; leave --seeds out")


@dataclasses.dataclass(frozen=True)
class _Distillation:
    """One run of one seed."""

    dataset: Dataset
    data: DataArguments
    asked: Arguments
    running: RunArguments
    out: Path | None
    time_budget: str | None
    resume: bool
    memory: int

    def __call__(self) -> common.Done:
        from kip.plan import Expected
        from kip.recording import Record

        budget = None if self.time_budget is None else seconds(self.time_budget)
        start = time.monotonic()
        task = common.ready(self.dataset, self.asked)
        planned = Expected(self.memory)
        words = plan.expectation(self.memory)
        if budget is not None and self.asked.steps is None:
            task, pace = plan.with_steps(task, self.asked, budget)
            planned = Expected(self.memory, pace.learning(task.config.steps, task.config.evaluate_every))
            words = plan.expectation(self.memory, planned.learning, pace.step)
            budget = max(budget - pace.spent, 1e-9)
        fresh = task.initial()  # what it refuses is refused before anything is written
        config = common.described("distill", task, kept(self.data, self.running), {"time_budget": self.time_budget})
        name = runs.run_name(
            common.short(self.dataset.name), task.options.kernel or "", task.config.size, task.options.seed
        )
        with runs.opened(name, self.out, resume=self.resume) as run, Interrupt() as interrupt:
            record = Record(run, common.identity(task, self.dataset))
            if not self.resume:
                run.configure(config)
            _say_plan(task)
            say(words)
            preparing = time.monotonic() - start
            learned = _learn(task, fresh, run, record, interrupt, budget, config if self.resume else None)
            return self._conclude(run, task, learned, record, config, preparing, interrupt, planned)

    def _conclude(
        self,
        run: runs.Run,
        task: Task,
        learned: Learned,
        record: Record,
        config: dict[str, Any],
        preparing: float,
        interrupt: Interrupt,
        planned: Expected,
    ) -> common.Done:
        from kip import learning
        from kip.cli.watch import Watch

        start = time.monotonic()
        watch = Watch(self.running.cache, run.folder)
        small = _published(task, learned, watch)
        publishing = time.monotonic() - start
        more = {
            "steps": learned.state.step,
            "kept_step": learned.checkpoint.step,
            "labels": task.config.labels,
            "checkpoints": record.cost(learned.seconds),
        }

        def draw(small: DistilledSet, folder: Path) -> None:
            common.draw_set(small, folder, _columns(task, learned, small))
            common.draw_curve(folder, f"{self.dataset.name} → {len(small)} points, kernel {small.kernel}")

        spent = {"preparing": preparing, "learning": learned.seconds, "publishing": publishing}
        ended = "interrupted" if learned.ended == learning.STOPPED else learned.ended
        story = common.Story("distilled", config, ended, spent, more, draw, planned, _usual_steps(task))
        done = common.conclude(run, small, task, self.dataset, self.running, story, interrupt, watch)
        if interrupt():
            record.save(learned.state)  # it may have come while measuring
            say(f"to continue: kip distill --resume --out {shlex.quote(str(run.folder))}")
        else:
            record.forget()
        return dataclasses.replace(done, status=1) if learned.ended == learning.DIVERGED else done


def _learn(
    task: Task,
    state: State,
    run: runs.Run,
    record: Record,
    interrupt: Interrupt,
    budget: float | None,
    resumed: dict[str, Any] | None,
) -> Learned:
    """Learn from the fresh `state`, or a `resumed` run, with this configuration, from its checkpoint; show progress."""
    from kip import learning

    if resumed is not None:
        common.check_resumed(run, resumed)
        found = record.latest(state, say=say)
        run.reopen()
        say(
            "no checkpoint was written yet: starting at step 0" if found is None else f"continuing at step {found.step}"
        )
        state = found or state
    before = record.seconds(state)
    with record.watching(state) as watch, steps(task.config.steps, state.step, budget) as show:
        learned = learning.learn(task, state, [watch, show], stop=interrupt, budget=budget, before=before)
    if learned.ended == learning.DIVERGED:
        say(learned.why)
    if interrupt():
        record.save(learned.state)
    return learned


def _published(task: Task, learned: Learned, watch: Watch) -> DistilledSet:
    """The distilled set, its labels solved on the training set in that mode."""
    from kip.cli.watch import is_slow, pass_pairs

    config, train = task.config, task.problem.train
    if config.labels != "solved" or config.evaluation_size(len(train)) == len(train):
        return task.published(learned.checkpoint)
    total = pass_pairs(config.kernels, config.size, train.x, len(train), config.execution)
    with watch.over("solving for the labels on the training set", is_slow(task), total):
        return watch.task(task).published(learned.checkpoint)


def _usual_steps(task: Task) -> int | None:
    """The default steps of such a run."""
    from kip import defaults

    shape, kernels = task.preprocess.shape, task.config.kernels
    return defaults.resolve(
        dataclasses.replace(task.options, steps=None),
        shape=shape,
        training=len(task.problem.train),
        classes=len(task.classes),
        expensive=any(kernel.expensive(shape) for kernel in kernels),
    ).steps


def _columns(task: Task, learned: Learned, small: DistilledSet) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """What stands beside what on images.png: the start and what was learned; with corruption the originals too."""
    start = task.initial()
    after = (f"learned, step {learned.checkpoint.step}", small.x, small.y)
    rho = task.config.corruption.rho
    if rho:
        natural = task.natural()
        return [("original", natural.x, natural.y), (f"corrupted, ρ = {rho:g}", start.x, start.y), after]
    return [("noise" if task.config.init == "noise" else "initial", start.x, start.y), after]


def _say_plan(task: Task) -> None:
    options, n = task.options, len(task.problem.train)
    batch = task.config.batch or n
    augment = "" if options.augment == "none" else f", augmented ({options.augment})"
    how = f"kernel {options.kernel}, labels {options.labels}, seed {options.seed}"
    say(f"distilling to {task.config.size} points: {how}")
    say(f"{options.steps:,} steps of {batch:,} targets{augment}, rate {options.learning_rate:g} ({options.schedule})")
