"""Networks trained on natural or learned images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kip.corruption import Corruption
from kip.paper.running.base import Context, Result, kept
from kip.paper.running.data import Ready, ready
from kip.paper.works import Kip, Natural, Network, name
from kip.sampling import Stream
from kip.sets import LabelledSet

if TYPE_CHECKING:
    from kip.paper.running.learning import Learned


def run(work: Network, context: Context) -> Result:
    """Train the network from every seed; the step is chosen on training images, the test set scored there."""
    learned = _learned(work, context)
    outcome = kept(context.folder / name(work), lambda: _run(work, learned, context))
    deviations: tuple[str, ...] = ()
    if learned is not None and learned.stopped == "time":
        wanted = learned.task.config.steps
        deviations = (f"images after {learned.steps:,} of {wanted:,} steps",)
    details = {"chosen_step": outcome["chosen_step"], "images_seconds": 0 if learned is None else learned.seconds}
    return Result(tuple(outcome["accuracies"]), outcome["seconds"], deviations, details)


def _learned(work: Network, context: Context) -> Learned | None:
    if not isinstance(work.support, Kip):
        return None
    from kip.paper.running import learning

    return learning.learn(work.support, work.support.seeds[0], context)


def _run(work: Network, learned: Learned | None, context: Context) -> dict[str, Any]:
    from kip.nets.training import Settings, train

    data = ready(context.load(work.data))
    support = natural(work.support, data) if isinstance(work.support, Natural) else _set(learned)
    settings = Settings(
        loss=work.loss,
        optimiser=work.optimiser,
        learning_rate=work.learning_rate,
        steps=work.steps,
        batch=work.batch,
        width=work.width,
        parameterisation=work.parameterisation,
    )
    watch = data.train.take(np.sort(data.draw(min(work.watch, len(data.train)), seed=0, stream=Stream.JUDGE)))
    trained = train(
        work.net,
        support,
        settings,
        seeds=work.seeds,
        watch=watch,
        watch_every=work.watch_every,
        test=data.test,
        stop=context.stop,
    )
    context.check()  # what was stopped half-way is not a result
    return {
        "accuracies": [float(value) for value in trained.test_accuracies],
        "chosen_step": np.asarray(trained.chosen_step).tolist(),
        "seconds": float(trained.seconds),
    }


def natural(support: Natural, data: Ready) -> LabelledSet:
    """A class-balanced sample of the training set, with ρ of each image's coordinates replaced by noise."""
    chosen = data.train.take(data.draw(support.size, seed=0))
    if support.corruption == 0:
        return chosen
    x, _ = Corruption(support.corruption).apply(chosen.x, key=0)
    return LabelledSet(x, chosen.y)


def _set(learned: Learned | None) -> LabelledSet:
    assert learned is not None
    small = learned.set()
    return LabelledSet(small.x, small.y)
