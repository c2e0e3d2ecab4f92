"""Networks trained on support sets: the second group of Tables 1 and 2, the transfer tables and the sweeps."""

from __future__ import annotations

import dataclasses

from kip.paper import published
from kip.paper.recipes import Cell, Recipe
from kip.paper.works import Kip, Natural, Network

SWEEPS = ("mnist-sweep-mse", "mnist-sweep-xent", "cifar10-sweep-mse", "cifar10-sweep-xent")
TRANSFERS = ("mnist-transfer", "cifar10-transfer")

FAMILY = "+".join([f"fc{m}:standard=1024" for m in (1, 2, 3)] + [f"conv{m}:standard=128" for m in (1, 2)])
"""The paper's kernels for sets that networks are trained on: FC of width 1024, Conv of width 128, standard."""

RATES = {"mnist": 0.01, "cifar10": 0.04}
AUGMENTATIONS = {"mnist": "digits", "cifar10": "photos"}
TRAINING = {"mnist": 60_000, "cifar10": 50_000}
AUGMENTED_BATCH = 5_000
FAMILY_BATCH = 500
FAMILY_STEPS = 1_000
"""The paper: batches of several hundred to several thousand for transfer; it does not say how many steps."""

SWEEP_WIDTH, SWEEP_RATE, SWEEP_BATCH = 4096, 4e-4, 128
SWEEP_STEPS = {1_000: 200, 5_000: 400, 10_000: 600}
TRANSFER_STEPS = 500
GRIDS = {"adam": (3e-4, 1e-3, 3e-3), "momentum": (1e-3, 1e-2, 1e-1)}
WIDE = "conv2-kip-100-rho0"
NETS = {"FC1": "fc1", "FC3": "fc3", "Conv2": "conv2", "LeNet": "lenet", "WideResNet": "wideresnet"}
WIDTHS = {"fc1": 1024, "fc3": 1024}
CONV2 = {
    "losses": ("mse",),
    "optimiser": "adam",
    "learning_rates": (1e-3,),
    "steps": 60,
    "width": 128,
    "watch": 500,
    "watch_every": 20,
    "seeds": (0, 1, 2),
}
"""A step of Conv2 with 512 channels takes a quarter of a minute on two cores, and a test many."""

WIDE_CONV2 = {**CONV2, "steps": 20, "width": 512, "watch": 100, "watch_every": 10, "seeds": (0,)}

GRID = "a grid of our own, chosen with one seed on training images (the paper does not print its grid)"
SMALLER_CONV2 = "128 channels instead of 512, one setting, 60 steps, three seeds"
SHORTER_CONV2 = "512 channels once: one setting, 20 steps, one seed"
STOPPED_ON_TRAINING = "stopped where the accuracy on training images was best (the paper: after a few hundred steps)"
SWEEP_TRAINING = "batches of 128 and 200 to 600 steps (the paper gives neither)"
THREE_NETWORKS = "three networks instead of five"
ONE_LEARNING = "one learned set instead of several"


def recipes() -> list[Recipe]:
    """The transfer tables and the sweeps."""
    found = []
    for table in TRANSFERS:
        cells = [_transferred(number) for number in published.cells(table)]
        found.append(_recipe(table, cells + [_wide(cell) for cell in cells if cell.name == WIDE]))
    for table in SWEEPS:
        found.append(_recipe(table, [_swept(number) for number in published.cells(table)]))
    return found


def _recipe(table: str, cells: list[Cell]) -> Recipe:
    return Recipe(id=table, title=published.table(table).title, cells=tuple(cells))


def trained_on_family(number: published.Cell) -> Cell:
    """A network on images learned with FC1-3 and Conv1-2, as the paper's appendix says of Tables 1 and 2."""
    cell = _network(number, _of_family(number), "images learned with FC1-3 and Conv1-2, as the appendix says")
    return dataclasses.replace(cell, id=f"{number.id}-family")


def trained_on_fc1(number: published.Cell) -> Cell:
    """A network on images learned with FC1 alone, as the footnote of Table 1 says."""
    support = Kip(
        data=number.dataset,
        kernel="fc1",
        size=number.support,
        labels="fixed",
        augment="none",
        steps=2_000,
        batch=6_000,
        learning_rate=RATES[number.dataset],
        schedule="constant",
        seconds=600.0,
    )
    return _network(number, support, "images learned with FC1 alone, as the footnote says")


def _transferred(number: published.Cell) -> Cell:
    if number.method == "Natural":
        support = Natural(data=number.dataset, size=number.support, corruption=number.rho)
        return _network(number, support)
    return _network(number, _of_family(number))


def _wide(cell: Cell) -> Cell:
    """Conv2 with the paper's number of channels, trained as long as can be afforded."""
    assert isinstance(cell.work, Network)
    work = dataclasses.replace(cell.work, **WIDE_CONV2)  # type: ignore[arg-type]
    words = tuple(SHORTER_CONV2 if word == SMALLER_CONV2 else word for word in cell.deviations)
    return dataclasses.replace(cell, id=f"{cell.id}-512", work=work, deviations=words)


def _of_family(number: published.Cell) -> Kip:
    return Kip(
        data=number.dataset,
        kernel=FAMILY,
        size=number.support,
        labels="fixed",
        augment="none",
        steps=FAMILY_STEPS,
        batch=min(FAMILY_BATCH, TRAINING[number.dataset]),
        learning_rate=RATES[number.dataset],
        schedule="constant",
        corruption=number.rho,
        seconds=1200.0,
    )


def _network(number: published.Cell, support: Kip | Natural, *more: str) -> Cell:
    net = NETS[number.architecture]
    optimiser = "adam" if number.dataset == "mnist" else "momentum"
    work = Network(
        data=number.dataset,
        net=net,
        support=support,
        losses=("mse", "xent") if number.loss == "tuned" else ("xent",),
        optimiser=optimiser,
        learning_rates=GRIDS[optimiser],
        steps=TRANSFER_STEPS,
        width=WIDTHS.get(net),
        batch=None if number.support <= 500 else SWEEP_BATCH,
    )
    deviations = [*more, GRID, STOPPED_ON_TRAINING]
    if net == "conv2":
        work = dataclasses.replace(work, **CONV2)  # type: ignore[arg-type]
        deviations[deviations.index(GRID)] = SMALLER_CONV2
    if isinstance(support, Kip):
        deviations.append(ONE_LEARNING)
    return Cell(id=number.id, work=work, published=number.id, deviations=tuple(deviations))


def _swept(number: published.Cell) -> Cell:
    deviations = [SWEEP_TRAINING, STOPPED_ON_TRAINING, THREE_NETWORKS]
    if number.method == "Natural":
        support: Natural | Kip = Natural(data=number.dataset, size=number.support, corruption=number.rho)
    else:
        support = _augmented(number)
        deviations += [ONE_LEARNING, f"batches of {AUGMENTED_BATCH:,} instead of {_papers_batch(number):,}"]
    assert number.loss is not None
    work = Network(
        data=number.dataset,
        net="fc1",
        support=support,
        losses=(number.loss,),
        optimiser="adam",
        learning_rates=(SWEEP_RATE,),
        steps=SWEEP_STEPS[number.support],
        batch=SWEEP_BATCH,
        width=SWEEP_WIDTH,
        watch=2_000,
        watch_every=50,
        seeds=(0, 1, 2),
    )
    return Cell(id=number.id, work=work, published=number.id, deviations=tuple(deviations))


def _papers_batch(number: published.Cell) -> int:
    return TRAINING[number.dataset] // (2 if number.variant == "a" else 10)


def _augmented(number: published.Cell) -> Kip:
    learned = number.variant == "a + l"
    return Kip(
        data=number.dataset,
        kernel="fc1",
        size=number.support,
        labels="learned" if learned else "fixed",
        augment=AUGMENTATIONS[number.dataset],
        steps=2_000 if learned else 10_000,
        batch=AUGMENTED_BATCH,
        learning_rate=RATES[number.dataset],
        schedule="constant",
        corruption=number.rho,
        seconds=600.0 if number.dataset == "mnist" else 900.0,
    )
