"""Tables A1 and A2: kernel ridge-regression on random subsets, 20 resamplings per cell."""

from __future__ import annotations

from kip.paper import published
from kip.paper.recipes import Cell, Recipe
from kip.paper.works import Subset

KERNELS = {"linear": "linear", "rbf": "rbf", "fc1": "fc1:standard=1024"}
UNBALANCED_SIZES = (10, 20)
"""Where classes may be missing altogether, it matters how a subset is drawn; the paper does not say."""

BALANCED = "class-balanced subsets (the paper does not say how they were drawn)"
UNBALANCED = "subsets drawn without regard to classes (the paper does not say how they were drawn)"


def recipes() -> list[Recipe]:
    """One recipe per table."""
    return [_recipe(table) for table in ("mnist-subsets", "cifar10-subsets")]


def _recipe(table: str) -> Recipe:
    about = published.table(table)
    numbers = [cell for cell in published.cells(table) if cell.column in KERNELS]
    cells = [_cell(number, balanced=True) for number in numbers]
    cells += [_cell(number, balanced=False) for number in numbers if number.support in UNBALANCED_SIZES]
    return Recipe(id=table, title=about.title, cells=tuple(cells))


def _cell(number: published.Cell, *, balanced: bool) -> Cell:
    return Cell(
        id=number.id if balanced else f"{number.id}-unbalanced",
        work=Subset(data=number.dataset, kernel=KERNELS[number.column], size=number.support, balanced=balanced),
        setting="paper" if balanced else "variant",
        published=number.id,
        deviations=(BALANCED if balanced else UNBALANCED,),
    )
