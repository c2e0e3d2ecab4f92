"""Networks trained on natural or learned images."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kip.corruption import Corruption
from kip.krr import accuracy
from kip.paper.running.base import Context, Result, kept, most_cores
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
    folder = context.folder / name(work)
    outcome = kept(folder, lambda: _run(work, learned, folder, context))
    deviations = () if learned is None else learned.deviations
    details: dict[str, Any] = {"chosen": outcome["chosen"]}
    if learned is not None:
        details |= {"images_seconds": learned.seconds, "images_steps": learned.steps}
    return Result(tuple(outcome["accuracies"]), outcome["seconds"], deviations, details, most_cores([outcome]))


def _learned(work: Network, context: Context) -> Learned | None:
    if not isinstance(work.support, Kip):
        return None
    from kip.paper.running import learning

    return learning.learn(work.support, work.support.seeds[0], context)


def _run(work: Network, learned: Learned | None, folder: Path, context: Context) -> dict[str, Any]:
    from kip.nets.training import train

    data = ready(context.load(work.data))
    watch = data.train.take(np.sort(data.draw(min(work.watch, len(data.train)), seed=0, stream=Stream.EVALUATE)))

    def trained(settings: Settings, seeds: tuple[int, ...], draw: int) -> Trained:
        found = train(
            work.net,
            natural(work.support, data, draw) if isinstance(work.support, Natural) else _set(learned),
            settings,
            seeds=seeds,
            watch=watch,
            watch_every=work.watch_every,
            patience=work.patience,
            stop=context.stop,
        )
        context.check()  # what was stopped half-way is not a result
        share = 100 * found.validation_accuracy
        context.say(f"  {_words(settings)}: {share:.1f} % of training images")
        return found

    def tried(settings: Settings) -> dict[str, Any]:
        """What one seed comes to; kept, so that a killed grid continues."""
        found = trained(settings, work.seeds[:1], draw=0)
        return {"watched": found.validation_accuracy, "seconds": found.seconds}

    settings = _settings(work)
    grid = {}
    if len(settings) > 1:
        for each in settings:
            grid[each] = kept(folder / _trial(each), functools.partial(tried, each))
    chosen = max(grid, key=lambda each: grid[each]["watched"], default=settings[0])
    best = [trained(chosen, seeds, draw) for draw, seeds in _draws(work)]
    return {
        "accuracies": [
            accuracy(outputs, data.test_codes) for networks in best for outputs in networks.predict(data.test.x)
        ],
        "chosen": {
            "step": [networks.chosen_step for networks in best] if len(best) > 1 else best[0].chosen_step,
            "loss": chosen.loss,
            "learning_rate": chosen.learning_rate,
            **({"read_out": chosen.read_out} if chosen.read_out != "auto" else {}),
        },
        "seconds": sum(networks.seconds for networks in best) + sum(each["seconds"] for each in grid.values()),
    }


def _draws(work: Network) -> list[tuple[int, tuple[int, ...]]]:
    """Which draw of the support set each seed's network is trained on: seeds with the same draw train together."""
    if isinstance(work.support, Natural) and work.support.redrawn:
        return [(seed, (seed,)) for seed in work.seeds]
    return [(0, work.seeds)]


def _words(settings: Settings) -> str:
    read_out = "" if settings.read_out == "auto" else f", last layer {settings.read_out}"
    return f"{settings.loss}, rate {settings.learning_rate:g}{read_out}"


def _trial(settings: Settings) -> str:
    """The folder of a trial within the grid."""
    read_out = "" if settings.read_out == "auto" else f"-{settings.read_out}"
    return f"{settings.loss}-{settings.learning_rate:g}{read_out}"


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
            read_out=read_out,
        )
        for loss, rate, read_out in itertools.product(work.losses, work.learning_rates, work.read_outs)
    ]


def natural(support: Natural, data: Ready, draw: int = 0) -> LabelledSet:
    """A class-balanced sample of the training set, with ρ of each image's coordinates replaced by noise."""
    chosen = data.train.take(data.draw(support.size, seed=draw))
    if support.corruption == 0:
        return chosen
    x, _ = Corruption(support.corruption).apply(chosen.x, key=draw)
    return LabelledSet(x, chosen.y)


def _set(learned: Learned | None) -> LabelledSet:
    assert learned is not None
    small = learned.set()
    return LabelledSet(small.x, small.y)
