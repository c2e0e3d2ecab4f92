"""`kip reproduce`: the paper's tables, figures and claims, measured here beside the published numbers."""

from __future__ import annotations

import functools
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    cells: Annotated[
        str | None,
        Parameter(show_default=lambda _: "all", help="Cells of the recipe, with commas between; --list names them."),
    ] = None,
    setting: Annotated[str | None, Parameter(help="Only cells of a setting: paper, ours or variant.")] = None,
    time_budget: Annotated[
        str | None, Parameter(help="Stop after 90s, 10m or 2h; what gives most comes first.")
    ] = None,
    listed: Annotated[
        bool,
        Parameter(
            name="--list",
            negative="",
            show_default=False,
            help="Run nothing: list the recipe's cells, what each measures, its published number and predicted time.",
        ),
    ] = False,
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
    after the current step, and the same command continues from there. Each cell's
    result is appended to RESULTS/RECIPE.json, and RESULTS/README.md, a page with
    published and measured side by side, is written anew.

    For example:

        kip reproduce
        kip reproduce mnist-baselines --list
        kip reproduce mnist-baselines --cells rbf-kip-100,rbf-ours-100
        kip reproduce all --time-budget 2h
        kip reproduce --status
    """
    if time_budget is not None:
        seconds(time_budget)  # to complain before anything is done
    if setting not in (None, "paper", "ours", "variant"):
        raise ValueError(f"`--setting` must be paper, ours or variant; got {setting!r}")
    needs = (("--cells", cells), ("--setting", setting), ("--time-budget", time_budget), ("--list", listed or None))
    for option, given in needs:
        if name is None and given is not None:
            raise ValueError(f"`{option}` needs the recipe it is for: kip reproduce RECIPE {option}")
    chosen = [] if name is None else _chosen(name, cells, setting)
    if rates:
        _measure_rates(results)
    if listed:
        _print_cells(chosen, results)
    elif status:
        _check_results(results)
        _check_page(results)
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
    say("kip reproduce RECIPE --list names its cells; kip reproduce RECIPE runs it, --cells some of it")
    say("kip reproduce --status says what was run")


def _print_cells(cells: Sequence[Cell], results: Path) -> None:
    """Each cell's name, setting, published number and what it measures; how long it takes, where rates are known."""
    from kip.paper import costs

    rates = costs.read(results)
    whole = len({cell.recipe for cell in cells}) > 1
    table = Table(header_style="bold")
    table.add_column("cell", overflow="fold")
    table.add_column("setting")
    table.add_column("published", justify="right", no_wrap=True)
    table.add_column("what")
    table.add_column("time", justify="right", no_wrap=True)
    for cell in cells:
        took = costs.predicted(cell.work, rates)
        published = "–" if cell.number is None else cell.number.text
        time_words = "–" if took is None else duration(took)
        table.add_row(cell.id if whole else cell.name, cell.setting, published, _what(cell), time_words)
    show(table)
    say("published: test accuracy in per cent; time: predicted for this machine")
    if not rates:
        say(f"no rates are in {results}, so no times are predicted; kip reproduce --rates measures them")
    say(
        f"to measure one: kip reproduce {cells[0].recipe} --cells {cells[0].name}"
        if cells
        else "no cell has that setting"
    )


def _what(cell: Cell) -> str:
    """What a cell measures, in a few words."""
    from kip.paper import published
    from kip.paper.works import Comparison

    return published.claim(cell.name).statement if isinstance(cell.work, Comparison) else _of_work(cell.work)


def _of_work(work: Any) -> str:
    from kip.paper.works import Kip, Natural, Network, Part, Solved, Subset, Whole

    match work:
        case Network():
            return f"{work.net} network trained on {_of_work(work.support)}"
        case Part():
            return f"{work.size} images out of {_of_work(work.of)}"
        case Whole():
            return f"KRR on all of {work.data}, {_kernels(work.kernel)}"
        case Subset():
            return f"KRR on {work.size:,} natural images of {work.data}, {_kernels(work.kernel)}"
        case Natural():
            return f"{work.size:,} natural images of {work.data}{_noise(work.corruption)}"
        case Solved():
            labels = "natural labels" if work.natural else "Label Solve"
            targets = "" if work.targets is None else f", {work.targets:,} targets"
            tested = "" if work.tested is None else f", tested with {work.tested}"
            return f"{labels}, {work.size:,} images of {work.data}, {_kernels(work.kernel)}{targets}{tested}"
        case Kip():
            labels = "" if work.labels == "auto" else f", {work.labels} labels"
            augment = "" if work.augment in (None, "none") else ", augmented"
            tested = f", tested with {', '.join(work.tested)}" if work.tested else ""
            images = f"{work.size:,} images of {work.data}, {_kernels(work.kernel)}"
            return f"KIP, {images}{labels}{augment}{_noise(work.corruption)}{tested}"
    raise TypeError(f"no words for {type(work).__name__}")


def _kernels(family: str) -> str:
    return family.replace("+", " + ")


def _noise(corruption: float) -> str:
    return f", {corruption:.0%} noise" if corruption else ""


def _check_results(results: Path) -> None:
    """Refuse to say where measurements stand where there is no folder of them."""
    if not results.is_dir():
        raise ValueError(
            f"no results folder is here: {results} does not exist. "
            "Give one with --results DIR, or measure a cell first: kip reproduce RECIPE --cells CELL"
        )


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

    _check_page(results)
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
            say("stopped: the same command continues from here")
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


def _check_page(results: Path) -> None:
    """Refuse a folder whose README.md is somebody's own: the page would be written over it."""
    from kip.report import page

    path = results / page.NAME
    heading = page.INTRODUCTION.splitlines()[0].encode()
    if path.is_file() and not path.read_bytes().startswith(heading):
        raise ValueError(
            f"{path} was not written by `kip reproduce`, which writes its page there. "
            "Choose another folder with --results"
        )
