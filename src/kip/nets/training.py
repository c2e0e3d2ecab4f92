"""Training networks on small sets: several seeds at once, watched on a validation set, scored on a test set.

As the paper's "Experiment Details" have it: mean-square loss on mean-centred labels or softmax cross-entropy, Adam or
momentum 0.9, L2, a constant rate or a schedule. The paper stops after "a few hundred iterations, after which optimal
test performance was achieved"; here the step is the one with the best validation accuracy, or the last.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from kip.data import augment as augmentation
from kip.nets.batches import SOFT_LABELS, Batches, checked, targets
from kip.nets.models import Factory, build, check, has_read_out, silenced
from kip.sets import LabelledSet

LOSSES = ("mse", "xent")
OPTIMISERS = ("adam", "momentum")
SCHEDULES = ("constant", "cosine")
READ_OUTS = ("auto", "zero", "drawn")

MOMENTUM = 0.9
PREDICTION_BYTES = 2**26
"""Memory that the largest activation of a tile of points may take when they are predicted."""

_PROBE = 61
"""Points with which a network is traced to see how large its activations are: a number that is no width."""


@dataclass(frozen=True)
class Settings:
    """How a network is trained.

    `l2` is μ of ½μ‖θ‖², added to the loss. `batch` None means all points each step. `augment` names an augmentation of
    `kip.data.augment`. `soft_labels` says what cross-entropy makes of labels that are not one-hot (which become one-hot
    in any case): "argmax" the one-hot of their largest entry, "clip" what is positive of y + 1/C, scaled to sum to one,
    "softmax" their softmax. Under mean-square loss labels are used as they are. `read_out` says how the last layer
    starts: "drawn" as the parameterisation has it, "zero", or "auto": zero under mean-square loss, where the outputs
    of a fresh network, which are larger than the labels, would stay as noise wherever few points pull at them.
    """

    loss: str = "xent"
    optimiser: str = "adam"
    learning_rate: float = 1e-3
    l2: float = 0.0
    schedule: str = "constant"
    steps: int = 500
    batch: int | None = None
    augment: str | None = None
    width: int | None = None
    parameterisation: str = "standard"
    soft_labels: str = "argmax"
    read_out: str = "auto"

    def __post_init__(self) -> None:
        _one_of("loss", self.loss, LOSSES)
        _one_of("optimiser", self.optimiser, OPTIMISERS)
        _one_of("schedule", self.schedule, SCHEDULES)
        _one_of("soft_labels", self.soft_labels, SOFT_LABELS)
        _one_of("read_out", self.read_out, READ_OUTS)
        if not (math.isfinite(self.learning_rate) and self.learning_rate > 0):
            raise ValueError(f"`learning_rate` must be positive; got {self.learning_rate}")
        if not (math.isfinite(self.l2) and self.l2 >= 0):
            raise ValueError(f"`l2` must be zero or positive; got {self.l2}")
        if self.steps < 1 or (self.batch is not None and self.batch < 1):
            raise ValueError(f"`steps` and `batch` must be at least 1; got {self.steps} and {self.batch}")
        augmentation.named(self.augment or "none")

    @property
    def silent(self) -> bool:
        """Whether the network starts as the zero function."""
        return self.read_out == "zero" or (self.read_out == "auto" and self.loss == "mse")


def _one_of(name: str, value: str, values: tuple[str, ...]) -> None:
    if value not in values:
        raise ValueError(f"`{name}` must be one of {', '.join(values)}; got {value!r}")


@dataclass(frozen=True)
class Trained:
    """What training came to: the networks of all seeds at `chosen_step`, and their accuracies.

    `watch` holds (step, validation accuracy of each seed). `chosen_step` is the same for all seeds: the first with the
    best mean validation accuracy; without a validation set, the last.
    """

    test_accuracies: tuple[float, ...]
    watch: tuple[tuple[int, tuple[float, ...]], ...]
    chosen_step: int
    seconds: float
    _networks: Networks | None = field(repr=False)

    @property
    def mean(self) -> float:
        """Mean test accuracy over the seeds; NaN where nothing was tested."""
        return float(np.mean(self.test_accuracies)) if self.test_accuracies else math.nan

    @property
    def std(self) -> float:
        """Standard deviation of the test accuracy over the seeds; 0 for a single one."""
        return float(np.std(self.test_accuracies, ddof=1)) if len(self.test_accuracies) > 1 else 0.0

    @property
    def validation_accuracy(self) -> float:
        """Mean validation accuracy over the seeds at the chosen step; NaN where nothing was watched."""
        return next((float(np.mean(each)) for step, each in self.watch if step == self.chosen_step), math.nan)

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Outputs of each seed's network at preprocessed points: (seeds, n, classes)."""
        if self._networks is None:
            raise ValueError("these networks were not kept, only their scores; `train` them anew")
        return self._networks.predict(x)

    def scores(self) -> Trained:
        """The same without the networks, of which a grid would hold gigabytes."""
        return dataclasses.replace(self, _networks=None)


@dataclass(frozen=True, eq=False)
class Networks:
    """One architecture with the variables of several seeds: one part per seed, or all in one, stacked."""

    training: Any
    testing: Any
    parts: tuple[Variables, ...]
    together: bool

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Outputs (seeds, n, classes), tile by tile; batch norm sees a tile at a time.

        Points are visited in a fixed random order: data often come sorted by class, and the statistics of a tile with
        few classes are not those that batch norm saw in training.
        """
        order = np.random.default_rng(0).permutation(len(x))
        points = np.asarray(x, np.float32)[order]
        tile = min(len(points), self._tile(points.shape[1:]))
        outputs: list[np.ndarray] = []
        for start in range(0, len(points), tile):
            # The last tile reaches back, so that all have one shape and hold nothing but points.
            first = min(start, len(points) - tile)
            inputs = jnp.asarray(points[first : first + tile])
            found = [_outputs(self.testing, self.together, part.params, part.rest, inputs) for part in self.parts]
            joined = np.asarray(found[0]) if self.together else np.stack(found)
            outputs.append(joined[:, start - first :])
        return np.concatenate(outputs, axis=1)[:, np.argsort(order)]

    def accuracies(self, points: LabelledSet) -> tuple[float, ...]:
        """Accuracy of each seed."""
        hits = np.argmax(self.predict(points.x), axis=2) == points.codes
        return tuple(hits.mean(axis=1).tolist())

    def copied(self) -> Networks:
        """These networks as they are, for predictions only: a step overwrites those that it is given."""
        kept = [jax.tree.map(jnp.copy, (part.params, part.rest)) for part in self.parts]
        return dataclasses.replace(self, parts=tuple(Variables(params, rest, None) for params, rest in kept))

    def _tile(self, shape: tuple[int, ...]) -> int:
        part = self.parts[0]
        largest, seeds = _activations(self.testing, self.together, part.params, part.rest, shape)
        return max(1, PREDICTION_BYTES // (4 * largest * seeds))


class Variables(NamedTuple):
    """What a network learns, whatever else its variables hold, and the optimiser's memory."""

    params: Any
    rest: Any
    moments: Any


def _activations(graph: Any, stacked: bool, params: Any, rest: Any, shape: tuple[int, ...]) -> tuple[int, int]:
    """Numbers that the largest activation of one point has, and how many seeds are stacked."""
    seeds = len(jax.tree.leaves(params)[0]) if stacked else 1
    if stacked:
        params, rest = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), (params, rest))
    points = jax.ShapeDtypeStruct((_PROBE, *shape), jnp.float32)
    traced = jax.make_jaxpr(lambda params, rest, x: nnx.merge(graph, params, rest)(x))(params, rest, points)
    shapes = [getattr(v.aval, "shape", ()) for equation in traced.eqns for v in equation.outvars]
    sizes = [math.prod(found[1:]) for found in shapes if found[:1] == (_PROBE,)]
    return max([*sizes, math.prod(shape)]), seeds


def train(
    net: str | Factory,
    support: LabelledSet | Sequence[LabelledSet],
    settings: Settings,
    *,
    seeds: Sequence[int] = range(5),
    watch: LabelledSet | None = None,
    watch_every: int = 25,
    patience: int | None = None,
    test: LabelledSet | None = None,
    progress: Callable[[int, float | None], None] | None = None,
    stop: Callable[[], bool] | None = None,
    together: bool | None = None,
) -> Trained:
    """Train `net` on `support` from each of `seeds`, and score the networks of the chosen step on `test`.

    Several `support` sets, of one shape, are trained on by a seed each. `progress(step, validation accuracy)` is
    called, and `stop()` asked, every `watch_every` steps; a network that is stopped is scored as it stands. `patience`
    is how many steps may go by without a better validation accuracy, None as many as there are. `together`
    is whether seeds are vmapped or trained in turn by one compiled program: None takes what is faster.
    """
    started = time.monotonic()
    sets = checked(support, len(seeds))
    shape, classes = sets[0].x.shape[1:], sets[0].y.shape[1]
    networks = _initial(net, shape, classes, settings, tuple(seeds), together)
    form = _Form(settings.loss, settings.optimiser, networks.together)
    sets = [LabelledSet(each.x, targets(each.y, settings.loss, settings.soft_labels)) for each in sets]
    chosen = augmentation.named(settings.augment or "none")
    batches = Batches(sets, tuple(seeds), settings.batch, chosen, networks.together)
    best, best_step, step = networks, 0, 0
    highest = -1.0
    watched: list[tuple[int, tuple[float, ...]]] = []
    while step < settings.steps:
        until = min(step + watch_every, settings.steps)
        networks, losses = _advanced(networks, form, batches, settings, range(step, until))
        step = until
        accuracy = None
        if watch is not None:
            watched.append((step, networks.accuracies(watch)))
            accuracy = float(np.mean(watched[-1][1]))
        if accuracy is None:
            best, best_step = networks, step
        elif accuracy > highest:
            best, best_step, highest = networks.copied(), step, accuracy
        if progress is not None:
            progress(step, accuracy)
        # a network that has diverged learns no more
        if (stop is not None and stop()) or not np.isfinite(losses).any():
            break
        if patience is not None and step - best_step >= patience:
            break
    scores = () if test is None else best.accuracies(test)
    return Trained(scores, tuple(watched), best_step, time.monotonic() - started, best)


@dataclass(frozen=True)
class _Form:
    """What a training step is compiled for, beside the network and the shapes."""

    loss: str
    optimiser: str
    together: bool


def _initial(
    net: str | Factory,
    shape: tuple[int, ...],
    classes: int,
    settings: Settings,
    seeds: tuple[int, ...],
    together: bool | None,
) -> Networks:
    abstract = outlined(net, shape, classes, settings)
    training = nnx.split(_in_mode(abstract, True), nnx.Param, ...)[0]
    testing = nnx.split(_in_mode(abstract, False), nnx.Param, ...)[0]
    start = _Start(shape, classes, settings.width, settings.parameterisation, settings.silent, settings.optimiser)
    drawn = _drawn(net, start, np.array(seeds))
    if together is None:
        together = jax.default_backend() != "cpu"
    parts = (drawn,) if together else tuple(jax.tree.map(lambda leaf, i=i: leaf[i], drawn) for i in range(len(seeds)))
    return Networks(training, testing, parts, together)


def outlined(net: str | Factory, shape: tuple[int, ...], classes: int, settings: Settings) -> nnx.Module:
    """The network's form without weights; every complaint about it is made here, before anything is computed."""
    make = partial(build, net, shape, classes, width=settings.width, parameterisation=settings.parameterisation)
    abstract = nnx.eval_shape(lambda: make(seed=0))
    if settings.read_out == "zero" and not has_read_out(abstract):
        raise ValueError("`read_out` is 'zero', but the network has no layer of that name; name its last layer so")
    check(net, shape, classes)
    return abstract


def _in_mode(model: nnx.Module, training: bool) -> nnx.Module:
    """The module switched to training or testing, which matters to dropout and to batch norm that remembers."""
    (model.train if training else model.eval)()
    return model


@dataclass(frozen=True)
class _Start:
    """What fresh networks are compiled for, beside their architecture."""

    shape: tuple[int, ...]
    classes: int
    width: int | None
    parameterisation: str
    silent: bool
    optimiser: str


@partial(jax.jit, static_argnames=("net", "start"))
def _drawn(net: str | Factory, start: _Start, seeds: jax.Array) -> Variables:
    """The variables of fresh networks, stacked over the seeds, in one compilation."""

    def one(seed: Any) -> Variables:
        model = build(
            net, start.shape, start.classes, seed=seed, width=start.width, parameterisation=start.parameterisation
        )
        model = silenced(model) if start.silent else model
        params, rest = nnx.state(model, nnx.Param), nnx.state(model, nnx.Not(nnx.Param))
        return Variables(params, rest, _moments(start.optimiser).init(params))

    return jax.vmap(one)(seeds)


def _moments(optimiser: str) -> optax.GradientTransformation:
    return optax.scale_by_adam() if optimiser == "adam" else optax.trace(MOMENTUM)


def _rate(settings: Settings, step: int) -> float:
    decayed = 0.5 * (1 + math.cos(math.pi * step / settings.steps))
    return settings.learning_rate * (decayed if settings.schedule == "cosine" else 1.0)


def _advanced(
    networks: Networks, form: _Form, batches: Batches, settings: Settings, steps: range
) -> tuple[Networks, np.ndarray]:
    """The networks after some steps, and the last loss of each seed."""
    parts, losses = [], []
    for number, start in enumerate(networks.parts):
        part, loss = start, None
        for step in steps:
            x, y = batches.of(number, step)
            part, loss = _step(networks.training, form, part, x, y, _rate(settings, step), settings.l2)
        parts.append(part)
        losses.append(np.atleast_1d(np.asarray(loss)))
    return dataclasses.replace(networks, parts=tuple(parts)), np.concatenate(losses)


# The part is donated: of wide networks, memory for new weights and moments takes a third of a step.
@partial(jax.jit, static_argnames=("graph", "form"), donate_argnames=("part",))
def _step(
    graph: Any, form: _Form, part: Variables, x: jax.Array, y: jax.Array, rate: float, l2: float
) -> tuple[Variables, jax.Array]:
    """One step of a part of the networks; compiled alone, since XLA's convolutions on CPUs are slow inside a scan."""

    def one(part: Variables, x: jax.Array, y: jax.Array) -> tuple[Variables, jax.Array]:
        (loss, rest), grads = jax.value_and_grad(_loss, has_aux=True)(
            part.params, part.rest, graph, form.loss, x, y, l2
        )
        updates, moments = _moments(form.optimiser).update(grads, part.moments, part.params)
        params = jax.tree.map(lambda p, u: p - rate * u, part.params, updates)
        return Variables(params, rest, moments), loss

    if not form.together:
        return one(part, x, y)
    # A set that all seeds share stays one array, for whose products their weights are a single matrix.
    axis = 0 if y.ndim == 3 else None
    return jax.vmap(one, in_axes=(0, axis, axis))(part, x, y)


def _loss(
    params: Any, rest: Any, graph: Any, loss: str, x: jax.Array, y: jax.Array, l2: float
) -> tuple[jax.Array, Any]:
    """½‖f(x) − y‖² or the cross-entropy, per point, and ½μ‖θ‖²; beside it the variables that are not learned."""
    # Copied, since variables from outside the gradient, such as running averages, could not be written to in it.
    model = nnx.merge(graph, params, rest, copy=True)
    outputs = model(x)
    if loss == "mse":
        fit = 0.5 * jnp.mean(jnp.sum((outputs - y) ** 2, axis=1))
    else:
        fit = jnp.mean(optax.softmax_cross_entropy(outputs, y))
    decay = 0.5 * l2 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
    return fit + decay, nnx.state(model, nnx.Not(nnx.Param))


@partial(jax.jit, static_argnames=("graph", "together"))
def _outputs(graph: Any, together: bool, params: Any, rest: Any, x: jax.Array) -> jax.Array:
    def one(params: Any, rest: Any) -> jax.Array:
        return nnx.merge(graph, params, rest)(x)

    return jax.vmap(one)(params, rest) if together else one(params, rest)
