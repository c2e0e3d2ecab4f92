"""`kip distill`: learn a support set, compare it with what would have been used instead, and write it all down."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from kip import runs
from kip.cli import common
from kip.cli.options import (
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
from kip.cli.progress import Interrupt, say, steps

if TYPE_CHECKING:
    from kip.api import Task
    from kip.artefact import DistilledSet
    from kip.data import Dataset
    from kip.kip import Checkpoint, Info, State

    Hook = Callable[[State], None]

FREE_ON_RESUME = ("draws", "full", "device", "time_budget", "version")
"""What may be said anew when a run is resumed: it changes nothing that is learned."""


def distill(
    *,
    data: DataOptions = USUAL_DATA,
    of: SetOptions = USUAL_SET,
    learning: LearnOptions = USUAL_LEARNING,
    running: RunOptions = USUAL_RUN,
    time_budget: Annotated[str | None, Parameter(group=RUNNING, help="Stop learning after 90s, 10m or 1h30m.")] = None,
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
    budget = None if time_budget is None else seconds(time_budget)
    _check_resume(running, resume)
    common.check_early(of, running, resume=resume)
    dataset = common.load_data(data)

    def one(seed: int, out: Path | None) -> common.Done:
        seeded = dataclasses.replace(running, seed=seed, out=out)
        return _Distillation(dataset, data, of, learning, seeded, time_budget, budget, resume)()

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
    budget: float | None
    resume: bool

    def __call__(self) -> common.Done:
        from kip import kip as algorithm

        start = time.monotonic()
        groups = (self.data, self.of, self.learning, self.running)
        options = common.api_options(self.dataset, *groups)
        task = common.ready(self.dataset, options)
        state = algorithm.init(task.problem, task.config, key=options.seed)
        config = common.described("distill", task, groups, {"time_budget": self.time_budget})
        name = runs.run_name(common.short(self.dataset.name), options.kernel, options.size, options.seed)
        with runs.opened(name, self.running.out, resume=self.resume) as run, Interrupt() as interrupt:
            if self.resume:
                state = _resumed(run.folder, state, config)
            else:
                run.configure(config)
            _say_plan(task)
            prepared = time.monotonic()
            checkpoint, stopped, end = self._learn(task, state, run, interrupt)
            spent = {"preparing": prepared - start, "learning": time.monotonic() - prepared}
            return self._conclude(run, task, checkpoint, stopped, end, spent, config, interrupt)

    def _learn(
        self, task: Task, state: State, run: runs.Run, interrupt: Interrupt, hooks: Sequence[Hook] = ()
    ) -> tuple[Checkpoint, str, State]:
        """The checkpoint to publish, why learning stopped, and the state it stopped in."""
        from kip import api
        from kip import kip as algorithm

        late = api.within(self.budget, time.monotonic)
        total = task.config.steps
        with run.history(keep=state.step) as history, steps(total, state.step, self.budget) as show:
            record = _recorder(task, history, show, hooks)
            try:
                stop = api.either(interrupt, late)
                state = algorithm.run(task.problem, task.config, state, callback=record, stop=stop)
            except algorithm.DivergedError as error:
                say(f"{error}")
                return _last_finite(error.state), "diverged", error.state
        if interrupt():
            return state.best[0], "interrupted", state
        if state.step >= total:
            return state.best[0], "all steps done", state
        return state.best[0], "time budget" if late is not None and late() else "no more progress", state

    def _conclude(
        self,
        run: runs.Run,
        task: Task,
        checkpoint: Checkpoint,
        stopped: str,
        state: State,
        spent: dict[str, float],
        config: dict[str, Any],
        interrupt: Interrupt,
    ) -> common.Done:
        from kip import api

        small = api.assemble(task, checkpoint)
        mode = task.config.mode(len(task.problem.train))
        more = {"steps": state.step, "kept_step": checkpoint.step, "labels": mode}

        def draw(small: DistilledSet, folder: Path) -> None:
            common.draw_set(small, folder, _columns(small, task, checkpoint))
            _draw_curve(folder, f"{self.dataset.name} → {len(small)} points, kernel {small.kernel}")

        story = common.Story("distilled", config, stopped, spent, more, draw)
        done = common.conclude(run, small, task, self.dataset, self.running, story, interrupt)
        return dataclasses.replace(done, status=1) if stopped == "diverged" else done


def _resumed(folder: Path, state: State, config: dict[str, Any]) -> State:
    """The state in which the run in `folder` was left; `state` is the one a new run starts from."""
    stored = runs.read_config(folder)
    for name, value in config.items():
        if name not in FREE_ON_RESUME and stored.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"`{option}` is {value} but the run in {folder} has {stored.get(name)}; leave it out")
    del state
    raise ValueError(f"`--resume` needs a checkpoint, and {folder} holds none; start again in another folder")


def _recorder(task: Task, history: runs.History, show: Any, hooks: Sequence[Hook]) -> Callable[[State, Info], None]:
    """What is called after every step: history, display, and then whatever else wants to see the state."""
    from kip.cli.measure import validation_accuracy
    from kip.kip import kernels_of

    start = time.monotonic()
    last: dict[str, float | None] = {"accuracy": None}

    def record(state: State, info: Info) -> None:
        entry: dict[str, Any] = {"step": info.step, "loss": info.loss}
        if info.judged is not None:
            entry["judged"] = info.judged if math.isfinite(info.judged) else None
            if task.validation is not None:
                kernels = kernels_of(task.config, state.log_params)
                last["accuracy"] = validation_accuracy(task, kernels, state.x, state.y)
                entry["validation_accuracy"] = last["accuracy"]
        entry["seconds"] = round(time.monotonic() - start, 4)
        history.add(entry)
        show(info.step, info.loss, info.judged, last["accuracy"])
        for hook in hooks:
            hook(state)

    return record


def _last_finite(state: State) -> Checkpoint:
    from kip.kip import Checkpoint

    return state.best[0] if state.best else Checkpoint(math.inf, state.step, state.x, state.y, state.log_params)


def _say_plan(task: Task) -> None:
    options, n = task.options, len(task.problem.train)
    size, batch = task.config.size, task.config.batch or n
    augment = "" if options.augment == "none" else f", augmented ({options.augment})"
    say(
        f"distilling to {size} points: kernel {options.kernel}, labels {task.config.mode(n)}, "
        f"{options.steps:,} steps of {batch:,} targets{augment}, rate {options.learning_rate:g}, seed {options.seed}"
    )


def _columns(small: DistilledSet, task: Task, checkpoint: Checkpoint) -> list[tuple[str, Any]]:
    """What stands beside what on images.png: the start and what was learned; with corruption the originals too."""
    from kip import kip as algorithm

    start = algorithm.init(task.problem, task.config, key=task.options.seed).x
    before = "noise" if task.config.init == "noise" else "initial"
    learned = f"learned, step {checkpoint.step}"
    if small.corruption.rho == 0:
        return [(before, start), (learned, small.x)]
    titles = [("original", common.natural(task)), (f"corrupted, ρ = {small.corruption.rho:g}", start)]
    return [*titles, (learned, small.x)]


def _draw_curve(folder: Path, title: str) -> None:
    from kip.files import write_atomic
    from kip.report import pictures

    picture = pictures.curve(runs.read_history(folder), title)
    if picture is not None:
        write_atomic(folder / "curve.png", picture)
