"""A small grid over rate, L2, parameterisation and loss, the same for every arm, chosen from on a validation set."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kip.nets.models import Factory, parameterised
from kip.nets.training import LOSSES, Settings, Trained, train
from kip.sets import LabelledSet

RATES = {
    ("adam", "standard"): (1e-3, 3e-4, 3e-3),
    ("adam", "ntk"): (3e-2, 1e-2, 1e-1),
    ("momentum", "standard"): (1e-1, 1e-2, 1e-3),
    ("momentum", "ntk"): (1e-1, 1e-2, 1.0),
}
"""By optimiser and parameterisation: a unit of NTK-parameterised weight is one of a standard one over √fan-in."""

L2 = (0.0, 1e-3)


@dataclass(frozen=True)
class Arm:
    """A set that a network is trained on: one for all seeds, or one per seed."""

    name: str
    supports: tuple[LabelledSet, ...]

    def support(self, seeds: int) -> LabelledSet | tuple[LabelledSet, ...]:
        """What the first `seeds` seeds train on."""
        return self.supports[0] if len(self.supports) == 1 else self.supports[:seeds]


@dataclass(frozen=True)
class Point:
    """A setting of the grid with what each arm came to."""

    settings: Settings
    arms: Mapping[str, Trained]


@dataclass(frozen=True)
class Examiner:
    """What trainings of one network share: its data to be watched and tested on, and who is told."""

    net: str | Factory
    watch: LabelledSet
    test: LabelledSet
    watch_every: int
    progress: Callable[[int, float | None], None] | None = None

    def __call__(self, arm: Arm, settings: Settings, seeds: Sequence[int]) -> Trained:
        """Train on an arm; the scores are kept, the networks are not."""
        found = train(
            self.net,
            arm.support(len(seeds)),
            settings,
            seeds=seeds,
            watch=self.watch,
            watch_every=self.watch_every,
            test=self.test,
            progress=self.progress,
        )
        return found.scores()


def settings_of(net: str | Factory, base: Settings, losses: Sequence[str] = LOSSES) -> list[Settings]:
    """The settings of the grid, `base` first, so that what a short budget leaves out is what matters least."""
    kinds = ("standard", "ntk") if parameterised(net) else ("standard",)
    found = [base]
    for l2, kind, loss in itertools.product(L2, kinds, losses):
        for rate in RATES[base.optimiser, kind]:
            found.append(dataclasses.replace(base, l2=l2, parameterisation=kind, loss=loss, learning_rate=rate))
    return list(dict.fromkeys(found))


def search(
    arms: Sequence[Arm],
    settings: Sequence[Settings],
    examine: Examiner,
    seeds: Sequence[int],
    *,
    late: Callable[[int], bool] | None = None,
) -> list[Point]:
    """Train every arm at every setting; where time runs out, every arm has seen the same settings, at least one.

    `late(points done)` is asked before each setting but the first.
    """
    points: list[Point] = []
    for setting in settings:
        if points and late is not None and late(len(points)):
            break
        points.append(Point(setting, {arm.name: examine(arm, setting, seeds) for arm in arms}))
    return points


def within(budget: float, last: float, clock: Callable[[], float]) -> Callable[[int], bool]:
    """A `late` for `search`: whether one more point, and then the last training, would end after `budget` seconds.

    `last` is how many points' time the training of what is chosen takes: all seeds over those of the grid. What a point
    takes is measured, not planned: how much of a grid is done in the end is not known before.
    """
    start = clock()

    def late(done: int) -> bool:
        spent = clock() - start
        return spent + spent / done * (1 + last) > budget

    return late


def best(points: Sequence[Point], arm: str) -> Settings:
    """The settings at which an arm has the best validation accuracy; the first of equals."""
    return max(points, key=lambda point: _or_zero(point.arms[arm].validation_accuracy)).settings


def _or_zero(value: float) -> float:
    return 0.0 if math.isnan(value) else value
