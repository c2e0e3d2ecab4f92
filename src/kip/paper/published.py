"""The paper's published numbers: every cell of every table, the figures' experiments, and the claims in the text.

They are kept in `published.json` beside this file, one line per cell, and checked when they are loaded. Accuracies are
percentages, as printed. A quotation is the paper's own sentence, with TeX set as plain text, cross-references as the
printed numbers and citations left out.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Protocol, TypeVar

ALGORITHMS = ("KRR", "NN")
DATASETS = ("mnist", "fashion-mnist", "cifar10")
METHODS = ("KIP", "LS", "Natural", "Base", "Ensembling", "DC", "LD", "SLDD", "DD")
VARIANTS = ("a", "a + l")
KERNEL_TYPES = ("NTK", "NNGP")
PREPROCESSES = ("standard", "zca")
LOSSES = ("mse", "xent", "tuned")
EMPHASES = ("bold", "italic")
NOT_GIVEN = "-"

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NUMBER = re.compile(r"(\d+\.\d+)(?:±(\d+\.\d+))?")


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of one table.

    `id` names it on a command line (`mnist-baselines/rbf-kip-100`); `row` and `column` are ids within its table. `text`
    is what is printed, with `mean` and `deviation` in per cent: None where the paper gives none (a cell printed as "-"
    has neither). What was measured:

    - `algorithm` "KRR" or "NN" (None for prior art that is neither); `architecture` as printed; `kernel_type` "NTK" or
      "NNGP" for the paper's own neural kernels.
    - `method`: "KIP", "LS", "Natural" (a random subset), "Base" (the whole training set), or the name of prior art;
      `variant` of KIP: "a" with augmentation, "a + l" with learned labels too.
    - `support` is the number of images, `rho` the corrupted fraction of their pixels, `preprocess` "standard" or "zca".
    - `loss` of a network's training: "mse", "xent" or "tuned" (the better of the two, from a grid).
    - `sources` are the citations of prior art, the last being where the paper took the number; empty for its own.
    - `emphasis` ("bold", "italic") and `star` as printed; `note` says where the paper contradicts itself.
    """

    id: str
    table: str
    row: str
    column: str
    text: str
    mean: float | None
    deviation: float | None
    dataset: str
    architecture: str
    method: str
    support: int
    rho: float
    algorithm: str | None = None
    kernel_type: str | None = None
    variant: str | None = None
    preprocess: str | None = None
    loss: str | None = None
    sources: tuple[str, ...] = ()
    emphasis: str | None = None
    star: bool = False
    note: str | None = None

    @property
    def name(self) -> str:
        """The id within its table: `rbf-kip-100`."""
        return self.id.partition("/")[2]

    @property
    def prior_art(self) -> bool:
        """Whether the number is another paper's."""
        return bool(self.sources)

    @property
    def given(self) -> bool:
        """Whether the paper prints a number here, and not a dash."""
        return self.mean is not None


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of a table: its id, its printed headings, and the group of rows between rules that it stands in."""

    id: str
    title: tuple[str, ...]
    group: int


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table: its id and its printed heading."""

    id: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table: how it is printed, and what the paper says of how its numbers were made (`settings`, quoted)."""

    id: str
    label: str
    number: str
    title: str
    dataset: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    settings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One figure's experiment: what was varied, what is shown, and what the paper says of it.

    `tables` names the tables that hold the same or neighbouring numbers. The curves themselves are not published.
    """

    id: str
    label: str
    number: str
    title: str
    datasets: tuple[str, ...]
    varied: tuple[str, ...]
    shows: str
    quotes: tuple[str, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim made in the text: a statement that can come out true or false, the paper's sentences, and their place."""

    id: str
    statement: str
    where: str
    quotes: tuple[str, ...]
    tables: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Published:
    """The whole file."""

    paper: str
    sources: dict[str, str]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    claims: tuple[Claim, ...]
    cells: tuple[Cell, ...]


def tables() -> list[Table]:
    """Return the tables in the paper's order."""
    return list(_published().tables)


def table(name: str) -> Table:
    """Return the table with that id."""
    return _named(name, _published().tables, "table")


def cells(table: str | None = None) -> list[Cell]:
    """Return the cells of one table, or of all, in printed order.

    >>> [cell.text for cell in cells("mnist-classification")][:2]
    ['98.6', '98.8']
    """
    found = _published().cells
    if table is None:
        return list(found)
    wanted = _named(table, _published().tables, "table").id
    return [cell for cell in found if cell.table == wanted]


def cell(name: str, table: str | None = None) -> Cell:
    """Return the cell with that id; with `table` given, the short name is enough.

    >>> cell("mnist-baselines/rbf-kip-100").mean
    97.31
    >>> cell("rbf-kip-100", "mnist-baselines").support
    100
    """
    if table is not None and "/" not in name:
        name = f"{_named(table, _published().tables, 'table').id}/{name}"
    return _named(name, cells(table), "cell")


def cell_at(table: str, row: str, column: str) -> Cell:
    """Return the cell of `table` where `row` and `column` (their ids) meet."""
    grid = _named(table, _published().tables, "table")
    row_id = _named(row, grid.rows, "row").id
    column_id = _named(column, grid.columns, "column").id
    return next(cell for cell in cells(grid.id) if (cell.row, cell.column) == (row_id, column_id))


def figures() -> list[Figure]:
    """Return the figures in the paper's order."""
    return list(_published().figures)


def figure(name: str) -> Figure:
    """Return the figure with that id."""
    return _named(name, _published().figures, "figure")


def claims() -> list[Claim]:
    """Return the claims made in the text."""
    return list(_published().claims)


def claim(name: str) -> Claim:
    """Return the claim with that id."""
    return _named(name, _published().claims, "claim")


def sources() -> dict[str, str]:
    """Return the works whose numbers the paper quotes, by citation key."""
    return dict(_published().sources)


def read(text: str) -> Published:
    """Read and check a file of published numbers; a ValueError names what is wrong with it."""
    document = json.loads(text)
    wanted = [field.name for field in fields(Published)]
    _require(
        sorted(document) == sorted(wanted), f"the file must hold {', '.join(wanted)}; it holds {', '.join(document)}"
    )
    published = Published(
        paper=document["paper"],
        sources=document["sources"],
        tables=tuple(_table(entry) for entry in document["tables"]),
        figures=_records(Figure, document["figures"]),
        claims=_records(Claim, document["claims"]),
        cells=_records(Cell, document["cells"]),
    )
    _check(published)
    return published


@functools.cache
def _published() -> Published:
    return read(resources.files(__package__).joinpath("published.json").read_text(encoding="utf-8"))


class _HasId(Protocol):
    @property
    def id(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasId)
_Record = TypeVar("_Record")


def _named(name: str, among: Sequence[_Named], kind: str) -> _Named:
    """Find the entry with that id, or raise an error that offers the nearest ones."""
    for entry in among:
        if entry.id == name:
            return entry
    ids = [entry.id for entry in among]
    near = difflib.get_close_matches(name, ids, n=3, cutoff=0.4) or ids[:3]
    raise ValueError(f"`{kind}` must be one of the paper's {len(ids)}; got {name!r}. Try {' or '.join(near)}.")


def _record(kind: type[_Record], entry: dict[str, Any]) -> _Record:
    """Make a frozen record from a JSON object: lists become tuples, and a key too many or too few is an error."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise ValueError(f"{kind.__name__.lower()} {entry.get('id')!r} has the wrong fields: {error}") from None


def _records(kind: type[_Record], entries: Iterable[dict[str, Any]]) -> tuple[_Record, ...]:
    return tuple(_record(kind, entry) for entry in entries)


def _table(entry: dict[str, Any]) -> Table:
    parts = {"rows": _records(Row, entry.get("rows", ())), "columns": _records(Column, entry.get("columns", ()))}
    return _record(Table, {**entry, **parts})


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"published numbers: {what}")


def _check(published: Published) -> None:
    """Check the whole: ids, vocabularies, numbers, references, and that every table's grid is full."""
    _check_ids("table", published.tables)
    _check_ids("figure", published.figures)
    _check_ids("claim", published.claims)
    _require(len({cell.id for cell in published.cells}) == len(published.cells), "two cells share an id")
    known = {table.id for table in published.tables}
    for table in published.tables:
        _check_table(table, [cell for cell in published.cells if cell.table == table.id])
    for cell in published.cells:
        _require(cell.table in known, f"{cell.id}: no table {cell.table!r}")
        _check_words(cell, published.sources)
        _check_number(cell)
    described: list[Figure | Claim] = [*published.figures, *published.claims]
    for entry in described:
        _require(bool(entry.quotes), f"{entry.id}: nothing is quoted")
        _require(set(entry.tables) <= known, f"{entry.id}: names a table that is not there")
    for figure in published.figures:
        _require(set(figure.datasets) <= set(DATASETS), f"{figure.id}: names a data set that is not there")


def _check_ids(kind: str, entries: Sequence[_HasId]) -> None:
    for name, count in Counter(entry.id for entry in entries).items():
        _require(_SLUG.fullmatch(name) is not None, f"{kind} id {name!r} is not of the form a-b-1")
        _require(count == 1, f"{kind} id {name!r} occurs {count} times")


def _check_table(table: Table, cells: Sequence[Cell]) -> None:
    """Check that each row and column meet in one cell, of the table's data set, named after its place."""
    _check_ids(f"{table.id}: row", table.rows)
    _check_ids(f"{table.id}: column", table.columns)
    _require(all(len(row.title) == len(table.heads) for row in table.rows), f"{table.id}: headings and rows differ")
    places = [(row.id, column.id) for row in table.rows for column in table.columns]
    _require([(cell.row, cell.column) for cell in cells] == places, f"{table.id}: cells do not fill the grid in order")
    for cell in cells:
        names = {f"{cell.row}-{cell.column}", f"{cell.column}-{cell.row}"}
        if len(table.columns) == 1:
            names.add(cell.row)
        _require(cell.id in {f"{table.id}/{name}" for name in names}, f"{cell.id}: the id is not that of its place")
        _require(cell.dataset == table.dataset, f"{cell.id}: {cell.dataset!r} is not the table's data set")


def _check_words(cell: Cell, sources: dict[str, str]) -> None:
    """Check that every word comes from its vocabulary, and that the words go together."""
    vocabularies: dict[str, tuple[str, ...]] = {
        "dataset": DATASETS,
        "method": METHODS,
        "algorithm": ALGORITHMS,
        "variant": VARIANTS,
        "kernel_type": KERNEL_TYPES,
        "preprocess": PREPROCESSES,
        "loss": LOSSES,
        "emphasis": EMPHASES,
    }
    for field, words in vocabularies.items():
        value = getattr(cell, field)
        _require(
            value is None or value in words, f"{cell.id}: `{field}` must be one of {', '.join(words)}; got {value!r}"
        )
    _require(set(cell.sources) <= set(sources), f"{cell.id}: a source that is not listed")
    _require(cell.prior_art or None not in (cell.algorithm, cell.preprocess), f"{cell.id}: how it was made is missing")
    _require(cell.variant is None or cell.method == "KIP", f"{cell.id}: only KIP has variants")
    _require(cell.kernel_type is None or cell.algorithm == "KRR", f"{cell.id}: only a kernel has a kernel type")
    _require(cell.loss is None or cell.algorithm == "NN", f"{cell.id}: only a network has a loss")


def _check_number(cell: Cell) -> None:
    """Check that the numbers are those of the printed text, and can be accuracies, sizes and fractions."""
    printed = _NUMBER.fullmatch(cell.text)
    _require(printed is not None or cell.text == NOT_GIVEN, f"{cell.id}: {cell.text!r} is neither a number nor a dash")
    numbers = [None if part is None else float(part) for part in printed.groups()] if printed else [None, None]
    _require([cell.mean, cell.deviation] == numbers, f"{cell.id}: mean and deviation are not those of {cell.text!r}")
    _require(cell.mean is None or 0 < cell.mean < 100, f"{cell.id}: {cell.mean} is no percentage")
    _require(cell.deviation is None or 0 <= cell.deviation < 10, f"{cell.id}: a deviation of {cell.deviation}")
    _require(isinstance(cell.support, int) and cell.support > 0, f"{cell.id}: {cell.support!r} images")
    _require(0 <= cell.rho < 1, f"{cell.id}: `rho` must be at least 0 and below 1; got {cell.rho}")
