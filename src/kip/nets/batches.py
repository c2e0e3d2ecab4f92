"""What a training step sees: all points or a batch of them, augmented or not, and what the loss compares with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kip.data.augment import Augment
from kip.sampling import Stream, generator
from kip.sets import LabelledSet, check_points, check_targets, one_hot

SOFT_LABELS = ("argmax", "clip", "softmax")


def targets(y: np.ndarray, loss: str, soft_labels: str = "argmax") -> np.ndarray:
    """What a loss compares outputs with: labels as they are under "mse", and probabilities under "xent"."""
    y = np.asarray(y, np.float32)
    if loss == "mse":
        return y
    classes = y.shape[1]
    hard = one_hot(np.argmax(y, axis=1), classes) + np.float32(1 / classes)
    raised = y + np.float32(1 / classes)
    if soft_labels == "argmax" or np.allclose(raised, hard, atol=1e-4):
        return hard
    if soft_labels == "clip":
        positive = np.maximum(raised, 0)
        total = positive.sum(axis=1, keepdims=True)
        return np.where(total > 0, positive / np.maximum(total, np.finfo(np.float32).tiny), hard)
    return np.asarray(jax.nn.softmax(y, axis=1))


def checked(support: LabelledSet | Sequence[LabelledSet], seeds: int) -> list[LabelledSet]:
    """One set, or as many as there are seeds, all of one shape."""
    if seeds < 1:
        raise ValueError("`seeds` is empty; give at least one")
    sets = [support] if isinstance(support, LabelledSet) else list(support)
    if not isinstance(support, LabelledSet) and len(sets) != seeds:
        raise ValueError(f"`support` must be one set, or one per seed; got {len(sets)} sets for {seeds} seeds")
    for each in sets:
        check_points(each.x, "support.x")
        check_targets(each.y, len(each), "support.y")
        if each.x.shape != sets[0].x.shape:
            raise ValueError(f"`support` sets must have one shape; got {sets[0].x.shape} and {each.x.shape}")
    return sets


@dataclass(eq=False)
class Batches:
    """The batches of all seeds, functions of the network's own seed and the step alone.

    `sets` are one, or one per seed, with y as the loss wants it. `stacked` gives all seeds at once, with a leading axis
    unless they share one set and see all of it.
    """

    sets: Sequence[LabelledSet]
    seeds: tuple[int, ...]
    batch: int | None
    augment: Augment | None
    stacked: bool
    _passes: dict[int, tuple[int, np.ndarray]] = field(default_factory=dict)
    _kept: dict[int, tuple[jax.Array, jax.Array]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.batch is not None and self.batch >= len(self.sets[0]):
            self.batch = None

    def of(self, part: int, step: int) -> tuple[Any, Any]:
        """Points and targets of one step: of seed number `part`, or of all seeds where they are stacked."""
        if self.batch is None and self.augment is None:
            if part not in self._kept:
                self._kept[part] = self._whole(part)
            return self._kept[part]
        if not self.stacked:
            return self._drawn(part, step)
        each = [self._drawn(number, step) for number in range(len(self.seeds))]
        return np.stack([x for x, _ in each]), np.stack([y for _, y in each])

    def _whole(self, part: int) -> tuple[jax.Array, jax.Array]:
        """All points, on the device once and for all; a set that is shared is there but once."""
        if len(self.sets) == 1:
            shared = self._kept.get(0)
            return shared or (jnp.asarray(self.sets[0].x, jnp.float32), jnp.asarray(self.sets[0].y))
        if not self.stacked:
            return jnp.asarray(self.sets[part].x, jnp.float32), jnp.asarray(self.sets[part].y)
        return jnp.stack([jnp.asarray(s.x, jnp.float32) for s in self.sets]), jnp.stack([s.y for s in self.sets])

    def _drawn(self, part: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        points = self.sets[part if len(self.sets) > 1 else 0]
        seed = self.seeds[part]
        x, y = points.x, points.y
        if self.batch is not None:
            rows = self._rows(seed, step, len(points))
            x, y = x[rows], y[rows]
        if self.augment is not None:
            x = self.augment(generator(seed, Stream.AUGMENT, step), x)
        return np.asarray(x, np.float32), y

    def _rows(self, seed: int, step: int, points: int) -> np.ndarray:
        """Each pass over the points is a permutation; what does not fill a last batch is left out of that pass."""
        assert self.batch is not None
        number, place = divmod(step, points // self.batch)
        if self._passes.get(seed, (-1,))[0] != number:
            self._passes[seed] = (number, generator(seed, Stream.TRAINING, number).permutation(points))
        return self._passes[seed][1][place * self.batch : (place + 1) * self.batch]
