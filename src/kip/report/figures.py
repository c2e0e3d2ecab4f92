"""Figures drawn from measured results, with the published numbers beside them where the paper prints any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kip.paper import published
from kip.paper.recipes import Cell, Recipe
from kip.paper.works import Network
from kip.report.measured import Measured
from kip.report.pictures import ACCENT, FAINT, INK, SECOND, figure_of, plain, png

COLOURS = (ACCENT, SECOND, "#4d8f57", "#8a63a8", "#b58a2a", "#5aa4a8", "#7d6b5d")
TITLES = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}


def drawn(measured: Measured) -> dict[str, bytes | None]:
    """Every figure by the recipe it stands under; None where there is nothing measured to draw."""
    by_id = {recipe.id: recipe for recipe in measured.recipes}
    found: dict[str, bytes | None] = {}
    for name in ("mnist-baselines", "cifar10-baselines"):
        found[name] = baselines(by_id[name], measured)
    for name in ("mnist-subsets", "cifar10-subsets"):
        found[name] = subsets(by_id[name], measured)
    found["mnist-sweep-mse"] = sweeps([by_id[name] for name in SWEEPS], measured)
    found["label-solve"] = label_solve(by_id["label-solve"], measured)
    found["kernel-transfer"] = kernel_transfer(by_id["kernel-transfer"], measured)
    return found


SWEEPS = ("mnist-sweep-mse", "mnist-sweep-xent", "cifar10-sweep-mse", "cifar10-sweep-xent")

Points = list[tuple[float, float, float]]
"""Where, how much, and its deviation."""


def _points(cells: Sequence[Cell], measured: Measured, at: Any) -> Points:
    found = []
    for cell in cells:
        mean = measured.mean(cell.id)
        if mean is not None:
            found.append((float(at(cell)), mean, measured.deviation(cell.id) or 0.0))
    return sorted(found)


def _published(cells: Sequence[Cell], at: Any) -> Points:
    found = []
    for cell in cells:
        number = cell.number
        if number is not None and number.mean is not None:
            found.append((float(at(cell)), number.mean, number.deviation or 0.0))
    return sorted(found)


def _line(axes: Any, points: Points, colour: str, label: str | None, marker: str = "o") -> None:
    if not points:
        return
    x, y, spread = (np.array(column) for column in zip(*points, strict=True))
    axes.errorbar(x, y, spread, color=colour, label=label, marker=marker, markersize=4.5, linewidth=1.6)


def _hollow(axes: Any, points: Points, colour: str, label: str | None) -> None:
    if not points:
        return
    x, y, _ = (np.array(column) for column in zip(*points, strict=True))
    axes.plot(x, y, color=colour, label=label, linestyle=":", linewidth=1, marker="D", markersize=6, fillstyle="none")


def _finished(axes: Any, title: str, x_name: str, *, log: bool = True, below: bool = False) -> None:
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.set_xlabel(x_name)
    axes.set_ylabel("test accuracy, %")
    if log:
        axes.set_xscale("log")
    if axes.get_legend_handles_labels()[0]:
        place: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.13), "ncol": 4} if below else {}
        axes.legend(frameon=False, fontsize=8, **place)
    plain(axes)


def subsets(recipe: Recipe, measured: Measured) -> bytes | None:
    """Random subsets: accuracy over the number of images, one line per kernel."""
    balanced = [cell for cell in recipe.cells if cell.published == cell.id]
    if not any(cell.id in measured.records for cell in balanced):
        return None
    page = figure_of(7.2, 4.4)
    axes = page.subplots()
    for colour, column in zip(COLOURS, ("linear", "rbf", "fc1"), strict=False):
        cells = [cell for cell in balanced if _number(cell).column == column]
        title = {"linear": "Linear", "rbf": "RBF", "fc1": "FC1"}[column]
        _line(axes, _points(cells, measured, _size), colour, f"{title}, measured")
        _hollow(axes, _published(cells, _size), colour, f"{title}, published")
    _finished(axes, f"{TITLES[_number(balanced[0]).dataset]}: random subsets", "images")
    return png(page)


def baselines(recipe: Recipe, measured: Measured) -> bytes | None:
    """KIP in the paper's setting and in ours, and Label Solve, over the number of images."""
    rows = {
        "rbf-kip-al": "RBF, KIP (a + l)",
        "fc1-kip-al": "FC1, KIP (a + l)",
        "rbf-kip": "RBF, KIP",
        "fc1-kip": "FC1, KIP",
        "fc1-ls": "FC1, LS",
        "fc1-nngp-ls": "FC1 NNGP, LS",
    }
    if not any(cell.id in measured.records for cell in recipe.cells):
        return None
    page = figure_of(11, 4.6)
    panels = page.subplots(1, 2)
    for colour, (row, title) in zip(COLOURS, rows.items(), strict=False):
        cells = [cell for cell in recipe.cells if cell.published == cell.id and _number(cell).row == row]
        _line(panels[0], _points(cells, measured, _size), colour, f"{title}, measured")
        if any(cell.id in measured.records for cell in cells):
            _hollow(panels[0], _published(cells, _size), colour, None)
        ours = [cell for cell in recipe.cells if cell.setting == "ours" and _number(cell).row == row]
        if ours:
            _line(panels[1], _points(ours, measured, _size), colour, f"{title.split(',')[0]}, ours")
            _hollow(panels[1], _published(ours, _size), colour, f"{title}, published")
    data = TITLES[_number(next(cell for cell in recipe.cells if cell.published)).dataset]
    panels[0].plot([], [], color=FAINT, marker="D", fillstyle="none", linestyle=":", label="published")
    _finished(panels[0], f"{data}: the paper's setting", "images")
    _finished(panels[1], f"{data}: ours", "images")
    return png(page)


def sweeps(tables: Sequence[Recipe], measured: Measured) -> bytes | None:
    """Figure A3: networks on natural and learned images over the corrupted fraction, one panel per table begun."""
    begun = [table for table in tables if any(cell.id in measured.records for cell in table.cells)]
    if not begun:
        return None
    columns, rows = min(2, len(begun)), -(-len(begun) // 2)
    page = figure_of(5.5 * columns, 4.0 * rows)
    panels = page.subplots(rows, columns, squeeze=False).ravel()
    for axes in panels[len(begun) :]:
        axes.set_visible(False)
    for axes, table in zip(panels, begun, strict=False):
        for row, title in _titles(table.id).items():
            cells = [cell for cell in table.cells if _number(cell).row == row]
            if any(cell.id in measured.records for cell in cells):
                colour, marker = _look(_number(cells[0]))
                _line(axes, _points(cells, measured, _rho), colour, title, marker)
                _hollow(axes, _published(cells, _rho), colour, None)
        axes.plot([], [], color=FAINT, marker="D", fillstyle="none", linestyle=":", label="published")
        _finished(axes, table.title, "corrupted, %", log=False, below=True)
    return png(page)


def _look(number: published.Cell) -> tuple[str, str]:
    """One colour per method, one marker per size."""
    colour = {None: SECOND, "a": ACCENT, "a + l": COLOURS[2]}[number.variant]
    return colour, {1_000: "o", 5_000: "s", 10_000: "^"}[number.support]


def label_solve(recipe: Recipe, measured: Measured) -> bytes | None:
    """Figure 2: Label Solve over the number of targets, one panel per data set."""
    run = [cell for cell in recipe.cells if cell.id in measured.records]
    if not run:
        return None
    page = figure_of(12, 4.2)
    for axes, data in zip(page.subplots(1, 3), ("mnist", "fashion-mnist", "cifar10"), strict=True):
        own = [cell for cell in run if _work(cell).data == data]
        for colour, size in zip(COLOURS, sorted({_work(cell).size for cell in own}), strict=False):
            cells = [cell for cell in own if _work(cell).size == size]
            _line(axes, _points(cells, measured, lambda cell: _work(cell).targets), colour, f"{size} images")
        _finished(axes, f"{TITLES[data]}: FC1, labels solved", "targets")
    return png(page)


def kernel_transfer(recipe: Recipe, measured: Measured) -> bytes | None:
    """Figure A1: accuracy averaged over test kernels, by the kernel learned with."""
    run = [cell for cell in recipe.cells if cell.id in measured.records]
    if not run:
        return None
    names = list(dict.fromkeys(cell.name.rpartition("-")[0] for cell in recipe.cells))
    sizes = sorted({_work(cell).size for cell in run})
    page = figure_of(8.5, 4.2)
    axes = page.subplots()
    wide = 0.8 / len(sizes)
    for i, (colour, size) in enumerate(zip(COLOURS, sizes, strict=False)):
        means = [measured.mean(f"{recipe.id}/{name}-{size}") for name in names]
        axes.bar(
            np.arange(len(names)) + (i - (len(sizes) - 1) / 2) * wide,
            np.array(means, float),  # a cell not run is None, then NaN, and no bar
            wide,
            color=colour,
            label=f"{size} images",
        )
    axes.set_xticks(range(len(names)), names)
    _finished(axes, "CIFAR-10: averaged over test kernels, by the kernel learned with", "", log=False, below=True)
    return png(page)


def _number(cell: Cell) -> published.Cell:
    number = cell.number
    assert number is not None
    return number


def _size(cell: Cell) -> int:
    return _number(cell).support


def _rho(cell: Cell) -> float:
    return 100 * _number(cell).rho


def _work(cell: Cell) -> Any:
    assert not isinstance(cell.work, Network)
    return cell.work


def _titles(table: str) -> dict[str, str]:
    return {row.id: " ".join(row.title) for row in published.table(table).rows}
