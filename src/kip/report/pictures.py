"""The pictures of a run as PNG: images before and after, the course of the loss, the labels, a matrix of accuracies.

Drawn on matplotlib's Agg canvas without pyplot: no window system is asked for, and no state is shared.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from kip import gallery

INK, FAINT, ACCENT, SECOND = "#22303c", "#b9c4cd", "#1f6fb2", "#c8553d"
DPI = 144
ROOM, TITLE = 32, 26
"""Pixels between sets of images, and for the title over each."""

MOST_NAMES = 30
"""More classes than this are numbered on an axis, not named."""


class Column(NamedTuple):
    """A set of images (n, h, w, ch) with its title and the label vectors its captions come from."""

    title: str
    x: np.ndarray
    y: np.ndarray


def images(columns: Sequence[Column], classes: Sequence[Any]) -> bytes:
    """Sets of images beside one another, each under its title; a caption is a point's index and most likely class.

    All hold the same points, in the set's own order, as in `labels`.
    """
    rows = shown(np.argmax(columns[0].y, axis=1), gallery.MOST)
    across = 5 if len(rows) == 10 else min(10, len(rows), max(2, math.ceil(math.sqrt(len(rows)))))
    of = "" if len(rows) == len(columns[0].x) else f", {len(rows)} of {len(columns[0].x)}"
    sheets = []
    for title, x, y in columns:
        sheets.append((title + of, gallery.sheet([("", x[rows])], gallery.captions(y, classes, rows), columns=across)))
    return _beside(sheets)


def _beside(sheets: Sequence[tuple[str, Image.Image]]) -> bytes:
    """Pictures of one size side by side, with room between them and a title over each."""
    font = ImageFont.truetype(_font(), 16)
    width, height = sheets[0][1].size
    page = Image.new("RGB", (len(sheets) * (width + ROOM) - ROOM, height + TITLE), gallery.PAPER)
    draw = ImageDraw.Draw(page)
    for i, (title, picture) in enumerate(sheets):
        left = i * (width + ROOM)
        page.paste(picture, (left, TITLE))
        draw.text((left + gallery.GAP, 7), title, INK, font=font)
    buffer = io.BytesIO()
    page.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _font() -> str:
    """The font that comes with matplotlib: it has the Greek letters and the accents that Pillow's has not."""
    return str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf")


def shown(codes: np.ndarray, most: int) -> np.ndarray:
    """Rows in their own order, at most `most`, taken from every class in turn."""
    turn = np.zeros(len(codes), int)
    for code in np.unique(codes):
        members = np.flatnonzero(codes == code)
        turn[members] = np.arange(len(members))
    return np.sort(np.lexsort((codes, turn))[:most])


def curve(history: Sequence[Mapping[str, Any]], title: str = "") -> bytes | None:
    """The loss over the steps, and below it the validation accuracy where it was measured; None without a step."""
    if not history:
        return None
    watched = [entry for entry in history if entry.get("validation_accuracy") is not None]
    figure = figure_of(7.2, 5.6 if watched else 3.8)
    panels = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2)) if watched else [figure.subplots()]
    _loss_panel(panels[0], history)
    if title:
        panels[0].set_title(title, loc="left", fontsize=11, color=INK)
    if watched:
        _accuracy_panel(panels[1], watched)
    panels[-1].set_xlabel("step")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return png(figure)


def _loss_panel(axes: Any, history: Sequence[Mapping[str, Any]]) -> None:
    evaluated = [(entry["step"], loss) for entry in history if (loss := _evaluated(entry)) is not None]
    axes.plot([e["step"] for e in history], [e["loss"] for e in history], color=FAINT, linewidth=1.2, label="batch")
    if evaluated:
        steps, losses = zip(*evaluated, strict=True)
        axes.plot(steps, losses, color=ACCENT, linewidth=1.8, marker="o", markersize=3.5, label="evaluation subset")
        best = int(np.argmin(losses))
        axes.plot(steps[best], losses[best], "o", markersize=9, markerfacecolor="none", color=SECOND, label="kept")
    values = [e["loss"] for e in history if e["loss"] > 0] + [loss for _, loss in evaluated if loss > 0]
    if values and max(values) > 4 * min(values):
        axes.set_yscale("log")
    axes.set_ylabel("loss per target")
    axes.legend(frameon=False, fontsize=9)
    plain(axes)


def _evaluated(entry: Mapping[str, Any]) -> float | None:
    """The loss on the evaluation subset, where a step has one."""
    return entry.get("evaluated", entry.get("judged"))  # "judged" in histories of before


def _accuracy_panel(axes: Any, watched: Sequence[Mapping[str, Any]]) -> None:
    steps, values = [e["step"] for e in watched], [100 * e["validation_accuracy"] for e in watched]
    axes.plot(steps, values, color=SECOND, linewidth=1.8, marker="o", markersize=3.5)
    axes.set_ylabel("validation, %")
    plain(axes)


def labels(y: np.ndarray, classes: Sequence[Any]) -> bytes:
    """The labels as a matrix: a row per point, in the order of `images`, a column per class; zero is white."""
    n, c = y.shape
    figure = figure_of(min(9.0, max(4.2, 2.2 + 0.42 * c)), min(8.0, max(3.0, 1.6 + 0.3 * n)))
    axes = figure.subplots()
    most = float(np.abs(y).max()) or 1.0
    drawn = axes.imshow(y, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto", interpolation="nearest")
    _name_columns(axes, classes)
    if n <= MOST_NAMES:
        axes.set_yticks(range(n), [_short(caption) for caption in gallery.captions(y, classes)], fontsize=8)
        axes.set_ylabel("point: index, class")
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel(f"index of the {n} points")
        axes.tick_params(labelsize=8)
    if n * c <= 200:
        _write_values(axes, y, most)
    axes.set_xlabel("class")
    axes.tick_params(length=0)
    _frameless(axes)
    bar = figure.colorbar(drawn, ax=axes, fraction=0.05, pad=0.03)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, length=2)
    return png(figure)


def matrix(values: np.ndarray, rows: Sequence[str], columns: Sequence[str], row_name: str, column_name: str) -> bytes:
    """Accuracies (fractions) as a matrix with its values written in: `rows` by `columns`."""
    figure = figure_of(max(4.5, 2.6 + 0.85 * len(columns)), max(2.6, 1.6 + 0.5 * len(rows)))
    axes = figure.subplots()
    axes.imshow(100 * values, cmap="YlGnBu", aspect="auto", interpolation="nearest")
    long = max(map(len, columns)) > 8
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(range(len(columns)), list(columns), fontsize=9, **turned)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=9)
    dark = np.nanmin(values) + 0.6 * np.ptp(values)
    for i, j in np.ndindex(values.shape):
        shade = "white" if values[i, j] > dark else INK
        axes.text(j, i, f"{100 * values[i, j]:.1f}", ha="center", va="center", fontsize=9, color=shade)
    axes.set_xlabel(column_name)
    axes.set_ylabel(row_name)
    axes.set_title("test accuracy, %", loc="left", fontsize=11, color=INK)
    axes.tick_params(length=0)
    _frameless(axes)
    return png(figure)


def _write_values(axes: Any, values: np.ndarray, most: float) -> None:
    digits = 2 if most < 10 else 1 if most < 100 else 0
    for i, j in np.ndindex(values.shape):
        shade = "white" if abs(values[i, j]) > 0.6 * most else INK
        axes.text(j, i, f"{values[i, j]:.{digits}f}", ha="center", va="center", fontsize=7, color=shade)


def _name_columns(axes: Any, classes: Sequence[Any]) -> None:
    if len(classes) > MOST_NAMES:
        return
    names = [_short(name) for name in classes]
    long = max(map(len, names)) > 3
    turned: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(range(len(names)), names, fontsize=8, **turned)


def _short(name: Any, length: int = 16) -> str:
    text = str(name)
    return text if len(text) <= length else text[: length - 1] + "…"


def figure_of(width: float, height: float) -> Figure:
    """An empty figure of so many inches."""
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def plain(axes: Any) -> None:
    """Leave of the frame what helps reading."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color=FAINT, alpha=0.35, linewidth=0.6)


def _frameless(axes: Any) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)


def png(figure: Figure) -> bytes:
    """The figure as a PNG file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
