"""What all pictures share: colours, a blank figure, plain axes, and the bytes of a PNG."""

from __future__ import annotations

import io
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

INK, FAINT, ACCENT, SECOND = "#22303c", "#b9c4cd", "#1f6fb2", "#c8553d"
DPI = 144


def figure(width: float, height: float) -> Figure:
    """A blank figure of so many inches."""
    blank = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    FigureCanvasAgg(blank)
    return blank


def plain(axes: Any) -> None:
    """Two spines and a faint grid."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT)
    axes.tick_params(colors=INK, labelsize=9)
    axes.grid(axis="y", color=FAINT, alpha=0.35, linewidth=0.6)


def frameless(axes: Any) -> None:
    """No spines at all, for matrices."""
    for spine in axes.spines.values():
        spine.set_visible(False)


def png(drawn: Figure) -> bytes:
    """The figure as the bytes of a PNG file."""
    buffer = io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()
