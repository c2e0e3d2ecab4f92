"""What was measured so far, read from the result files: what the page and its figures are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kip.paper import costs, status, store
from kip.paper.recipes import Recipe, recipes


@dataclass(frozen=True)
class Measured:
    """Everything a page is made from: recipes, the newest record and the status of each cell.

    `tried` are older records of a cell, made with other settings than its newest.
    """

    recipes: Sequence[Recipe]
    records: Mapping[str, store.Record]
    statuses: Mapping[str, str]
    tried: Mapping[str, Sequence[store.Record]]

    def mean(self, cell: str) -> float | None:
        """The measured mean of a cell, in per cent."""
        return self.records[cell]["measured"]["mean"] if cell in self.records else None

    def deviation(self, cell: str) -> float | None:
        """Its standard deviation, where there were several runs."""
        return self.records[cell]["measured"]["deviation"] if cell in self.records else None


def read(results: Path) -> Measured:
    """What was measured so far, as the files in `results` have it."""
    rates = costs.read(results)
    records: dict[str, store.Record] = {}
    statuses: dict[str, str] = {}
    tried: dict[str, list[store.Record]] = {}
    for recipe in recipes():
        newest = store.newest(results, recipe.id)
        records |= newest
        statuses |= status.of_recipe(recipe, results, rates)
        for record in store.read(results, recipe.id):
            if settings(record) != settings(newest[record["cell"]]):
                tried.setdefault(record["cell"], []).append(record)
    return Measured(recipes(), records, statuses, tried)


def settings(record: store.Record) -> dict[str, Any]:
    """What a record was made with: its work, and what the defaults of the day made of what that left open.

    Options that the work does not have are not settings of it: later versions record more of them.
    """
    work, options = record["work"], record["details"].get("options", {})
    return {**work, **{name: options[name] for name, value in work.items() if value is None and name in options}}
