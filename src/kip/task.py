"""Raw data and options made ready: checked, split, preprocessed, and configured for Algorithm 1.

`outline` makes every complaint about the input, before anything is computed; `Outline.prepared` does the computing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optax

from kip import algorithm, defaults
from kip.algorithm import Checkpoint, Config, Problem, State
from kip.artefact import DistilledSet
from kip.corruption import Corruption
from kip.data.checks import check_augmentation
from kip.data.preprocess import Preprocess, fit, parse
from kip.data.scale import rescale
from kip.execution import DEFAULT, Execution
from kip.kernels import Kernel, family
from kip.kernels.base import Params
from kip.kernels.traced import check_own
from kip.krr import KernelRidge, Ridge
from kip.label_solver import solve_labels
from kip.options import Options, checked
from kip.sampling import Stream, balanced, generator
from kip.sets import LabelledSet, check_points, check_targets, class_counts, encode, one_hot

Augmentation = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""Maps a generator and a batch of raw images to the batch augmented."""


@dataclass(frozen=True, eq=False)
class Own:
    """Objects of the user's own that stand in for options, which then record what they are.

    `support` are the rows of the data that Label Solve labels.
    """

    kernels: tuple[Kernel, ...] | None = None
    augment: Augmentation | None = None
    optimiser: optax.GradientTransformation | None = None
    start: DistilledSet | None = None
    support: np.ndarray | None = None
    execution: Execution = DEFAULT

    def recorded(self, options: Options) -> Options:
        """`options` with what each object is."""
        names: dict[str, Any] = {}
        if self.kernels is not None:
            names["kernel"] = "+".join(kernel.spec for kernel in self.kernels)
        if self.augment is not None:
            names["augment"] = _named(self.augment)
        if self.optimiser is not None:
            names["optimiser"] = _named(self.optimiser.update)
        if self.start is not None and options.start is None:
            names["start"] = repr(self.start)
        return dataclasses.replace(options, **names)


def _named(thing: Any) -> str:
    """What a function is, for the record: no string can rebuild it."""
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    return f"own:{getattr(thing, '__module__', '?')}.{name}"


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
    start: LabelledSet | None = None
    own_kernels: tuple[Kernel, ...] = ()

    def initial(self) -> State:
        """The state before the first step."""
        return algorithm.init(self.problem, self.config, key=self.options.seed, start=self.start)

    def natural(self) -> LabelledSet:
        """The training points that the seed draws, before any corruption, with their labels."""
        rng = generator(self.options.seed, Stream.INIT)
        return self.problem.train.take(balanced(self.problem.codes, self.problem.classes, self.config.size, key=rng))

    def model(self, support: LabelledSet, kernels: tuple[Kernel, ...] | None = None) -> KernelRidge:
        """Kernel ridge-regression on a support set, as this task has it."""
        return KernelRidge(kernels or self.config.kernels, support, self.config.ridge, self.config.execution)

    def published(self, checkpoint: Checkpoint) -> DistilledSet:
        """The distilled set of a checkpoint, with its labels published."""
        return self.distilled(algorithm.publish(checkpoint, self.problem, self.config), checkpoint.log_params)

    def distilled(self, support: LabelledSet, log_params: tuple[Params, ...] = ()) -> DistilledSet:
        """A support set as a distilled set of this task."""
        kernels = algorithm.kernels_of(self.config, log_params) if log_params else self.config.kernels
        corruption = self.config.corruption
        mask = corruption.mask(support.x.shape, key=self.options.seed) if corruption.rho > 0 else None
        return DistilledSet(
            x=support.x,
            y=support.y,
            classes=self.classes,
            kernel="+".join(kernel.spec for kernel in kernels),
            ridge=self.config.ridge,
            preprocess=self.preprocess,
            seed=self.options.seed,
            original_size=self.original_size,
            corruption=corruption,
            mask=mask,
            config=dataclasses.asdict(self.options),
            engine=self.options.engine,
            own_kernels=kernels if self.own_kernels else (),
        )

    def solved(self, x: np.ndarray | None = None) -> DistilledSet:
        """Label Solve: natural points, those of a class-balanced draw or given ones, with the best labels for them."""
        x = self.natural().x if x is None else x
        if self.config.corruption.rho > 0:
            x, _ = self.config.corruption.apply(x, key=self.options.seed)
        train, config = self.problem.train, self.config
        solution = solve_labels(config.kernels, x, train, config.ridge, execution=config.execution)
        return self.distilled(LabelledSet(x, solution.y.astype(train.y.dtype)))


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
    own: Own

    def prepared(self) -> Task:
        """The task, with its points preprocessed."""
        raw, rows, options = self.raw, self.rows, self.options
        fitted = fit(options.preprocess, raw[rows], dtype=np.dtype(options.dtype))
        problem = Problem(
            LabelledSet(fitted.apply(raw[rows]), self.targets[rows]),
            self.codes[rows],
            len(self.classes),
            _augmentation(options, self.own.augment, raw[rows], fitted),
        )
        out = self.held_out
        return Task(
            problem,
            self.config,
            options,
            fitted,
            self.classes,
            len(raw),
            LabelledSet(fitted.apply(raw[out]), self.targets[out]) if len(out) else None,
            None if self.own.start is None else _started(self.own.start, fitted, self.classes, problem),
            self.own.kernels or (),
        )


def outline(x: Any, y: Any, options: Options, own: Own = Own(), *, classes: Sequence[Any] | None = None) -> Outline:
    """Check the data and the options; every complaint about the input is made here, before any computation."""
    options = checked(options)
    parse(options.preprocess)
    if own.augment is None and options.augment not in (None, "auto"):
        check_augmentation(options.augment)
    raw = check_points(x, "x")
    targets, codes, names = _targets(y, len(raw), classes, np.dtype(options.dtype))
    shape = raw.shape[1:]
    if own.start is not None:
        options = dataclasses.replace(options, size=_size_from(own.start, options.size))
        _check_start(own.start, shape, names)
    if options.kernel is None and own.kernels is None:
        options = dataclasses.replace(options, kernel=defaults.kernel(options.purpose, vectors=len(shape) == 1))
    kernels = own.kernels or family(options.kernel or "", options.engine)
    for kernel in kernels:
        check_own(kernel, (*shape, 1) if len(shape) == 2 else shape)
    rows, held_out = split(codes, len(names), options)
    point = (*shape, 1) if len(shape) == 2 else shape
    expensive = any(kernel.expensive(point) for kernel in kernels)
    options = defaults.resolve(
        own.recorded(options), shape=shape, training=len(rows), classes=len(names), expensive=expensive
    )
    assert options.size is not None
    how: Any = algorithm.choose_labels(options.labels, size=options.size, batch=options.batch, targets=len(rows))
    options = dataclasses.replace(options, labels=how)
    config = _config(options, kernels, own)
    if own.support is None:
        _check_sizes(options, codes[rows], len(names))
    if options.augment != "none" and len(shape) == 1:
        raise ValueError("`augment` works on images; leave it out for vectors")
    return Outline(raw, targets, codes, names, rows, held_out, config, options, own)


def prepare(x: Any, y: Any, options: Options, own: Own = Own(), *, classes: Sequence[Any] | None = None) -> Task:
    """Check, split, preprocess and configure."""
    return outline(x, y, options, own, classes=classes).prepared()


def _targets(
    y: Any, points: int, classes: Sequence[Any] | None, dtype: np.dtype[Any]
) -> tuple[np.ndarray, np.ndarray, tuple[Any, ...]]:
    """Label vectors, the class of each point, and the classes."""
    y = np.asarray(y)
    if y.ndim == 2:
        targets = check_targets(y, points, "y").astype(dtype)
        if targets.shape[1] < 2:
            raise ValueError("`y` as a matrix of targets needs at least 2 columns, one per class")
        names = tuple(classes) if classes is not None else tuple(range(targets.shape[1]))
        return targets, np.argmax(targets, axis=1), names
    if len(y) != points:
        raise ValueError(f"`y` has {len(y)} labels for {points} points; give one label per point")
    codes, names = encode(y, classes)
    if len(names) < 2:
        raise ValueError(f"`y` has one class only, {names[0]!r}; distillation needs at least two")
    return one_hot(codes, len(names), dtype), codes, names


def _check_sizes(options: Options, codes: np.ndarray, classes: int) -> None:
    assert options.size is not None
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
    rng = generator(options.seed, Stream.EVALUATE, 1)
    held_out = np.zeros(len(codes), bool)
    for c in range(classes):
        members = rng.permutation(np.flatnonzero(codes == c))
        held_out[members[: math.floor(options.validation * len(members))]] = True
    rows = np.flatnonzero(~held_out)
    if options.targets is not None and options.targets < len(rows):
        rows = rows[np.sort(balanced(codes[rows], classes, options.targets, key=rng))]
    return rows, np.flatnonzero(held_out)


def _config(options: Options, kernels: tuple[Kernel, ...], own: Own) -> Config:
    """The options as the objects that Algorithm 1 works with; those that are plain values go over by name."""
    assert options.steps is not None
    assert options.learning_rate is not None
    names = {field.name for field in dataclasses.fields(Config)}
    plain = {name: value for name, value in vars(options).items() if name in names}
    optimiser = own.optimiser
    if optimiser is None:
        optimiser = algorithm.adam(options.learning_rate, options.steps, decay=options.schedule == "cosine")
    objects = {
        "kernels": kernels,
        "optimiser": optimiser,
        "corruption": Corruption(options.corruption, options.fill, options.by_pixel),
        "ridge": Ridge(options.ridge, not options.plain_ridge),
        "execution": own.execution,
    }
    return Config(**{**plain, **objects})


def _augmentation(
    options: Options, own: Augmentation | None, raw: np.ndarray, fitted: Preprocess
) -> Callable[[np.ndarray, int], np.ndarray] | None:
    if own is None and options.augment == "none":
        return None
    from kip.data.augment import named  # here, since Numba takes long to import

    augment = own or named(options.augment or "none")
    assert augment is not None
    return lambda rows, seed: fitted.apply(augment(np.random.default_rng(seed), raw[rows]))


def _size_from(start: DistilledSet, size: int | None) -> int:
    if size is not None and size < len(start):
        raise ValueError(f"`size` must be at least the {len(start)} points of `start`; got {size}")
    return len(start) if size is None else size


def _check_start(start: DistilledSet, shape: tuple[int, ...], classes: tuple[Any, ...]) -> None:
    point = (*shape, 1) if len(shape) == 2 else shape
    if start.x.shape[1:] != point:
        raise ValueError(
            f"`start` has points of shape {start.x.shape[1:]}, the data of {point}; give a set of its kind"
        )
    unknown = [name for name in start.classes if name not in classes]
    if unknown:
        raise ValueError(f"`start` has the class {unknown[0]!r}, which the data do not have; add points of that class")


def _started(start: DistilledSet, fitted: Preprocess, classes: tuple[Any, ...], problem: Problem) -> LabelledSet:
    """The points of `start` as this task preprocesses points, with their labels for its classes."""
    if fitted == start.preprocess:
        x = start.x.astype(fitted.dtype)
    else:
        x = fitted.apply(rescale(start.images(), start.preprocess.scale, fitted.scale))
    y = np.full((len(start), len(classes)), -1.0 / len(classes), problem.train.y.dtype)
    y[:, [classes.index(name) for name in start.classes]] = start.y
    return LabelledSet(x, y)
