"""KIP cells: learning that can be killed at any step and continues, and the accuracies of what was learned.

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

from kip import learning, machine, runs
from kip.algorithm import DivergedError, State
from kip.artefact import DistilledSet
from kip.data import Dataset
from kip.files import read_json, write_json
from kip.krr import KernelRidge, accuracy
from kip.learning import Seen
from kip.options import Options, declared
from kip.paper.running.base import Context, Result, StoppedError, most_cores
from kip.paper.works import Kip, Part, name
from kip.recording import Record
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet
from kip.task import Task, prepare

LEARNED, SCORES = "learned.json", "scores.json"
SAY_EVERY = 30.0
"""Seconds between words on how far learning has come."""

ENDED = {learning.DONE: "done", learning.LATE: "time", learning.DIVERGED: "diverged"}
"""What `learned.json` calls each way in which learning can end."""


@dataclass(frozen=True, eq=False)
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
        return self.task.published(self.state.best[rank])


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
    """The learning of one seed: finished where it was not."""
    dataset = context.load(work.data)
    task = prepare(
        dataset.x_train, dataset.y_train, _options(work, seed, dataset), classes=tuple(range(len(dataset.classes)))
    )
    folder = context.folder / name(work) / f"s{seed}"
    identity = {"options": dataclasses.asdict(task.options), "data": dataset.name, "points": len(dataset.x_train)}
    with runs.opened("", folder, resume=True) as run:
        record, fresh = Record(run, identity), task.initial()
        state = record.latest(fresh, say=context.say) or fresh
        if not (folder / LEARNED).is_file():
            state = _learn(work, task, state, record, context)
    about = read_json(folder / LEARNED)
    return Learned(task, state, about["steps"], about["seconds"], about["stopped"], folder, about.get("cores"))


def _options(work: Kip, seed: int, dataset: Dataset) -> Options:
    known = {field for field, _, _ in declared(Options)}
    given = {key: value for key, value in dataclasses.asdict(work).items() if key in known}
    return Options(**given, seed=seed, kind=dataset.kind)


def _learn(work: Kip, task: Task, state: State, record: Record, context: Context) -> State:
    """Learn until all steps are done or the time is up, and give the state it ended in; a stop is a StoppedError."""
    before = record.seconds(state)
    if state.step:
        context.say(f"  continuing at step {state.step}")
    with record.watching(state) as watch:
        watchers = [watch, _saying(context, before)]
        learned = learning.learn(task, state, watchers, stop=context.stop, budget=work.seconds, before=before)
    if learned.ended == learning.STOPPED:
        record.save(learned.state)
        raise StoppedError
    if learned.ended == learning.DIVERGED:
        if not learned.end.best:
            raise DivergedError(learned.end)
        context.say(f"  {learned.why}")
    record.save(learned.end)
    about = {"steps": learned.end.step, "seconds": round(learned.seconds, 2), "stopped": ENDED[learned.ended]}
    write_json(record.run.folder / LEARNED, {**about, "cores": machine.cores()})
    return learned.end


def _saying(context: Context, said: float) -> Callable[[Seen], None]:
    """A watcher that says now and then how far learning has come."""

    def watch(seen: Seen) -> None:
        nonlocal said
        if seen.info.evaluated is not None and seen.seconds - said > SAY_EVERY:
            context.say(f"  step {seen.info.step}: loss {seen.info.evaluated:.4g}, {seen.seconds:.0f} s")
            said = seen.seconds

    return watch


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
    whole, x_test = LabelledSet(small.x, small.y), small.preprocess.apply(dataset.x_test)
    start, accuracies = time.monotonic(), []
    for seed in work.seeds:
        rows = balanced(whole.codes, whole.y.shape[1], work.size, key=generator(seed, Stream.BASELINE))
        model = KernelRidge(small.kernels, whole.take(rows), small.ridge)
        accuracies.append(model.accuracy(x_test, dataset.y_test))
    return Result(tuple(accuracies), learned.seconds + time.monotonic() - start, learned.deviations)
