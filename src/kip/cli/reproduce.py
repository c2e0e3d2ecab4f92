"""`kip reproduce`: the paper's tables, figures and claims, measured here beside the published numbers."""

from __future__ import annotations

import functools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table

from kip.cli.options import seconds
from kip.cli.progress import Interrupt, duration, say, show

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kip.paper.recipes import Cell
    from kip.paper.running import Context, Result

WORK = Path("runs") / "reproduce"


def reproduce(
    name: Annotated[str | None, Parameter(help="A recipe, or all; none lists them.")] = None,
    /,
    *,
    cells: Annotated[str | None, Parameter(help="Cells of the recipe, with commas between: all of them.")] = None,
    setting: Annotated[str | None, Parameter(help="Only cells of a setting: paper, ours or variant.")] = None,
    time_budget: Annotated[
        str | None, Parameter(help="Stop after 90s, 10m or 2h; what gives most comes first.")
    ] = None,
    status: Annotated[
        bool, Parameter(negative="", show_default=False, help="Run nothing: say where it stands.")
    ] = False,
    rates: Annotated[
        bool, Parameter(negative="", show_default=False, help="Measure how fast this machine is, for predictions.")
    ] = False,
    again: Annotated[
        bool, Parameter(negative="", show_default=False, help="Measure cells anew that have a result.")
    ] = False,
    results: Annotated[Path, Parameter(help="Folder of the measured results, and of the page made from them.")] = Path(
        "results"
    ),
    work: Annotated[Path, Parameter(help="Folder of the runs; what is there is not computed again.")] = WORK,
) -> int:
    """Measure the paper's tables, figures and claims, beside the published numbers.

    Without a name: lists the recipes. A cell is a resumable run: Ctrl-C stops
    after the step at hand, and the same command goes on from there. Each cell's
    result is appended to RESULTS/RECIPE.json, and RESULTS/README.md, a page with
    published and measured side by side, is written anew.

    For example:

        kip reproduce
        kip reproduce mnist-baselines --cells rbf-kip-100,rbf-ours-100
        kip reproduce all --time-budget 2h
        kip reproduce --status
    """
    if time_budget is not None:
        seconds(time_budget)  # to complain before anything is done
    if setting not in (None, "paper", "ours", "variant"):
        raise ValueError(f"`--setting` must be paper, ours or variant; got {setting!r}")
    for option, given in (("--cells", cells), ("--setting", setting), ("--time-budget", time_budget)):
        if name is None and given is not None:
            raise ValueError(f"`{option}` needs the recipe it is for: kip reproduce RECIPE {option} …")
    chosen = [] if name is None else _chosen(name, cells, setting)
    if rates:
        _measure_rates(results)
    if status:
        _print_status(results, None if name is None else {cell.recipe for cell in chosen})
        _write_page(results)
    elif name is not None:
        return _run(chosen, results, work, time_budget, again)
    elif not rates:
        _print_recipes()
    return 0


def _chosen(name: str, names: str | None, setting: str | None) -> list[Cell]:
    from kip.paper import recipes

    wanted = [each.strip() for each in (names or "").split(",") if each.strip()]
    return [cell for cell in recipes.cells(name, wanted) if setting in (None, cell.setting)]


def _print_recipes() -> None:
    from kip.paper import recipes

    table = Table(header_style="bold")
    table.add_column("recipe")
    table.add_column("cells", justify="right")
    table.add_column("what")
    for each in recipes.recipes():
        table.add_row(each.id, str(len(each.cells)), each.title)
    show(table)
    say("kip reproduce RECIPE runs one, --cells some of it; kip reproduce --status says what was run")


def _print_status(results: Path, wanted: set[str] | None) -> None:
    from kip.paper import costs, status
    from kip.paper.recipes import SETTINGS, recipes

    rates = costs.read(results)
    table = Table(header_style="bold", padding=(0, 0, 0, 1))
    table.add_column("recipe", no_wrap=True)
    table.add_column("setting")
    for heading in status.STATUSES:
        table.add_column(heading, justify="right")
    totals = [0] * len(status.STATUSES)
    for each in recipes():
        if wanted is not None and each.id not in wanted:
            continue
        found = status.of_recipe(each, results, rates)
        for setting in SETTINGS:
            counts = status.counted(found, each.cells, setting)
            if counts:
                table.add_row(each.id, setting, *(str(counts[word] or "") for word in status.STATUSES))
                totals = [total + counts[word] for total, word in zip(totals, status.STATUSES, strict=True)]
    table.add_row("all", "", *map(str, totals), style="bold")
    show(table)
    say("matches: within the published deviation plus half a point, or above; run: the paper prints no number")


def _measure_rates(results: Path) -> None:
    from kip.paper import costs
    from kip.paper.recipes import recipes

    names = {name for each in recipes() for cell in each.cells for name in costs.needed(cell.work)}
    known = costs.read(results)
    costs.write(results, known | costs.measure(names - set(known), say=say))


def _run(cells: Sequence[Cell], results: Path, work: Path, budget: str | None, again: bool) -> int:
    from kip import runs
    from kip.paper import costs, running, store

    left = cells if again else _without_result(cells, results)
    if len(left) < len(cells):
        say(f"{len(cells) - len(left)} of {len(cells)} cells have a result; --again measures them anew")
    if budget is not None:
        known = costs.read(results)
        if not known:
            say("no rates are known, so cells keep their order; kip reproduce --rates measures them")
        left = costs.cheap_first(left, known)
    with runs.opened("", work, resume=True), Interrupt() as interrupt:
        end = None if budget is None else time.monotonic() + seconds(budget)
        context = _context(work, lambda: interrupt() or (end is not None and time.monotonic() >= end))
        if again:
            _forget(left, work)
        try:
            for cell, result in running.measure(left, context):
                store.append(results, [store.record(cell, result)])
                _say_result(cell, result)
                _write_page(results)
        except running.StoppedError:
            say("stopped: the same command goes on from here")
        return interrupt.status


def _without_result(cells: Sequence[Cell], results: Path) -> list[Cell]:
    """Those that were not measured, or not as their recipe has it now."""
    from kip.paper import store

    newest = {recipe: store.newest(results, recipe) for recipe in {cell.recipe for cell in cells}}
    return [cell for cell in cells if not store.is_of(newest[cell.recipe].get(cell.id), cell)]


def _forget(cells: Sequence[Cell], work: Path) -> None:
    """Remove the runs of cells, those they share with others included, so that they are measured and not read."""
    from kip.paper import works

    for folder in {work / works.name(part) for cell in cells for part in works.parts(cell.work)}:
        shutil.rmtree(folder, ignore_errors=True)


def _context(work: Path, stop: Callable[[], bool]) -> Context:
    from kip.data import Dataset, load
    from kip.paper.running import Context

    @functools.cache
    def loaded(name: str) -> Dataset:
        return load(name, say=say)

    return Context(work, loaded, say, stop)


def _say_result(cell: Cell, result: Result) -> None:
    number = cell.number
    beside = "" if number is None or number.text == "-" else f", published {number.text}"
    if result.mean is None:
        measured = str(result.details.get("verdict", ""))
    else:
        spread = "" if result.deviation is None else f" ± {result.deviation:.2f}"
        measured = f"{result.mean:.2f}{spread} %"
    say(f"{cell.id} ({cell.setting}): {measured}{beside}, in {duration(result.seconds)}")


def _write_page(results: Path) -> None:
    from kip.report import page

    page.write(results)
