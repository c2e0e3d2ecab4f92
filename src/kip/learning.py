"""A distillation from its first step to the published set: one loop for library, command line and recipes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kip import algorithm, defaults, plan
from kip.algorithm import Checkpoint, DivergedError, Info, State
from kip.artefact import DistilledSet
from kip.options import Options
from kip.sets import LabelledSet
from kip.task import Task

DONE, PLATEAU, LATE, STOPPED, DIVERGED = "all steps done", "no more progress", "time budget", "stopped", "diverged"
"""Why learning ended."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What is told of a step: the state, its Info, seconds since learning began, and the last validation accuracy."""

    state: State
    info: Info
    seconds: float
    accuracy: float | None

    @property
    def entry(self) -> dict[str, Any]:
        """The step as a line of the history."""
        found: dict[str, Any] = {"step": self.info.step, "loss": self.info.loss}
        if self.info.evaluated is not None:
            found["evaluated"] = self.info.evaluated if math.isfinite(self.info.evaluated) else None
            if self.accuracy is not None:
                found["validation_accuracy"] = self.accuracy
        return {**found, "seconds": round(self.seconds, 4)}


Watcher = Callable[[Seen], object]


@dataclass(frozen=True, eq=False)
class Learned:
    """What learning came to: the checkpoint to publish, why it ended, the state to continue from, and the seconds.

    `why` says more of a divergence.
    """

    checkpoint: Checkpoint
    ended: str
    state: State
    seconds: float
    why: str = ""


def learn(
    task: Task,
    state: State,
    watchers: Sequence[Watcher] = (),
    *,
    stop: Callable[[], bool] | None = None,
    budget: float | None = None,
    before: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> Learned:
    """Step until done, on a plateau, out of time, stopped, or diverged; in each case there is a set to publish.

    Every watcher sees every step. `before` are the seconds that the steps before `state` took; they count towards the
    `budget`.
    """
    if budget is not None and budget <= 0:
        raise ValueError(f"`time_budget` must be positive; got {budget}")
    start, last = clock() - before, state
    spent, accuracy = before, None

    def seconds() -> float:
        nonlocal spent
        spent = max(spent, clock() - start)  # it stands still while a clock catches up
        return spent

    def late() -> bool:
        return budget is not None and seconds() >= budget

    def seen(state: State, info: Info) -> None:
        nonlocal last, accuracy
        last = state
        if info.evaluated is not None and task.validation is not None:
            accuracy = validation_accuracy(task, state)
        for watcher in watchers:
            watcher(Seen(state, info, seconds(), accuracy))

    stopped = stop or _never
    try:
        end = algorithm.run(task.problem, task.config, state, callback=seen, stop=lambda: stopped() or late())
    except DivergedError as error:
        return Learned(_last_finite(error.state), DIVERGED, error.state, seconds(), str(error))
    # Continue from the state after the last step: `end` may have been evaluated off schedule, unlike an unbroken run.
    return Learned(end.best[0], _reason(task, end, stopped, late), last, seconds())


def _never() -> bool:
    return False


def _reason(task: Task, state: State, stopped: Callable[[], bool], late: Callable[[], bool]) -> str:
    if state.step >= task.config.steps:
        return DONE
    if stopped():
        return STOPPED
    return LATE if late() else PLATEAU


def _last_finite(state: State) -> Checkpoint:
    return state.best[0] if state.best else Checkpoint(math.inf, state.step, state.x, state.y, state.log_params)


def validation_accuracy(task: Task, state: State | Checkpoint) -> float:
    """Accuracy on the validation split of a model on the support set of `state`."""
    assert task.validation is not None
    kernels = algorithm.kernels_of(task.config, state.log_params)
    model = task.model(LabelledSet(state.x, state.y), kernels)
    return model.accuracy(task.validation.x, task.validation.codes)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `distill`; `distilled` is the set as it stands.

    It is the set of a run that `stop()` ends at that step. Its evaluation takes a moment; a second Ctrl-C skips it and
    gives the best points evaluated before. In a notebook, `sys.last_value` is the exception.

    >>> import numpy as np, kip
    >>> def interrupt(state, info):
    ...     if info.step == 7:
    ...         raise KeyboardInterrupt
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> try:
    ...     small = kip.distill(x, np.repeat([0, 1], 20), size=2, steps=10, callback=interrupt)
    ... except kip.Interrupted as stopped:
    ...     print(stopped)
    ...     small = stopped.distilled
    interrupted at step 7 of 10; the set as it stands is in `.distilled` of this exception
    """

    def __init__(self, distilled: DistilledSet, step: int, steps: int) -> None:
        super().__init__(
            f"interrupted at step {step} of {steps}; the set as it stands is in `.distilled` of this exception"
        )
        self.distilled = distilled


def distilled(
    task: Task,
    *,
    callback: Callable[[State, Info], None] | None = None,
    stop: Callable[[], bool] | None = None,
    time_budget: float | None = None,
) -> DistilledSet:
    """Learn and publish in memory; Ctrl-C raises `Interrupted`."""
    last, learned = task.initial(), None

    def watch(seen: Seen) -> None:
        nonlocal last
        last = seen.state
        if callback is not None:
            callback(seen.state, seen.info)

    try:
        learned = learn(task, last, [watch], stop=stop, budget=time_budget)
        if learned.ended == DIVERGED:
            raise DivergedError(learned.state)
        return task.published(learned.checkpoint)
    except KeyboardInterrupt:
        small = _standing(task, last) if learned is None else _unpublished(task, learned.checkpoint)
        raise Interrupted(small, last.step, task.config.steps) from None


def _standing(task: Task, state: State) -> DistilledSet:
    """The set of a run that ends at `state`; where evaluating or publishing it is interrupted, without either."""
    try:
        return task.published(algorithm.finish(task.problem, task.config, state).best[0])
    except KeyboardInterrupt:
        return _unpublished(task, state.best[0] if state.best else state)


def _unpublished(task: Task, best: State | Checkpoint) -> DistilledSet:
    """Support points with the labels they were evaluated with."""
    return task.distilled(LabelledSet(best.x, best.y), best.log_params)


def paced(task: Task, budget: float | None, clock: Callable[[], float] = time.perf_counter) -> plan.Pace:
    """Time steps of the run at hand, with each kernel of a family, and an evaluation."""
    patience = plan.QUICK if budget is None else min(plan.QUICK, budget / 20)
    start = clock()
    subset = algorithm.evaluation_set(task.problem, task.config, key=task.options.seed)
    state = task.initial()

    def evaluate() -> None:
        checkpoint = algorithm.evaluate(state, task.config, subset)
        if task.validation is not None:
            validation_accuracy(task, checkpoint)

    each = [plan.timed(_stepping(task, n), clock, patience, again=True) for n in range(len(task.config.kernels))]
    evaluated = plan.timed(evaluate, clock, patience, again=False)
    step = sum(later for _, later in each) / len(each)
    compiling = sum(max(first - later, 0.0) for first, later in [*each, evaluated])
    return plan.Pace(step, evaluated[1], compiling, clock() - start)


def _stepping(task: Task, kernel: int) -> Callable[[], None]:
    """A call that takes a step with one kernel of the family, each time from where the last one came to."""
    start = state = task.initial()

    def step() -> None:
        nonlocal state
        batch = dataclasses.replace(algorithm.draw(state, task.problem, task.config), kernel=kernel)
        try:
            state, _ = algorithm.step(state, batch, task.config)
        except DivergedError:  # for the run itself to report, if it happens there
            state = start

    return step


def with_steps(task: Task, asked: Options, pace: plan.Pace, budget: float) -> Task:
    """The task with the steps that a time budget allows, and the schedule that follows from them.

    `asked` are the options as they were given.
    """

    def every(steps: int) -> int:
        return asked.evaluate_every or defaults.evaluate_every(steps)

    steps = pace.steps_within(budget, every)
    options = dataclasses.replace(task.options, steps=steps, evaluate_every=every(steps))
    assert options.learning_rate is not None
    optimiser = task.config.optimiser
    if options.optimiser == "adam":
        optimiser = algorithm.adam(options.learning_rate, steps, decay=options.schedule == "cosine")
    config = dataclasses.replace(task.config, steps=steps, evaluate_every=every(steps), optimiser=optimiser)
    return dataclasses.replace(task, config=config, options=options)
