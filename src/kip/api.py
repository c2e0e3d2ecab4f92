"""Distillation in one call: `distill` and `label_solve` take raw data and give a `DistilledSet`.

`prepare` turns raw data and `Options` into what `kip.kip` works on, and `assemble` turns what it learned into a set
that stands on its own; the command line uses the same two around its own loop.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax

from kip import defaults
from kip import kip as algorithm
from kip.artefact import DistilledSet
from kip.corruption import Corruption
from kip.data.preprocess import Preprocess, fit
from kip.kernels import Kernel, family
from kip.kernels.inner import InnerProductKernel
from kip.kip import Checkpoint, Config, Info, Params, Problem, State
from kip.krr import DEFAULT_RIDGE, Ridge
from kip.labels import solve_labels
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet, channels_last, check_points, check_targets, class_counts, encode, one_hot
from kip.stopping import Interrupted, either, within
from kip.stream import Plan

SCHEDULES = ("cosine", "constant")

Augmentation = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""A batch of raw images and where its random numbers come from, to the batch augmented."""


@dataclass(frozen=True)
class Options:
    """Every setting of a distillation, as plain values: this is what `config.json` holds.

    None means "as `kip.defaults` chooses". `kernel` names a kernel or a family; `augment` is "none", "digits", "photos"
    or "flips", with a shift such as "digits:0.05" where one is wanted; `targets` limits how many training points are
    used; `validation` is the fraction taken out of them; `purpose` is what the set is to train, "kernels" or
    "networks", by which the defaults go.
    """

    size: int
    kernel: str = "rbf"
    steps: int | None = None
    labels: str = "auto"
    augment: str | None = None
    corruption: float = 0.0
    fill: str = "noise"
    by_pixel: bool = False
    init: str = "image"
    batch: int | None = None
    support_batch: int | None = None
    learning_rate: float | None = None
    schedule: str = "cosine"
    preprocess: str = "standard"
    ridge: float = DEFAULT_RIDGE
    plain_ridge: bool = False
    damping: float = algorithm.DEFAULT_DAMPING
    learn_kernel: bool = False
    engine: str | None = None
    dtype: str = "float32"
    validation: float = 0.0
    targets: int | None = None
    patience: int | None = None
    judge_every: int | None = None
    judge_targets: int | None = None
    purpose: str = "kernels"
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Task:
    """Raw data made ready: the problem and its configuration, and what is needed to describe the result."""

    problem: Problem
    config: Config
    options: Options
    preprocess: Preprocess
    classes: tuple[Any, ...]
    original_size: int
    validation: LabelledSet | None = None


def distill(
    x: Any,
    y: Any,
    *,
    size: int,
    kernel: str | Kernel | Sequence[str | Kernel] | None = None,
    purpose: str = "kernels",
    steps: int | None = None,
    labels: str = "auto",
    augment: str | Augmentation | None = None,
    corruption: float = 0.0,
    init: str = "image",
    batch: int | None = None,
    learning_rate: float | None = None,
    preprocess: str = "standard",
    seed: int = 0,
    callback: Callable[[State, Info], None] | None = None,
    optimiser: optax.GradientTransformation | None = None,
    time_budget: float | None = None,
    stop: Callable[[], bool] | None = None,
    layout: str | None = None,
    plan: Plan = Plan(),
    **more: Any,
) -> DistilledSet:
    """Distil (x, y) into `size` points with soft labels, by Kernel Inducing Points.

    `x` are raw points (uint8 images, or floats), `y` integer or string labels or a float matrix of targets. `layout` is
    "channels-last" (default) or "channels-first", (n, channels, h, w). `purpose` says what the set is for: "kernels"
    (kernel ridge-regression) or "networks" (to train them). A `kernel` of None is "rbf" for kernels, and for networks
    the family that `kip distill --for networks` takes. `labels` says how support labels are set: `fixed`, `learned`,
    `solved`, or `auto`. `augment` names an augmentation of the targets, or is one: a function of a NumPy generator and
    raw images, channels last. `corruption` is ρ of KIP_ρ. `callback` sees every state with its Info, `stop()` may end
    the run, `time_budget` ends it after that many seconds. `more` are the other fields of `Options`.

    Ctrl-C raises `kip.Interrupted`, a KeyboardInterrupt: its `distilled` is the set as it stands.

    >>> import numpy as np, kip
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> kip.distill(x, np.repeat([0, 1], 20), size=2, steps=10)
    DistilledSet(2 points of (3,), 2 classes, kernel 'rbf')
    """
    if kernel is None:
        kernel = defaults.kernel(purpose, vectors=np.ndim(x) == 2)
    kernels = family(kernel, more.get("engine"))
    options = Options(
        size=size,
        purpose=purpose,
        kernel="+".join(k.spec for k in kernels),
        steps=steps,
        labels=labels,
        augment=augment if isinstance(augment, str) else None,
        corruption=corruption,
        init=init,
        batch=batch,
        learning_rate=learning_rate,
        preprocess=preprocess,
        seed=seed,
        **_known(more),
    )
    own = augment if callable(augment) else None
    x = channels_last(np.asarray(x), layout, "x")
    task = prepare(x, y, options, kernels=kernels, optimiser=optimiser, augment=own, plan=plan)
    last, learned = algorithm.init(task.problem, task.config, key=seed), False

    def seen(state: State, info: Info) -> None:
        nonlocal last
        last = state
        if callback is not None:
            callback(state, info)

    try:
        until = either(stop, within(time_budget, time.monotonic))
        last, learned = algorithm.run(task.problem, task.config, last, callback=seen, stop=until), True
        return assemble(task, last.best[0])
    except KeyboardInterrupt:
        small = _unpublished(task, last) if learned else _standing(task, last)
        raise Interrupted(small, last.step, task.config.steps) from None


def _standing(task: Task, state: State) -> DistilledSet:
    """The set of a run that ends at `state`; where evaluating or publishing it is interrupted, without either."""
    try:
        return assemble(task, algorithm.finish(task.problem, task.config, state).best[0])
    except KeyboardInterrupt:
        return _unpublished(task, state)


def _unpublished(task: Task, state: State) -> DistilledSet:
    """The best support points evaluated so far, or else the current ones, with the labels they were evaluated with."""
    best = state.best[0] if state.best else state
    return _distilled(task, LabelledSet(best.x, best.y), best.log_params)


def _known(more: dict[str, Any]) -> dict[str, Any]:
    names = {f.name for f in dataclasses.fields(Options)}
    unknown = sorted(set(more) - names)
    if unknown:
        raise TypeError(
            f"distill() got an unexpected argument {unknown[0]!r}; the options are {', '.join(sorted(names))}"
        )
    return more


def prepare(
    x: Any,
    y: Any,
    options: Options,
    *,
    kernels: tuple[Kernel, ...] | None = None,
    optimiser: optax.GradientTransformation | None = None,
    augment: Augmentation | None = None,
    classes: Sequence[Any] | None = None,
    kind: str = "other",
    plan: Plan = Plan(),
) -> Task:
    """Check, split, preprocess and configure; every complaint about the input is made here, before any computation."""
    drawn = outline(x, y, options, kernels=kernels, optimiser=optimiser, classes=classes, kind=kind, plan=plan)
    raw, rows, held_out, options = drawn.raw, drawn.rows, drawn.held_out, drawn.options
    fitted = fit(options.preprocess, raw[rows], dtype=np.dtype(options.dtype))
    problem = Problem(
        LabelledSet(fitted.apply(raw[rows]), drawn.targets[rows]),
        drawn.codes[rows],
        len(drawn.classes),
        _augmentation(options, augment, raw[rows], fitted),
    )
    validation = LabelledSet(fitted.apply(raw[held_out]), drawn.targets[held_out]) if len(held_out) else None
    return Task(problem, drawn.config, options, fitted, drawn.classes, len(raw), validation)


@dataclass(frozen=True, eq=False)
class Outline:
    """A task before anything is computed: raw points with their labels, which are learned from and which held out."""

    raw: np.ndarray
    targets: np.ndarray
    codes: np.ndarray
    classes: tuple[Any, ...]
    rows: np.ndarray
    held_out: np.ndarray
    config: Config
    options: Options


def outline(
    x: Any,
    y: Any,
    options: Options,
    *,
    kernels: tuple[Kernel, ...] | None = None,
    optimiser: optax.GradientTransformation | None = None,
    classes: Sequence[Any] | None = None,
    kind: str = "other",
    plan: Plan = Plan(),
) -> Outline:
    """What `prepare` will make of the data, with all its complaints, but without preprocessing a point."""
    raw = check_points(x, "x")
    targets, codes, names = _targets(y, len(raw), classes, options)
    kernels = kernels or family(options.kernel, options.engine)
    ridge = Ridge(options.ridge, not options.plain_ridge)
    corruption = Corruption(options.corruption, options.fill, options.by_pixel)
    rows, held_out = split(codes, len(names), options)
    options = resolve(options, len(rows), kernels, kind)
    config = _config(options, kernels, ridge, corruption, optimiser, plan)
    _check_sizes(options, codes[rows], len(names))
    return Outline(raw, targets, codes, names, rows, held_out, config, options)


def _targets(
    y: Any, points: int, classes: Sequence[Any] | None, options: Options
) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
    """Label vectors, the class of each point, and the classes."""
    dtype = _dtype(options.dtype)
    y = np.asarray(y)
    if y.ndim == 2:
        targets = check_targets(y, points, "y").astype(dtype)
        if targets.shape[1] < 2:
            raise ValueError("`y` as a matrix of targets needs at least 2 columns, one a class")
        names = tuple(classes) if classes is not None else tuple(range(targets.shape[1]))
        return targets, np.argmax(targets, axis=1), names
    if len(y) != points:
        raise ValueError(f"`y` has {len(y)} labels for {points} points; give one label to a point")
    codes, names = encode(y, classes)
    if len(names) < 2:
        raise ValueError(f"`y` has one class only, {names[0]!r}; distillation needs at least two")
    return one_hot(codes, len(names), dtype), codes, names


def _dtype(name: str) -> np.dtype[Any]:
    if name not in ("float32", "float64"):
        raise ValueError(f"`dtype` must be float32 or float64; got {name!r}")
    return np.dtype(name)


def _check_sizes(options: Options, codes: np.ndarray, classes: int) -> None:
    present = int(np.sum(class_counts(codes, classes) > 0))
    if options.size < present:
        raise ValueError(
            f"`size` must be at least the {present} classes; got {options.size}. "
            f"Use size={present} or pass a subset of classes"
        )
    if options.size > len(codes):
        raise ValueError(f"`size` must be at most the {len(codes)} training points; got {options.size}")
    if options.batch is not None and options.batch > len(codes):
        raise ValueError(f"`batch` must be at most the {len(codes)} training points; got {options.batch}")


def split(codes: np.ndarray, classes: int, options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Rows to learn from and rows held out for validation, both class-balanced as far as the data are."""
    if not 0 <= options.validation < 1:
        raise ValueError(f"`validation` must be a fraction in [0, 1); got {options.validation}")
    if options.targets is not None and options.targets < 1:
        raise ValueError(f"`targets` must be at least 1; got {options.targets}")
    rng = generator(options.seed, Stream.JUDGE, 1)
    held_out = np.zeros(len(codes), bool)
    for c in range(classes):
        members = rng.permutation(np.flatnonzero(codes == c))
        held_out[members[: math.floor(options.validation * len(members))]] = True
    rows = np.flatnonzero(~held_out)
    if options.targets is not None and options.targets < len(rows):
        rows = rows[np.sort(balanced(codes[rows], classes, options.targets, key=rng))]
    return rows, np.flatnonzero(held_out)


def resolve(options: Options, training: int, kernels: tuple[Kernel, ...], kind: str) -> Options:
    """The options with every None that has a default filled in, so that what is recorded is what was used."""
    expensive = not all(isinstance(k, InnerProductKernel) for k in kernels)
    chosen = defaults.choose(
        training=training, size=options.size, kind=kind, expensive=expensive, purpose=options.purpose
    )
    steps = _given(options.steps, chosen.steps)
    return dataclasses.replace(
        options,
        steps=steps,
        labels=chosen.labels if options.labels == "auto" else options.labels,
        learning_rate=_given(options.learning_rate, chosen.learning_rate),
        batch=_given(options.batch, chosen.batch),
        augment=_given(options.augment, chosen.augment),
        judge_every=_given(options.judge_every, max(1, steps // 20)),
        judge_targets=_given(options.judge_targets, chosen.judge_targets),
    )


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _config(
    options: Options,
    kernels: tuple[Kernel, ...],
    ridge: Ridge,
    corruption: Corruption,
    optimiser: optax.GradientTransformation | None,
    plan: Plan,
) -> Config:
    assert options.steps is not None
    assert options.learning_rate is not None
    assert options.judge_every is not None
    assert options.judge_targets is not None
    if options.steps < 1:
        raise ValueError(f"`steps` must be at least 1; got {options.steps}")
    if options.learning_rate <= 0:
        raise ValueError(f"`learning_rate` must be positive; got {options.learning_rate}")
    if options.schedule not in SCHEDULES:
        raise ValueError(f"`schedule` must be one of {', '.join(SCHEDULES)}; got {options.schedule!r}")
    if optimiser is None:
        optimiser = algorithm.adam(options.learning_rate, options.steps, decay=options.schedule == "cosine")
    return Config(
        kernels=kernels,
        size=options.size,
        steps=options.steps,
        optimiser=optimiser,
        labels=options.labels,
        init=options.init,
        batch=options.batch,
        support_batch=options.support_batch,
        learn_kernel=options.learn_kernel,
        corruption=corruption,
        ridge=ridge,
        damping=options.damping,
        judge_every=options.judge_every,
        judge_targets=options.judge_targets,
        patience=options.patience,
        plan=plan,
    )


def _augmentation(
    options: Options,
    own: Augmentation | None,
    raw: np.ndarray,
    fitted: Preprocess,
) -> Callable[[np.ndarray, int], np.ndarray] | None:
    if own is None and (options.augment or "none") == "none":
        return None
    from kip.data.augment import named  # here, since Numba takes long to import

    augment = own or named(options.augment or "none")
    assert augment is not None
    if raw.ndim < 3:
        raise ValueError("`augment` works on images; leave it out for vectors")
    return lambda rows, seed: fitted.apply(augment(np.random.default_rng(seed), raw[rows]))


def assemble(task: Task, checkpoint: Checkpoint) -> DistilledSet:
    """The distilled set of a checkpoint, with its labels published."""
    return _distilled(task, algorithm.publish(checkpoint, task.problem, task.config), checkpoint.log_params)


def _distilled(task: Task, support: LabelledSet, log_params: tuple[Params, ...] = ()) -> DistilledSet:
    kernels = algorithm.kernels_of(task.config, log_params) if log_params else task.config.kernels
    corruption = task.config.corruption
    mask = corruption.mask(support.x.shape, key=task.options.seed) if corruption.rho > 0 else None
    return DistilledSet(
        x=support.x,
        y=support.y,
        classes=task.classes,
        kernel="+".join(k.spec for k in kernels),
        ridge=task.config.ridge,
        preprocess=task.preprocess,
        seed=task.options.seed,
        original_size=task.original_size,
        corruption=corruption,
        mask=mask,
        config=dataclasses.asdict(task.options),
        engine=task.options.engine,
    )


def label_solve(
    x: Any,
    y: Any,
    *,
    size: int | None = None,
    support: Any = None,
    kernel: str | Kernel | Sequence[str | Kernel] = "rbf",
    preprocess: str = "standard",
    ridge: float = DEFAULT_RIDGE,
    seed: int = 0,
    layout: str | None = None,
    plan: Plan = Plan(),
    **more: Any,
) -> DistilledSet:
    """Solve for the labels of natural points: a class-balanced subset of `size`, or the rows `support` of `x`.

    Eq. (label_solve), minimum norm; jointly over a family of kernels. Takes `x` and `y` as `distill` does.

    >>> import numpy as np, kip
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> kip.label_solve(x, np.repeat([0, 1], 20), size=4)
    DistilledSet(4 points of (3,), 2 classes, kernel 'rbf')
    """
    if (size is None) == (support is None):
        raise ValueError("give either `size` or `support`, the rows of `x` to label")
    x = channels_last(np.asarray(x), layout, "x")
    kernels = family(kernel, more.get("engine"))
    chosen = None if support is None else _support_rows(support, len(x))
    count = len(chosen) if chosen is not None else size
    assert count is not None
    options = Options(
        size=count,
        kernel="+".join(k.spec for k in kernels),
        labels="solved",
        preprocess=preprocess,
        ridge=ridge,
        seed=seed,
        augment="none",
        **_known(more),
    )
    task = prepare(x, y, options, kernels=kernels, plan=plan)
    return solve_task(task, chosen)


def solve_task(task: Task, rows: np.ndarray | None = None) -> DistilledSet:
    """Label Solve on prepared data, for the given rows or a class-balanced draw."""
    problem, config = task.problem, task.config
    if rows is None:
        rng = generator(task.options.seed, Stream.INIT)
        rows = balanced(problem.codes, problem.classes, config.size, key=rng)
    x = problem.train.x[rows]
    if config.corruption.rho > 0:
        x, _ = config.corruption.apply(x, key=task.options.seed)
    solution = solve_labels(config.kernels, x, problem.train, config.ridge, plan=config.plan)
    support = LabelledSet(x, solution.y.astype(problem.train.y.dtype))
    return _distilled(task, support)


def _support_rows(support: Any, points: int) -> np.ndarray:
    rows = np.asarray(support)
    if rows.ndim != 1 or rows.dtype.kind not in "iu" or len(rows) == 0:
        raise ValueError(f"`support` must be a vector of rows of `x`; got shape {rows.shape}, dtype {rows.dtype}")
    if rows.min() < 0 or rows.max() >= points:
        raise ValueError(f"`support` must be rows from 0 to {points - 1}; got {rows.min()} to {rows.max()}")
    return rows
