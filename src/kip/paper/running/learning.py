"""KIP cells: learning that can be killed at any step and goes on, and the accuracies of what was learned.

The last state stays in the work folder, so that other cells can score the same set with other kernels or networks.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kip import api, checkpoint, machine, runs
from kip import kip as algorithm
from kip.api import Options, Task
from kip.artefact import DistilledSet
from kip.files import read_json, write_json
from kip.kip import DivergedError, Info, State
from kip.krr import accuracy
from kip.paper.running.base import Context, Result, StoppedError, most_cores
from kip.paper.works import Kip, Part, name
from kip.sampling import Stream, balanced, generator
from kip.stream import coefficients, predict

LEARNED, SCORES, CHECKPOINTS = "learned.json", "scores.json", "checkpoints"
SAVE_EVERY, SAVE_SHARE = 20.0, 0.02
"""A checkpoint is written this often, in seconds, but never takes more than this share of the time."""


@dataclass(frozen=True)
class Learned:
    """A finished learning: what it was given, the state it ended in, its steps and seconds, and why it ended."""

    task: Task
    state: State
    steps: int
    seconds: float
    stopped: str
    folder: Path
    cores: int | None = None

    @property
    def deviations(self) -> tuple[str, ...]:
        """What kept it from all of its steps."""
        if self.stopped == "done":
            return ()
        # How many were done is in the details: one sentence for many cells can be read.
        why = {"time": f"{self.seconds / 60:.0f} minutes of learning", "diverged": "learning that then diverged"}
        return (f"{why[self.stopped]}, before all {self.task.config.steps:,} steps were done",)

    def set(self, rank: int = 0) -> DistilledSet:
        """The distilled set of the checkpoint with the lowest training loss, or of one further down."""
        return api.assemble(self.task, self.state.best[rank])


def run(work: Kip, context: Context) -> Result:
    """Learn with every seed and score the best checkpoints; accuracies are averaged over the kernels tested."""
    accuracies: list[float] = []
    by_kernel: dict[str, list[float]] = {}
    steps, cores, seconds = [], [], 0.0
    deviations: list[str] = []
    for seed in work.seeds:
        context.check()
        learned = learn(work, seed, context)
        scores = _scores(work, learned, context)
        accuracies += [float(np.mean(list(each.values()))) for each in scores]
        for each in scores:
            for spec, value in each.items():
                by_kernel.setdefault(spec, []).append(100 * value)
        steps.append(learned.steps)
        cores.append({"cores": learned.cores})
        seconds += learned.seconds
        deviations += learned.deviations
    details: dict[str, Any] = {"steps": steps, "options": dataclasses.asdict(learned.task.options)}
    if work.tested:
        details["by_kernel"] = {spec: float(np.mean(values)) for spec, values in by_kernel.items()}
    return Result(tuple(accuracies), seconds, tuple(dict.fromkeys(deviations)), details, most_cores(cores))


def learn(work: Kip, seed: int, context: Context) -> Learned:
    """The learning of one seed: as it was left, where it was finished; gone on with, where it was not."""
    dataset = context.load(work.data)
    classes = tuple(range(len(dataset.classes)))
    task = api.prepare(dataset.x_train, dataset.y_train, _options(work, seed), classes=classes, kind=dataset.kind)
    folder = context.folder / name(work) / f"s{seed}"
    fresh = algorithm.init(task.problem, task.config, key=seed)
    identity = {"options": dataclasses.asdict(task.options), "data": dataset.name, "points": len(dataset.x_train)}
    saves = checkpoint.Saver(folder / CHECKPOINTS, identity, SAVE_EVERY, share=SAVE_SHARE)
    with runs.opened("", folder, resume=True) as run:
        state = checkpoint.latest(saves.folder, fresh, identity, say=context.say) or fresh
        if not (folder / LEARNED).is_file():
            _learn(work, task, state, run, saves, context)
            state = checkpoint.latest(saves.folder, fresh, identity, say=context.say) or fresh
    about = read_json(folder / LEARNED)
    return Learned(task, state, about["steps"], about["seconds"], about["stopped"], folder, about.get("cores"))


def _options(work: Kip, seed: int) -> Options:
    known = {field.name for field in dataclasses.fields(Options)}
    given = {key: value for key, value in dataclasses.asdict(work).items() if key in known}
    return Options(**given, seed=seed)


def _learn(work: Kip, task: Task, state: State, run: runs.Run, saves: checkpoint.Saver, context: Context) -> None:
    """Step until all steps are done or the time is up; a stop is answered after the step at hand."""
    before, start = runs.seconds_until(run.folder, state.step), time.monotonic()
    if state.step:
        context.say(f"  going on from step {state.step}")

    def spent() -> float:
        return before + time.monotonic() - start

    def late() -> bool:
        return work.seconds is not None and spent() >= work.seconds

    with run.history(keep=state.step) as history:
        recorder = _Recorder(history, saves, spent, context)
        try:
            state = algorithm.run(
                task.problem, task.config, state, callback=recorder, stop=lambda: late() or context.stop()
            )
        except DivergedError as error:
            if not error.state.best:
                raise
            state = error.state
            context.say(f"  {error}")
    if context.stop() and state.step < task.config.steps and not late():
        if recorder.state is not None:
            saves.save(recorder.state)
        raise StoppedError
    saves.save(state)
    done = state.step >= task.config.steps
    reason = "done" if done else "time" if late() else "diverged"
    about = {"steps": state.step, "seconds": round(spent(), 2), "stopped": reason, "cores": machine.cores()}
    write_json(run.folder / LEARNED, about)


class _Recorder:
    """What is called after every step: the history, a word now and then, and checkpoints."""

    def __init__(
        self, history: runs.History, saves: checkpoint.Saver, spent: Callable[[], float], context: Context
    ) -> None:
        self.history, self.saves, self.spent, self.context = history, saves, spent, context
        self.state: State | None = None
        self._said = spent()

    def __call__(self, state: State, info: Info) -> None:
        self.state = state
        seconds = self.spent()
        entry: dict[str, Any] = {"step": info.step, "loss": info.loss, "seconds": round(seconds, 3)}
        if info.judged is not None and np.isfinite(info.judged):
            entry["judged"] = info.judged
            if seconds - self._said > 30:
                self.context.say(f"  step {info.step}: loss {info.judged:.4g}, {seconds:.0f} s")
                self._said = seconds
        self.history.add(entry)
        self.saves(state)


def _scores(work: Kip, learned: Learned, context: Context) -> list[dict[str, float]]:
    """For each of the best checkpoints, the accuracy with each kernel tested; computed once and kept."""
    dataset = context.load(work.data)
    path = learned.folder / SCORES
    known: dict[str, float] = read_json(path) if path.is_file() else {}
    found = []
    for rank in range(min(work.checkpoints, len(learned.state.best))):
        step, small = learned.state.best[rank].step, None
        each = {}
        for spec in work.tested or (work.kernel,):
            key = f"step {step}, {spec}"
            if key not in known:
                context.check()
                small = small or learned.set(rank)
                scores = small.scores(dataset.x_test, spec if work.tested else None)
                known[key] = accuracy(scores, dataset.y_test)
                write_json(path, known)
            each[spec] = known[key]
        found.append(each)
    return found


def part(work: Part, context: Context) -> Result:
    """Random class-balanced subsets of a learned set, with its labels."""
    learned = learn(work.of, work.of.seeds[0], context)
    small, dataset = learned.set(), context.load(work.of.data)
    x_test = small.preprocess.apply(dataset.x_test)
    start, accuracies = time.monotonic(), []
    for seed in work.seeds:
        codes = np.argmax(small.y, axis=1)
        rows = balanced(codes, small.y.shape[1], work.size, key=generator(seed, Stream.BASELINE))
        scores = np.mean(
            [
                predict(k, small.x[rows], coefficients(k, small.x[rows], small.y[rows], small.ridge), x_test)
                for k in small.kernels
            ],
            axis=0,
        )
        accuracies.append(accuracy(scores, dataset.y_test))
    return Result(tuple(accuracies), learned.seconds + time.monotonic() - start, learned.deviations)
