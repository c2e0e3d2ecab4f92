"""Tables A3 and A4: kernels on the whole training set, and KIP with 10,000 images, which Tables 1 and 2 share."""

from __future__ import annotations

from kip.paper import published
from kip.paper.recipes import Cell, Recipe, unmeasured
from kip.paper.recipes.baselines import in_the_papers_setting
from kip.paper.works import Whole

TABLES = ("mnist-classification", "cifar10-classification")


def recipes() -> list[Recipe]:
    """One recipe per table."""
    return [
        Recipe(
            id=table,
            title=published.table(table).title,
            cells=tuple(_cell(number) for number in published.cells(table) if unmeasured(number) is None),
        )
        for table in TABLES
    ]


def _cell(number: published.Cell) -> Cell:
    if number.method == "KIP":
        return in_the_papers_setting(number)
    return Cell(
        id=number.id,
        work=Whole(data=number.dataset, kernel=number.architecture.lower()),
        published=number.id,
    )
