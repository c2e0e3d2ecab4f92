"""Distillation in one call: `distill` and `label_solve` take raw data and give a `DistilledSet`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax

from kip import learning
from kip.algorithm import Info, State
from kip.artefact import DistilledSet, load
from kip.execution import DEFAULT, Execution
from kip.files import absolute
from kip.kernels import KernelLike, family
from kip.learning import Interrupted
from kip.options import Options, SetOptions, given, takes
from kip.sets import channels_last
from kip.task import Augmentation, Own, prepare

__all__ = ["Interrupted", "distill", "label_solve"]


@takes(Options)
def distill(
    x: Any,
    y: Any,
    *,
    kernel: KernelLike | Sequence[KernelLike] | None = None,
    augment: str | Augmentation | None = None,
    optimiser: optax.GradientTransformation | str = "adam",
    start: DistilledSet | str | Path | None = None,
    layout: str | None = None,
    callback: Callable[[State, Info], None] | None = None,
    stop: Callable[[], bool] | None = None,
    time_budget: float | None = None,
    execution: Execution = DEFAULT,
    **options: Any,
) -> DistilledSet:
    """Distil (x, y) into `size` points with soft labels, by Kernel Inducing Points.

    `x` are raw points (uint8 images, or floats), `y` integer or string labels or a float matrix of targets. `layout` is
    "channels-last" (default) or "channels-first", (n, channels, h, w).

    `kernel` is a name, a kernel, a function of two sets of points written with jax.numpy, or a list of these: a family.
    `augment` names an augmentation of the targets, or is one: a function of a NumPy generator and raw images, channels
    last. `optimiser` is "adam" or an optax transformation. `start` is a distilled set to start from, or its folder.

    `callback` sees every state with its Info; `stop()` may end the run. `time_budget` chooses the steps that so many
    seconds allow, and ends the run then; where `steps` is given it only ends it.

    Ctrl-C raises `kip.Interrupted`, a KeyboardInterrupt: its `distilled` is the set as it stands.

    >>> import numpy as np, kip
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> kip.distill(x, np.repeat([0, 1], 20), size=2, steps=10)
    DistilledSet(2 points of (3,), 2 classes, kernel 'rbf')
    """
    engine = options.get("engine")
    own = Own(
        kernels=None if kernel is None or isinstance(kernel, str) else family(kernel, engine),
        augment=augment if callable(augment) else None,
        optimiser=_own_optimiser(optimiser),
        start=_opened(start),
        execution=execution,
    )
    named = {
        "kernel": kernel if own.kernels is None else None,
        "augment": None if own.augment else augment,
        "start": absolute(start) if isinstance(start, str | Path) else None,
    }
    asked = given(Options, {**named, **options}, "distill")
    if time_budget is not None and not (isinstance(time_budget, int | float) and time_budget > 0):
        raise ValueError(f"`time_budget` must be a positive number of seconds; got {time_budget!r}")
    task = prepare(channels_last(np.asarray(x), layout, "x"), y, asked, own)
    if time_budget is not None and asked.steps is None:
        pace = learning.paced(task, time_budget)
        task = learning.with_steps(task, asked, pace, time_budget)
        time_budget = max(time_budget - pace.spent, 1e-9)
    return learning.distilled(task, callback=callback, stop=stop, time_budget=time_budget)


def _own_optimiser(optimiser: Any) -> optax.GradientTransformation | None:
    """The optimiser handed in; None stands for Adam."""
    if isinstance(optimiser, str) and optimiser == "adam":
        return None
    if not callable(getattr(optimiser, "update", None)):
        raise ValueError(f"`optimiser` must be 'adam' or an optax transformation; got {optimiser!r}")
    return optimiser


def _opened(start: Any) -> DistilledSet | None:
    """The set to start from, read from its folder where that is given."""
    if start is None or isinstance(start, DistilledSet):
        return start
    if not isinstance(start, str | Path):
        raise ValueError(f"`start` must be a distilled set or the folder of one; got {start!r}")
    return load(start)


@takes(SetOptions)
def label_solve(
    x: Any,
    y: Any,
    *,
    size: int | None = None,
    support: Any = None,
    kernel: KernelLike | Sequence[KernelLike] | None = None,
    layout: str | None = None,
    execution: Execution = DEFAULT,
    **options: Any,
) -> DistilledSet:
    """Solve for the labels of natural points: a class-balanced subset of `size`, or the rows `support` of `x`.

    Eq. (label_solve), minimum norm; jointly over a family of kernels. `x`, `y`, `kernel` and `layout` are those of
    `distill`.

    >>> import numpy as np, kip
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> kip.label_solve(x, np.repeat([0, 1], 20), size=4)
    DistilledSet(4 points of (3,), 2 classes, kernel 'rbf')
    """
    if (size is None) == (support is None):
        raise ValueError("give either `size` or `support`, the rows of `x` to label")
    x = channels_last(np.asarray(x), layout, "x")
    rows = None if support is None else _support_rows(support, len(x))
    own = Own(
        kernels=None if kernel is None or isinstance(kernel, str) else family(kernel, options.get("engine")),
        support=rows,
        execution=execution,
    )
    named = {"kernel": kernel if own.kernels is None else None, "size": size if rows is None else len(rows)}
    task = prepare(x, y, solving(given(SetOptions, {**named, **options}, "label_solve")), own)
    return task.solved(None if rows is None else task.preprocess.apply(x[rows]))


def solving(asked: SetOptions) -> Options:
    """The options of Label Solve as those of a distillation without a step."""
    return Options(**dataclasses.asdict(asked), labels="solved", augment="none")


def _support_rows(support: Any, points: int) -> np.ndarray:
    rows = np.asarray(support)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
        raise ValueError(f"`support` must be a vector of rows of `x`; got shape {rows.shape}, dtype {rows.dtype}")
    if rows.min() < 0 or rows.max() >= points:
        raise ValueError(f"`support` must be rows from 0 to {points - 1}; got {rows.min()} to {rows.max()}")
    return rows
