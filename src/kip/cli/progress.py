"""What is shown while a run is under way, and how it is asked to stop."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Protocol

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

console = Console(highlight=False, soft_wrap=False)
"""Where commands print; it finds `sys.stdout` when it prints."""


class StoppedError(Exception):
    """What was under way was left, because of an interrupt."""


class Interrupt:
    """Ctrl-C and SIGTERM, taken as a wish to stop after the step at hand; said twice, at once.

    Use as a context: inside it `requested` is the signal that came, or None.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no handlers
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._received)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _received(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested is not None:
            raise KeyboardInterrupt
        self.requested = number
        # Straight to the descriptor: a handler may have come in the middle of another print.
        os.write(2, b"\nkip: stopping after this step, then saving; once more stops at once\n")

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.requested is not None

    def check(self) -> None:
        """Stop here, by an exception, if that was asked for."""
        if self.requested is not None:
            raise StoppedError

    @property
    def status(self) -> int:
        """The exit status by which a shell knows the signal; 0 where none came."""
        return 0 if self.requested is None else 128 + self.requested


class Step(Protocol):
    """What is shown of a step: its Info, and the last accuracy on the validation split."""

    @property
    def info(self) -> Any: ...

    @property
    def accuracy(self) -> float | None: ...


class Ticker(Protocol):
    """Shows a step."""

    def __call__(self, seen: Step, /) -> None:
        """Show one."""


@contextlib.contextmanager
def steps(total: int, start: int = 0, budget: float | None = None) -> Iterator[Ticker]:
    """A bar with step, loss, rate and time left on a terminal; elsewhere a plain line per evaluation."""
    pace = _Pace(total, start, budget)
    if not console.is_terminal:
        yield _lines(pace)
        return
    columns = _that_fit(
        TextColumn("[bold]step {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, expand=True) as bar:
        task = bar.add_task("", total=total, completed=start, loss="…", rate="", left="compiling")

        def show(seen: Step) -> None:
            step, loss = seen.info.step, seen.info.loss
            pace.at(step)
            watched = "" if seen.accuracy is None else f"  validation {seen.accuracy:.1%}"
            bar.update(task, completed=step, loss=f"{loss:.4g}{watched}", rate=pace.rate, left=pace.left)

        yield show


NARROW = 60
"""Columns of a terminal below which progress is shown without its bar and its rate, which would cut the rest."""


def _that_fit(name: TextColumn, done: TextColumn, left: TextColumn) -> tuple[ProgressColumn, ...]:
    """The columns of a progress line; a bar and the rate where there is room."""
    if console.width < NARROW:
        return name, done, left
    return name, BarColumn(bar_width=None), done, TextColumn("[dim]{task.fields[rate]}"), left


def _lines(pace: _Pace) -> Ticker:
    def show(seen: Step) -> None:
        step, evaluated = seen.info.step, seen.info.evaluated  # the loss of a batch says little on its own
        pace.at(step)
        if evaluated is None:
            return
        watched = "" if seen.accuracy is None else f"  validation {seen.accuracy:.1%}"
        count = f"{step:>{len(str(pace.total))}}/{pace.total}"
        say(f"step {count}  loss {evaluated:.4g}{watched}  {pace.rate}  {pace.left}")

    return show


LINE_EVERY = 20.0
"""Seconds between the lines that tell of a long computation where there is no terminal."""


@contextlib.contextmanager
def pairs(text: str, total: int | None) -> Iterator[Callable[[int, bool], None]]:
    """A bar with pairs a second and time left on a terminal; elsewhere a plain line now and then.

    Yields what is to be told of each tile: its number of pairs, and whether they were computed or found. Where `total`
    is not known beforehand the bar has no end.
    """
    pace = _Pace(total or sys.maxsize, 0, None, unit="pairs")
    if not console.is_terminal:
        say(text)
        yield _pair_lines(text, pace, total)
        return
    columns = _that_fit(
        TextColumn("[bold]{task.description}"),
        TextColumn("{task.fields[count]} pairs"),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console, expand=True, transient=True) as bar:
        task = bar.add_task(text, total=total, count=_count(0, total), rate="", left="")

        def show(count: int, fresh: bool) -> None:
            pace.at(pace.step + count, fresh=fresh)
            left = pace.left if total else ""
            bar.update(task, completed=pace.step, count=_count(pace.step, total), rate=pace.rate, left=left)

        yield show


def _pair_lines(text: str, pace: _Pace, total: int | None) -> Callable[[int, bool], None]:
    said = pace.now

    def show(count: int, fresh: bool) -> None:
        nonlocal said
        pace.at(pace.step + count, fresh=fresh)
        if pace.now - said >= LINE_EVERY:
            said = pace.now
            say("  ".join([f"{text}: {_count(pace.step, total)} pairs", pace.rate, *([pace.left] if total else [])]))

    return show


def _count(done: int, total: int | None) -> str:
    return f"{done:,}" if total is None else f"{done:,}/{total:,}"


class _Pace:
    """Steps a second since the first step, which compiles, and what is left."""

    def __init__(
        self,
        total: int,
        start: int,
        budget: float | None,
        clock: Callable[[], float] = time.monotonic,
        unit: str = "steps",
    ) -> None:
        self.total, self.step, self.clock, self.unit = total, start, clock, unit
        self.first: tuple[float, int] | None = None
        self.end = None if budget is None else clock() + budget
        self.now = self.began = clock()

    def at(self, step: int, *, fresh: bool = True) -> None:
        """Be at `step`; where that was not reached by work (not `fresh`), it says nothing of the pace."""
        before, self.step, self.now = self.step, step, self.clock()
        if self.first is None:
            self.first = (self.now, step) if fresh else None
        elif not fresh:
            self.first = (self.first[0], self.first[1] + step - before)

    @property
    def per_second(self) -> float:
        if self.first is None or self.step == self.first[1]:
            return 0.0
        return (self.step - self.first[1]) / max(self.now - self.first[0], 1e-9)

    @property
    def rate(self) -> str:
        rate = self.per_second
        return "" if not rate else f"{rate:,.0f} {self.unit}/s" if rate >= 10 else f"{rate:.2g} {self.unit}/s"

    @property
    def left(self) -> str:
        if self.step >= self.total:
            return f"in {duration(self.now - self.began)}"
        guesses = [(self.total - self.step) / self.per_second] if self.per_second else []
        guesses += [] if self.end is None else [max(self.end - self.now, 0)]
        return f"{duration(min(guesses))} left" if guesses else ""


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(75.2), duration(3.26), duration(7300)
    ('1:15', '3.3 s', '2:01:40')
    """
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(text: str) -> None:
    """Print a line as it is: neither markup nor wrapping."""
    console.print(text, markup=False, soft_wrap=True)


def show(table: Table) -> None:
    """Print a table, or where the terminal is too narrow for it, its rows one below another: no cell is ever cut."""
    if _needed_width(table) <= console.width:
        console.print(table)
        return
    headings = [_text(column.header) for column in table.columns]
    if table.title:
        console.print(table.title, style="bold")
    for row, cells in zip(table.rows, zip(*(column.cells for column in table.columns), strict=True), strict=True):
        name, *values = map(_text, cells)
        console.print(name.plain.strip(), style=row.style or "bold", markup=False)
        record = Table.grid(padding=(0, 2))
        widest = max(cell_len(heading.plain) for heading in headings[1:]) + 2
        record.add_column(overflow="fold", min_width=min(widest, 2 * console.width // 3))
        record.add_column(overflow="fold")
        for heading, value in zip(headings[1:], values, strict=True):
            if value.plain.strip():
                record.add_row(f"  {' '.join(heading.plain.split())}", value)
        console.print(record)
    if table.caption:
        console.print(table.caption, style="dim")


def _needed_width(table: Table) -> int:
    """The columns a table takes where text wraps between words, and what must not wrap stays whole."""
    _, right, _, left = table.padding
    widths = [
        max(_widest(_text(each), column.no_wrap) for each in (column.header, *column.cells)) for column in table.columns
    ]
    return sum(widths) + len(widths) * (left + right + 1) + 1


def _widest(text: Text, whole: bool) -> int:
    pieces = text.plain.splitlines() if whole else text.plain.split()
    return max(map(cell_len, pieces), default=0)


def _text(cell: RenderableType) -> Text:
    """A cell of text, with its markup read."""
    return console.render_str(str(cell))


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """A spinner with a word of what is being done, on a terminal; a line elsewhere."""
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        say(text)
        yield
