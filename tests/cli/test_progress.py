"""Tables and progress lines at any width of the terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from rich.table import Table

from kip.cli import progress
from kip.cli.measure import Measured, Row

ROWS = (
    Row("distilled", 0.9499, None, 10, 144.0, 0.039),
    Row("random subset", 0.6393, 0.059, 10, 144.0, 0.35),
    Row("full training set", 0.9889, None, 60_000, 1.0, 0.0),
)


@pytest.fixture
def width(request: pytest.FixtureRequest) -> Iterator[int]:
    before = progress.console._width
    progress.console.width = request.param
    yield request.param
    progress.console._width = before


@pytest.mark.parametrize("width", [40, 50, 80, 200], indirect=True)
def test_the_comparison_is_whole_at_every_width(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    progress.show(Measured({}, ROWS).table("digits → 10 images, kernel rbf, seed 0", "images"))
    out = capsys.readouterr().out
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= width
    words = " ".join(re.sub("[│┃]", " ", out).split())
    for cell in ("random subset", "full training set", "63.93 ± 5.9 %", "60,000", "144×", "0.350", "compression"):
        assert cell in words
    assert ("│" in out) == (width >= 80)  # below that one row stands under another


@pytest.mark.parametrize("width", [40], indirect=True)
def test_markup_captions_and_empty_cells_of_a_narrow_table(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table(caption="* made for this kernel")
    for heading in ("kernel", "a-run-with-a-long-name", "b", "c"):
        table.add_column(heading)
    table.add_row("rbf [dim]NTK[/]", "[bold green]99.10 *[/]", "", "word " * 12)
    progress.show(table)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["rbf NTK", "  a-run-with-a-long-name  99.10 *"]
    assert not any(line.startswith("  b") for line in lines)
    assert lines[-1] == "* made for this kernel"
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "bar"), [(40, False), (80, True)], indirect=["width"])
def test_a_narrow_progress_line_leaves_the_bar_out(width: int, bar: bool) -> None:
    from rich.progress import BarColumn, TextColumn

    columns = progress._that_fit(TextColumn("a"), TextColumn("b"), TextColumn("c"))
    assert any(isinstance(column, BarColumn) for column in columns) == bar
