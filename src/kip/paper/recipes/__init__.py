"""Recipes: one per table or figure, each cell a plain configuration beside the published number it is compared with."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kip.paper import published
from kip.paper.published import Cell as Number
from kip.paper.works import Work

SETTINGS = ("paper", "ours", "variant")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One number to measure.

    `id` is `recipe/name`; `setting` is "paper" (the paper's own, as far as `deviations` do not say otherwise), "ours"
    (this package's defaults) or "variant" (a second reading of what the paper says, or a trial beside it). `published`
    is the id of the published cell beside it, None where the paper prints none.
    """

    id: str
    work: Work
    setting: str = "paper"
    published: str | None = None
    deviations: tuple[str, ...] = ()

    @property
    def recipe(self) -> str:
        """The recipe it belongs to."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The id within its recipe."""
        return self.id.partition("/")[2]

    @property
    def number(self) -> Number | None:
        """The published cell."""
        return None if self.published is None else published.cell(self.published)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The cells of one table, figure or list of claims."""

    id: str
    title: str
    cells: tuple[Cell, ...]


@functools.cache
def recipes() -> tuple[Recipe, ...]:
    """All recipes, in the paper's order."""
    from kip.paper.recipes import baselines, claims, classification, figures, networks, subsets

    found = (
        *baselines.recipes(),
        *subsets.recipes(),
        *classification.recipes(),
        *networks.recipes(),
        *figures.recipes(),
        claims.recipe(),
    )
    ids = [cell.id for each in found for cell in each.cells]
    assert len(set(ids)) == len(ids), "two cells share an id"
    return found


def recipe(name: str) -> Recipe:
    """The recipe with that id."""
    for each in recipes():
        if each.id == name:
            return each
    raise ValueError(_unknown("NAME", name, [each.id for each in recipes()]))


def cells(name: str, wanted: Sequence[str] = ()) -> list[Cell]:
    """Cells of the recipe `name`, or of all for "all"; those called `wanted` where any are.

    >>> [cell.id for cell in cells("mnist-classification", ["fc1-base"])]
    ['mnist-classification/fc1-base']
    """
    among = [cell for each in (recipes() if name == "all" else (recipe(name),)) for cell in each.cells]
    if not wanted:
        return among
    by_name = {cell.id if name == "all" else cell.name: cell for cell in among}
    by_name |= {cell.id: cell for cell in among}
    for each in wanted:
        if each not in by_name:
            raise ValueError(_unknown("--cells", each, list(by_name)))
    return [by_name[each] for each in wanted]


def unmeasured(cell: Number) -> str | None:
    """Why no recipe measures a published cell; None for those that one does.

    >>> unmeasured(published.cell("mnist-baselines/lenet-dd-100"))
    'prior art, as published'
    """
    if cell.prior_art:
        return "prior art, as published"
    if not cell.given:
        return "the paper prints no number"
    return None


def _unknown(option: str, name: str, among: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, among, n=3, cutoff=0.4) or list(among[:3])
    return f"`{option}` {name!r} is not one of them; try {' or '.join(near)}"
