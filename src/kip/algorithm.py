"""Kernel Inducing Points, Algorithm 1: `init`, `draw`, `step` and `run` on a `State`.

`draw` samples a kernel, a batch of the support set and a class-balanced batch of targets; `step` takes the gradient of
eq. (loss) on that batch, and updates the support points, and where asked the labels and the kernel's hyper-parameters.
Labels can also be solved: for any support points the best ones are known in closed form.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import optax

from kip.corruption import Corruption
from kip.execution import DEFAULT, Execution
from kip.gradients import Gradients, gradients, solved_gradients
from kip.kernels.base import Kernel, Params, precision
from kip.krr import KernelRidge, Ridge, RidgeError
from kip.label_solver import solve_labels
from kip.options import Options
from kip.sampling import Stream, allocate, balanced, generator
from kip.sets import LabelledSet, Selection, check_points, check_targets, class_counts, one_hot
from kip.threads import blas_threads_for

LABEL_MODES = ("fixed", "learned", "solved")
INITS = ("image", "noise")

SOLVED_FACTOR = 5
"""`solved` needs this many targets per support point in a batch; with fewer, labels fit the batch, not the data."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What is distilled: preprocessed training points with label vectors, the class of each, and an augmentation.

    `augment(rows, seed)` gives the preprocessed, randomly augmented points of those rows; it is passed in so that this
    module knows neither raw pixels nor preprocessing.
    """

    train: LabelledSet
    codes: np.ndarray
    classes: int
    augment: Callable[[np.ndarray, int], np.ndarray] | None = None


@dataclass(frozen=True)
class Config:
    """How it is distilled. `batch` and `support_batch` None mean all of them; `optimiser` is any optax one."""

    kernels: tuple[Kernel, ...]
    size: int
    steps: int
    optimiser: optax.GradientTransformation
    labels: str = "learned"
    init: str = Options.init
    batch: int | None = None
    support_batch: int | None = None
    learn_kernel: bool = Options.learn_kernel
    corruption: Corruption = Corruption()
    ridge: Ridge = Ridge()
    damping: float = Options.damping
    evaluate_every: int = 50
    evaluate_targets: int = 10_000
    patience: int | None = None
    tolerance: float = 1e-3
    keep: int = 5
    execution: Execution = field(default=DEFAULT, compare=False)

    def __post_init__(self) -> None:
        if not self.kernels:
            raise ValueError("`kernels` is empty; give at least one kernel such as kip.kernel('rbf')")
        for name in ("size", "steps", "evaluate_every", "evaluate_targets", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1; got {getattr(self, name)}")
        for name in ("batch", "support_batch", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, or None; got {value}")
        _one_of("labels", self.labels, LABEL_MODES)
        _one_of("init", self.init, INITS)
        if not (np.isfinite(self.damping) and self.damping >= 0):
            raise ValueError(f"`damping` must be zero or positive; got {self.damping}")
        if self.learn_kernel and not jax.tree.leaves([kernel.params for kernel in self.kernels]):
            raise ValueError("`learn_kernel` needs a kernel with hyper-parameters; use 'rbf', or engine='jax'")

    def evaluation_size(self, targets: int) -> int:
        """How many of the training points checkpoints are evaluated on."""
        return min(targets, max(self.evaluate_targets, 2 * SOLVED_FACTOR * self.size))


def choose_labels(labels: str, *, size: int, batch: int | None, targets: int) -> str:
    """The label mode: "auto" solves where a batch has targets enough for it, and learns otherwise."""
    _one_of("labels", labels, ("auto", *LABEL_MODES))
    if labels != "auto":
        return labels
    return "solved" if min(batch or targets, targets) >= SOLVED_FACTOR * size else "learned"


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"`{name}` must be one of {', '.join(values)}; got {value!r}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A support set worth keeping, with its loss per target on the evaluation subset."""

    loss: float
    step: int
    x: np.ndarray
    y: np.ndarray
    log_params: tuple[Params, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class State:
    """Everything needed to continue to the bit, as a pytree.

    `y` are the labels in force: solved ones are those of the last evaluation. `best` are the checkpoints with the
    lowest training loss, `evaluated` the losses of all.
    """

    x: np.ndarray
    y: np.ndarray
    log_params: tuple[Params, ...]
    mask: np.ndarray | None
    opt_state: Any
    key: int
    step: int = 0
    best: tuple[Checkpoint, ...] = ()
    evaluated: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Batch:
    """What one step sees: which kernel of the family, the targets, and rows of the support set (None: all)."""

    kernel: int
    targets: LabelledSet | Selection
    support_rows: np.ndarray | None = None


@dataclass(frozen=True)
class Info:
    """What one step saw: the batch loss per target, which kernel, and the evaluation where there was one."""

    step: int
    loss: float
    kernel: str
    gradient_norm: float
    evaluated: float | None = None


SINGULAR = "K_ss of the learned points can no longer be inverted"


class DivergedError(ArithmeticError):
    """A loss or gradient was not finite; `state` is the last that was."""

    def __init__(self, state: State, reason: str = "the loss is not finite") -> None:
        super().__init__(
            f"{reason} at step {state.step}; lower the learning rate, or raise the ridge. "
            "The last finite support set was kept"
        )
        self.state = state


def init(problem: Problem, config: Config, *, key: int, start: LabelledSet | None = None) -> State:
    """Initialise (X_s, y_s), class-balanced: from training images, or from uniform noise with one-hot labels.

    Where there is a `start`, its points come first; new ones are drawn for the rest, so that classes are as equal as
    they can be.
    """
    _check(problem, config)
    rows = _draw_initial(problem, config, start, key=key)
    chosen = problem.train.take(rows)
    x, y = chosen.x.copy(), chosen.y.copy()
    if config.init == "noise":
        x = generator(key, Stream.INIT, 1).uniform(-1, 1, x.shape).astype(x.dtype)
        y = one_hot(problem.codes[rows], y.shape[1], y.dtype) if _is_one_hot(problem) else y
    if start is not None:
        x, y = np.concatenate([start.x, x]), np.concatenate([start.y, y])
    mask = None
    if config.corruption.rho > 0:
        x, mask = config.corruption.apply(x, key=key)
    log_params = tuple(jax.tree.map(_log, kernel.params) for kernel in config.kernels)
    state = State(x, y, log_params, mask, None, key)
    with precision(x.dtype):
        opt_state = config.optimiser.init(_variables(state, config))
    return replace(state, opt_state=opt_state)


def _draw_initial(problem: Problem, config: Config, start: LabelledSet | None, *, key: int) -> np.ndarray:
    """Rows of the training points to begin with, beside those of `start`."""
    rng = generator(key, Stream.INIT)
    if start is None:
        return balanced(problem.codes, problem.classes, config.size, key=rng)
    there = class_counts(np.argmax(start.y, axis=1), problem.classes)
    wanted = allocate(config.size - len(start), class_counts(problem.codes, problem.classes), there)
    drawn = [rng.permutation(np.flatnonzero(problem.codes == c))[:count] for c, count in enumerate(wanted)]
    return np.concatenate(drawn).astype(np.intp)


def _log(value: float) -> np.float32:
    # Positive hyper-parameters move in their logarithm; a zero one stays zero.
    return np.float32(np.log(value)) if value > 0 else np.float32(-np.inf)


def _is_one_hot(problem: Problem) -> bool:
    return problem.train.y.shape[1] == problem.classes


def _check(problem: Problem, config: Config) -> None:
    n = len(problem.train)
    if config.ridge.value == 0:
        raise ValueError("`ridge` must be positive for KIP: a pseudo-inverse has no gradient where the rank changes")
    check_points(problem.train.x, "train.x")
    check_targets(problem.train.y, n, "train.y")
    codes = np.asarray(problem.codes)
    if codes.shape != (n,) or codes.dtype.kind not in "iu":
        raise ValueError(f"`codes` must be {n} integers, one per point; got shape {codes.shape}, dtype {codes.dtype}")
    if codes.min() < 0 or codes.max() >= problem.classes:
        raise ValueError(
            f"`codes` must lie in 0 … {problem.classes - 1}, the classes; got {codes.min()} … {codes.max()}"
        )
    if config.size > n:
        raise ValueError(f"`size` must be at most the {n} training points; got {config.size}")
    if config.size < problem.classes:
        raise ValueError(
            f"`size` must be at least the {problem.classes} classes; got {config.size}. "
            f"Use size={problem.classes} or pass a subset of classes"
        )
    if config.batch is not None and config.batch > n:
        raise ValueError(f"`batch` must be at most the {n} training points; got {config.batch}")
    if config.support_batch is not None and config.support_batch > config.size:
        raise ValueError(f"`support_batch` must be at most `size` = {config.size}; got {config.support_batch}")


def _variables(state: State, config: Config) -> dict[str, Any]:
    variables: dict[str, Any] = {"x": state.x}
    if config.labels == "learned":
        variables["y"] = state.y
    if config.learn_kernel:
        variables["log_params"] = state.log_params
    return variables


def kernels_of(config: Config, log_params: tuple[Params, ...]) -> tuple[Kernel, ...]:
    """The family with its hyper-parameters as learned."""
    if not config.learn_kernel:
        return config.kernels
    pairs = zip(config.kernels, log_params, strict=True)
    return tuple(kernel.with_params(jax.tree.map(lambda v: float(np.exp(v)), p)) for kernel, p in pairs)


def draw(state: State, problem: Problem, config: Config) -> Batch:
    """What the next step sees; a function of the state's key and step alone."""
    which = int(generator(state.key, Stream.KERNEL, state.step).integers(len(config.kernels)))
    return Batch(which, draw_targets(problem, config, key=state.key, step=state.step), _draw_support(state, config))


def draw_targets(problem: Problem, config: Config, *, key: int, step: int) -> LabelledSet | Selection:
    """A class-balanced batch of targets, augmented; all of them, as they are, where neither is asked for."""
    n, rows = len(problem.train), None
    if config.batch is not None and config.batch < n:
        rows = balanced(problem.codes, problem.classes, config.batch, key=generator(key, Stream.TARGET, step))
    if problem.augment is None:
        return Selection(problem.train, rows)
    rows = np.arange(n) if rows is None else rows
    seed = int(generator(key, Stream.AUGMENT, step).integers(2**31))
    return LabelledSet(problem.augment(rows, seed), problem.train.y[rows])


def _draw_support(state: State, config: Config) -> np.ndarray | None:
    if config.support_batch is None or config.support_batch == config.size:
        return None
    codes = np.argmax(state.y, axis=1)
    rng = generator(state.key, Stream.SUPPORT, state.step)
    return balanced(codes, state.y.shape[1], config.support_batch, key=rng)


def step(state: State, batch: Batch, config: Config) -> tuple[State, Info]:
    """One iteration of Algorithm 1 on a batch."""
    kernel = kernels_of(config, state.log_params)[batch.kernel].at(key=state.key, step=state.step)
    try:
        with blas_threads_for(config.size):
            found = _gradients(kernel, state, batch, config)
    except RidgeError:
        if state.step == 0:  # what was given is at fault, not what was learned
            raise
        raise DivergedError(state, SINGULAR) from None
    norm = float(np.sqrt(np.sum(np.square(found.x, dtype=np.float64))))
    if not (np.isfinite(found.loss) and np.isfinite(norm)):
        raise DivergedError(state)
    moved = _update(state, found, batch, config)
    if not (np.isfinite(moved.x).all() and np.isfinite(moved.y).all()):
        raise DivergedError(state)
    return moved, Info(moved.step, found.loss_per_target, kernel.spec, norm)


def _gradients(kernel: Kernel, state: State, batch: Batch, config: Config) -> Gradients:
    rows = slice(None) if batch.support_rows is None else batch.support_rows
    x, y = state.x[rows], state.y[rows]
    kernel = kernel if config.learn_kernel else kernel.frozen()
    if config.labels == "solved":
        return solved_gradients(kernel, x, batch.targets, config.ridge, config.damping, config.execution)
    return gradients(kernel, LabelledSet(x, y), batch.targets, config.ridge, config.execution)


def _update(state: State, found: Gradients, batch: Batch, config: Config) -> State:
    variables, rows = _variables(state, config), batch.support_rows
    grads: dict[str, Any] = {"x": _scatter(found.x, state.x, rows)}
    if "y" in variables:
        assert found.y is not None
        grads["y"] = _scatter(found.y, state.y, rows)
    if "log_params" in variables:
        grads["log_params"] = _log_gradients(state.log_params, found.params, batch.kernel)
    with precision(state.x.dtype):
        moved, opt_state = _optimise(config.optimiser, *jax.device_put((grads, state.opt_state, variables)))
    x = _settle(moved["x"], state.x, rows, state.mask)
    y = _settle(moved["y"], state.y, rows, None) if "y" in moved else state.y
    log_params = jax.tree.map(np.asarray, moved.get("log_params", state.log_params))
    return replace(state, x=x, y=y, log_params=log_params, opt_state=opt_state, step=state.step + 1)


@functools.partial(jax.jit, static_argnums=0)
def _optimise(optimiser: optax.GradientTransformation, grads: Any, opt_state: Any, variables: Any) -> tuple[Any, Any]:
    updates, opt_state = optimiser.update(grads, opt_state, variables)
    return optax.apply_updates(variables, updates), opt_state


def _scatter(gradient: np.ndarray, like: np.ndarray, rows: np.ndarray | None) -> np.ndarray:
    if rows is None:
        return gradient.astype(like.dtype)
    whole = np.zeros_like(like)
    whole[rows] = gradient
    return whole


def _settle(moved: Any, before: np.ndarray, rows: np.ndarray | None, mask: np.ndarray | None) -> np.ndarray:
    """What was learned, where learning was allowed: sampled rows, and coordinates that are not corrupted."""
    after = np.array(moved)
    if rows is not None:
        still = np.ones(len(before), bool)
        still[rows] = False
        after[still] = before[still]
    if mask is not None:
        after[mask] = before[mask]
    return after


def _log_gradients(log_params: tuple[Params, ...], found: Params, which: int) -> tuple[Params, ...]:
    """∂L/∂log θ = θ ∂L/∂θ for the kernel that was sampled, 0 for the others."""

    def chain(log_value: np.ndarray, gradient: float) -> np.float32:
        return np.float32(np.exp(log_value) * gradient)

    zeros = (jax.tree.map(lambda v: np.zeros_like(v), p) for p in log_params)
    return tuple(
        jax.tree.map(chain, p, found) if i == which else zero
        for i, (p, zero) in enumerate(zip(log_params, zeros, strict=True))
    )


def evaluation_set(problem: Problem, config: Config, *, key: int) -> LabelledSet:
    """The one fixed, unaugmented subset of the training set on which checkpoints are compared."""
    n = len(problem.train)
    wanted = config.evaluation_size(n)
    if wanted == n:
        return problem.train
    return problem.train.take(balanced(problem.codes, problem.classes, wanted, key=generator(key, Stream.EVALUATE)))


def evaluate(state: State, config: Config, subset: LabelledSet) -> Checkpoint:
    """The support set as it would be published, with its loss per target averaged over the family."""
    kernels, y = kernels_of(config, state.log_params), state.y
    solution = None
    if config.labels == "solved":
        solution = solve_labels(kernels, state.x, subset, config.ridge, execution=config.execution)
        y = solution.y.astype(y.dtype)
    model = KernelRidge(kernels, LabelledSet(state.x, y), config.ridge, config.execution)
    # What is evaluated is what is published: the solve's own loss holds only while rounding does not show.
    loss = model.loss(subset) if solution is None or model.needs_float64 else solution.loss
    return Checkpoint(loss, state.step, state.x, y, state.log_params)


def iterate(problem: Problem, config: Config, state: State) -> Iterator[tuple[State, Info]]:
    """Steps with their evaluations, until the configured steps are done or the training loss no longer falls."""
    subset = evaluation_set(problem, config, key=state.key)
    while state.step < config.steps and not _plateau(state, config):
        moved, info = step(state, draw(state, problem, config), config)
        if moved.step % config.evaluate_every == 0 or moved.step == config.steps:
            try:
                moved, info = _evaluated(moved, info, config, subset)
            except RidgeError:  # the step led to points that cannot be inverted; those before it could
                raise DivergedError(state, SINGULAR) from None
        state = moved
        yield state, info


def _evaluated(state: State, info: Info, config: Config, subset: LabelledSet) -> tuple[State, Info]:
    checkpoint = evaluate(state, config, subset)
    best = tuple(sorted((*state.best, checkpoint), key=lambda c: (c.loss, c.step))[: config.keep])
    state = replace(state, y=checkpoint.y, best=best, evaluated=(*state.evaluated, checkpoint.loss))
    return state, replace(info, evaluated=checkpoint.loss)


def _plateau(state: State, config: Config) -> bool:
    if config.patience is None or len(state.evaluated) <= config.patience:
        return False
    before, recent = min(state.evaluated[: -config.patience]), min(state.evaluated[-config.patience :])
    return recent > before * (1 - config.tolerance)


def run(
    problem: Problem,
    config: Config,
    state: State,
    *,
    callback: Callable[[State, Info], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> State:
    """Iterate until done, on a plateau, or when `stop()` says so (a time budget, an interrupt), and `finish`.

    `callback` sees every state with its Info.
    """
    for state, info in iterate(problem, config, state):  # noqa: B020  (the name is carried on)
        if callback is not None:
            callback(state, info)
        if stop is not None and stop():
            break
    return finish(problem, config, state)


def finish(problem: Problem, config: Config, state: State) -> State:
    """The state with its support set evaluated, where the schedule has not done so; `best[0]` is the result."""
    if state.best and (state.step % config.evaluate_every == 0 or state.step >= config.steps):
        return state
    subset = evaluation_set(problem, config, key=state.key)
    try:
        return _evaluated(state, Info(state.step, float("nan"), "", 0.0), config, subset)[0]
    except RidgeError:
        if state.best:
            return state
        raise DivergedError(state, SINGULAR) from None


def publish(checkpoint: Checkpoint, problem: Problem, config: Config) -> LabelledSet:
    """The distilled set of a checkpoint: its points, with labels solved on the whole training set in that mode."""
    n = len(problem.train)
    # Where all of the training set is evaluated, a checkpoint has these labels: at 10,000 points they take minutes.
    if config.labels != "solved" or config.evaluation_size(n) == n:
        return LabelledSet(checkpoint.x, checkpoint.y)
    kernels = kernels_of(config, checkpoint.log_params)
    solution = solve_labels(kernels, checkpoint.x, problem.train, config.ridge, execution=config.execution)
    return LabelledSet(checkpoint.x, solution.y.astype(checkpoint.y.dtype))


def adam(learning_rate: float, steps: int, *, decay: bool = True) -> optax.GradientTransformation:
    """Adam with the rate decayed to zero along a cosine, or constant as in the paper."""
    return optax.adam(optax.cosine_decay_schedule(learning_rate, steps) if decay else learning_rate)
