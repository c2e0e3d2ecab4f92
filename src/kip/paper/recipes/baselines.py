"""Tables 1 and 2: KIP, KIP (a + l) and Label Solve in the paper's setting, and KIP in ours beside the (a + l) row."""

from __future__ import annotations

import dataclasses

from kip.paper import published
from kip.paper.recipes import Cell, Recipe, unmeasured
from kip.paper.recipes.networks import (
    AUGMENTATIONS,
    AUGMENTED_BATCH,
    ONE_PIXEL,
    RATES,
    trained_on_family,
    trained_on_fc1,
)
from kip.paper.works import Kip, Solved

TABLES = ("mnist-baselines", "cifar10-baselines")

STEPS = 10_000
"""The paper: "We train KIP for 10-20k iterations"."""

BATCH = 6_000
PAPERS_BATCHES = {"mnist": "6,000", "cifar10": "all"}
"""The paper takes all 50,000 images of CIFAR-10 at every step; in minutes, smaller batches get much further."""

MINUTES, MINUTES_OF_SLOW, MINUTES_OF_LARGE = 5.0, 10.0, 30.0
"""Augmented photographs are slow: a hundred were still improving after five minutes."""

NOTEBOOK = "σ_b² = 1e-2, as in the paper's public notebook, instead of 1e-4"
LARGE = 5_000
"""From this many images on, a run has more minutes."""

STEPS_OF_LARGE = {5_000: 80, 10_000: 10}
"""Steps of ours there: a rate that decays must know how many there will be."""

EVALUATIONS_OF_LARGE = {10_000: 10}
"""Steps between evaluations there: an evaluation takes as long as two steps."""

ONE_SAMPLE = "one sample instead of three"
FEW = 10
SAMPLED = {"fc1": LARGE, "myrtle5": FEW}
"""Images up to which Label Solve with a kernel is sampled three times; a sample of Myrtle-10 takes half an hour."""


def recipes() -> list[Recipe]:
    """One recipe per table."""
    return [_recipe(table) for table in TABLES]


def _recipe(table: str) -> Recipe:
    found: list[Cell] = []
    for number in published.cells(table):
        if unmeasured(number) is not None:
            continue
        if number.algorithm == "NN":
            found += [trained_on_fc1(number), trained_on_family(number)]
        elif number.method == "LS":
            found.append(_solved(number))
            if number.preprocess == "zca":
                found.append(_without_zca(number))
        else:
            found.append(in_the_papers_setting(number))
            if number.architecture == "FC1" and number.variant is None and number.support < LARGE:
                found.append(_of_the_notebook(number))
            if number.variant == "a + l":
                found.append(_ours(number))
    return Recipe(id=table, title=published.table(table).title, cells=tuple(found))


def in_the_papers_setting(number: published.Cell) -> Cell:
    """KIP as the paper has it: Adam at a constant rate, labels fixed, or learned with augmented targets."""
    learned = number.variant == "a + l"
    batch = AUGMENTED_BATCH if learned else BATCH
    work = Kip(
        data=number.dataset,
        kernel=number.architecture.lower(),
        size=number.support,
        labels="learned" if learned else "fixed",
        augment=AUGMENTATIONS[number.dataset] if learned else "none",
        steps=STEPS,
        batch=batch,
        learning_rate=RATES[number.dataset],
        schedule="constant",
        evaluate_every=50 if number.support < LARGE else 10,
        checkpoints=5,
        seconds=60 * _minutes(number),
    )
    deviations = ["one initialisation instead of five", *([ONE_PIXEL] if learned else [])]
    if f"{batch:,}" != PAPERS_BATCHES[number.dataset]:
        deviations.append(f"batches of {batch:,} instead of {PAPERS_BATCHES[number.dataset]}")
    return Cell(id=number.id, work=work, published=number.id, deviations=tuple(deviations))


def _minutes(number: published.Cell) -> float:
    if number.support >= LARGE:
        return MINUTES_OF_LARGE
    slow = number.dataset == "cifar10" and number.variant == "a + l" and number.support > FEW
    return MINUTES_OF_SLOW if slow else MINUTES


def _ours(number: published.Cell) -> Cell:
    """`kip distill` as it comes, beside the paper's (a + l): labels are solved where a batch allows."""
    large = number.support >= LARGE
    recipe, _, name = number.id.partition("/")
    work = Kip(
        data=number.dataset,
        kernel=number.architecture.lower(),
        size=number.support,
        steps=STEPS_OF_LARGE[number.support] if large else None,
        evaluate_every=EVALUATIONS_OF_LARGE.get(number.support),
        seeds=(0, 1, 2) if number.support <= 100 else (0,),
    )
    deviations = (f"{work.steps} steps, what a quarter to half an hour of one core gives",) if large else ()
    return Cell(
        id=f"{recipe}/{name.replace('-kip-al', '-ours')}",
        work=work,
        setting="ours",
        published=number.id,
        deviations=deviations,
    )


def _of_the_notebook(number: published.Cell) -> Cell:
    """KIP with the bias variance of the paper's public notebook, beside the cell with that of its text."""
    cell = in_the_papers_setting(number)
    assert isinstance(cell.work, Kip)
    work = dataclasses.replace(cell.work, kernel="fc1:bias_variance=1e-2")
    words = (NOTEBOOK, *cell.deviations)
    return dataclasses.replace(cell, id=f"{number.id}-notebook", work=work, setting="variant", deviations=words)


def _without_zca(number: published.Cell) -> Cell:
    """Label Solve on standardised images, of which the paper prints no number."""
    cell = _solved(dataclasses.replace(number, preprocess="standard"))
    return dataclasses.replace(cell, id=number.id.replace("-zca", ""), setting="variant", published=None)


def _solved(number: published.Cell) -> Cell:
    architecture = number.architecture.lower().replace("-", "")
    kernel = architecture if number.kernel_type == "NTK" else f"{architecture}:nngp"
    assert number.preprocess is not None
    work = Solved(data=number.dataset, kernel=kernel, size=number.support, preprocess=number.preprocess)
    if number.support <= SAMPLED.get(architecture, 0):
        return Cell(id=number.id, work=work, published=number.id)
    work = dataclasses.replace(work, seeds=(0,))
    return Cell(id=number.id, work=work, published=number.id, deviations=(ONE_SAMPLE,))
