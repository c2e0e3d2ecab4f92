"""The loop of `kip distill`: steps recorded and shown as they go, checkpoints, and every way a run can end."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kip import api, checkpoint, runs
from kip import kip as algorithm
from kip.api import Task
from kip.artefact import DistilledSet
from kip.cli.measure import validation_accuracy
from kip.cli.progress import Interrupt, Ticker, say, steps
from kip.data import Dataset
from kip.kip import Checkpoint, Info, State
from kip.sets import LabelledSet

SAVE_EVERY = 10.0
SAVE_SHARE = 0.01
"""A checkpoint is written this often, in seconds, but never takes more than this share of the time."""

FREE_ON_RESUME = ("draws", "full", "device", "time_budget", "version")
"""What may be said anew when a run is resumed: it changes nothing that is learned."""


@dataclass(frozen=True)
class Learned:
    """What learning came to: the checkpoint to publish, why it stopped, the state to go on from, and the seconds."""

    checkpoint: Checkpoint
    stopped: str
    state: State
    seconds: float


def saver(run: runs.Run, task: Task, dataset: Dataset) -> checkpoint.Saver:
    """What saves checkpoints into the run's folder; they belong to these options and these data."""
    identity = {"options": dataclasses.asdict(task.options), "data": _fingerprint(dataset)}
    folder = run.folder / runs.CHECKPOINTS
    return checkpoint.Saver(folder, identity, SAVE_EVERY, share=SAVE_SHARE, before=run.flush_history)


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.x_train, dataset.y_train):
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def resumed(run: runs.Run, fresh: State, config: Mapping[str, Any], saves: checkpoint.Saver) -> State:
    """The state in which the run in `folder` was left; `fresh`, where it was left before its first checkpoint."""
    if runs.is_finished(run.folder):
        raise ValueError(f"`--resume`: the run in {run.folder} is finished; there is nothing to go on with")
    stored = runs.read_config(run.folder)
    for name, value in config.items():
        if name not in FREE_ON_RESUME and stored.get(name) != value:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"`{option}` is {value} but the run in {run.folder} has {stored.get(name)}; leave it out")
    state = checkpoint.latest(saves.folder, fresh, saves.identity, say=say)
    run.reopen()
    say("no checkpoint was written yet: starting at step 0" if state is None else f"going on from step {state.step}")
    return fresh if state is None else state


def learn(
    task: Task, state: State, run: runs.Run, saves: checkpoint.Saver, interrupt: Interrupt, budget: float | None
) -> Learned:
    """Step until done, on a plateau, out of time, interrupted, or diverged; in each case there is a set to publish."""
    before = runs.seconds_until(run.folder, state.step)
    late = None if budget is None else api.within(max(budget - before, 1e-9), time.monotonic)
    with run.history(keep=state.step) as history, steps(task.config.steps, state.step, budget) as show:
        recorder = _Recorder(task, history, show, saves, state, before)
        try:
            stop = api.either(interrupt, late)
            state = algorithm.run(task.problem, task.config, state, callback=recorder, stop=stop)
        except algorithm.DivergedError as error:
            say(str(error))
            return Learned(_last_finite(error.state), "diverged", error.state, recorder.seconds)
    # To go on from is what the last step left: `state` may have been judged off schedule, unlike in an unbroken run.
    learned = Learned(state.best[0], _reason(task, state, interrupt, late), recorder.state, recorder.seconds)
    if interrupt():
        saves.save(learned.state)
    return learned


def _reason(task: Task, state: State, interrupt: Interrupt, late: Callable[[], bool] | None) -> str:
    if state.step >= task.config.steps:
        return "all steps done"
    if interrupt():
        return "interrupted"
    return "time budget" if late is not None and late() else "no more progress"


def forget(run: runs.Run) -> None:
    """Remove the checkpoints of a run that needs them no more."""
    shutil.rmtree(run.folder / runs.CHECKPOINTS, ignore_errors=True)


class _Recorder:
    """What is called after every step: writes the history, shows it, and saves checkpoints."""

    def __init__(
        self,
        task: Task,
        history: runs.History,
        show: Ticker,
        save: Callable[[State], None],
        state: State,
        before: float,
    ) -> None:
        self.task, self.history, self.show, self.save, self.state = task, history, show, save, state
        self._start = time.monotonic() - before
        self._seconds = before
        self._accuracy: float | None = None

    @property
    def seconds(self) -> float:
        """Since learning began, what came before a resumption included; it stands still while a clock catches up."""
        self._seconds = max(self._seconds, time.monotonic() - self._start)
        return self._seconds

    def __call__(self, state: State, info: Info) -> None:
        self.state = state
        entry: dict[str, Any] = {"step": info.step, "loss": info.loss}
        if info.judged is not None:
            entry["judged"] = info.judged if math.isfinite(info.judged) else None
            if self.task.validation is not None:
                kernels = algorithm.kernels_of(self.task.config, state.log_params)
                self._accuracy = validation_accuracy(self.task, kernels, state.x, state.y)
                entry["validation_accuracy"] = self._accuracy
        self.history.add({**entry, "seconds": round(self.seconds, 4)})
        self.show(info.step, info.loss, info.judged, self._accuracy)
        self.save(state)


def _last_finite(state: State) -> Checkpoint:
    return state.best[0] if state.best else Checkpoint(math.inf, state.step, state.x, state.y, state.log_params)


def columns(
    task: Task, learned: Learned, small: DistilledSet, natural: LabelledSet
) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """What stands beside what on images.png: the start and what was learned; with corruption the originals too."""
    start = algorithm.init(task.problem, task.config, key=task.options.seed)
    after = (f"learned, step {learned.checkpoint.step}", small.x, small.y)
    rho = task.config.corruption.rho
    if rho:
        return [("original", natural.x, natural.y), (f"corrupted, ρ = {rho:g}", start.x, start.y), after]
    return [("noise" if task.config.init == "noise" else "initial", start.x, start.y), after]


def draw_curve(folder: Path, title: str) -> None:
    """Write curve.png from the history."""
    from kip.files import write_atomic
    from kip.report import pictures

    picture = pictures.curve(runs.read_history(folder), title)
    if picture is not None:
        write_atomic(folder / "curve.png", picture)
