"""What became of each cell: it matches the paper, falls short, is out of reach here, or was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from kip.paper import store
from kip.paper.costs import Rates, predicted
from kip.paper.recipes import Cell, Recipe

MATCHES, SHORT, RUN, OUT_OF_REACH, NOT_RUN = "matches", "falls short", "run", "out of reach", "not run"
STATUSES = (MATCHES, SHORT, RUN, OUT_OF_REACH, NOT_RUN)
"""`run` is for cells beside which the paper prints no number, claims among them."""

MARGIN = 0.5
"""Points that a mean may lie below the published one, beside the published deviation."""

REACH = 6 * 3600.0
"""Seconds beyond which a cell counts as out of reach."""


def of_means(measured: float, published: float, deviation: float | None) -> str:
    """`matches` within the published deviation plus half a point, or above; `falls short` below that.

    >>> of_means(97.0, 97.31, 0.09), of_means(96.0, 97.31, 0.09), of_means(99.0, 97.31, None)
    ('matches', 'falls short', 'matches')
    """
    slack = (deviation or 0.0) + MARGIN
    return MATCHES if measured >= published - slack - 1e-9 else SHORT


def of_cell(cell: Cell, record: store.Record | None, rates: Rates) -> str:
    """The status of a cell, from its newest record or from what it would take."""
    if record is None:
        seconds = predicted(cell.work, rates)
        return OUT_OF_REACH if seconds is not None and seconds > REACH else NOT_RUN
    number = cell.number
    mean = record["measured"]["mean"]
    if number is None or number.mean is None or mean is None:
        return RUN
    return of_means(mean, number.mean, number.deviation)


def of_recipe(recipe: Recipe, folder: Path, rates: Rates) -> dict[str, str]:
    """The status of every cell of a recipe, by id."""
    found = store.newest(folder, recipe.id)
    return {cell.id: of_cell(cell, found.get(cell.id), rates) for cell in recipe.cells}


def counted(statuses: Mapping[str, str], cells: Sequence[Cell], setting: str) -> Counter[str]:
    """How many cells of a setting have each status."""
    return Counter(statuses[cell.id] for cell in cells if cell.setting == setting)
