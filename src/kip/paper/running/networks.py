"""Networks trained on natural or learned images."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from kip.corruption import Corruption
from kip.krr import accuracy
from kip.paper.running.base import Context, Result, kept
from kip.paper.running.data import Ready, ready
from kip.paper.works import Kip, Natural, Network, name
from kip.sampling import Stream
from kip.sets import LabelledSet

if TYPE_CHECKING:
    from kip.nets.training import Settings, Trained
    from kip.paper.running.learning import Learned


def run(work: Network, context: Context) -> Result:
    """Train the network; the setting is chosen with the first seed, on training images, and the step with all."""
    learned = _learned(work, context)
    outcome = kept(context.folder / name(work), lambda: _run(work, learned, context))
    deviations: tuple[str, ...] = ()
    if learned is not None and learned.stopped == "time":
        wanted = learned.task.config.steps
        deviations = (f"images after {learned.steps:,} of {wanted:,} steps",)
    details = {"chosen": outcome["chosen"], "images_seconds": 0 if learned is None else learned.seconds}
    return Result(tuple(outcome["accuracies"]), outcome["seconds"], deviations, details)


def _learned(work: Network, context: Context) -> Learned | None:
    if not isinstance(work.support, Kip):
        return None
    from kip.paper.running import learning

    return learning.learn(work.support, work.support.seeds[0], context)


def _run(work: Network, learned: Learned | None, context: Context) -> dict[str, Any]:
    from kip.nets.training import train

    data = ready(context.load(work.data))
    support = natural(work.support, data) if isinstance(work.support, Natural) else _set(learned)
    watch = data.train.take(np.sort(data.draw(min(work.watch, len(data.train)), seed=0, stream=Stream.JUDGE)))
    seconds = 0.0

    def trained(settings: Settings, seeds: tuple[int, ...]) -> Trained:
        nonlocal seconds
        found = train(
            work.net, support, settings, seeds=seeds, watch=watch, watch_every=work.watch_every, stop=context.stop
        )
        context.check()  # what was stopped half-way is not a result
        share = 100 * found.validation_accuracy
        context.say(f"  {settings.loss}, rate {settings.learning_rate:g}: {share:.1f} % of training images")
        seconds += found.seconds
        return found

    settings = _settings(work)
    chosen = settings[0]
    if len(settings) > 1:
        chosen = max(settings, key=lambda each: trained(each, work.seeds[:1]).validation_accuracy)
    best = trained(chosen, work.seeds)
    return {
        "accuracies": [accuracy(outputs, data.test_codes) for outputs in best.predict(data.test.x)],
        "chosen": {"step": best.chosen_step, "loss": chosen.loss, "learning_rate": chosen.learning_rate},
        "seconds": seconds,
    }


def _settings(work: Network) -> list[Settings]:
    from kip.nets.training import Settings

    return [
        Settings(
            loss=loss,
            optimiser=work.optimiser,
            learning_rate=rate,
            steps=work.steps,
            batch=work.batch,
            width=work.width,
            parameterisation=work.parameterisation,
        )
        for loss, rate in itertools.product(work.losses, work.learning_rates)
    ]


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
