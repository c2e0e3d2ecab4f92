"""The scatter of natural against distilled accuracy over a grid of settings (the paper's Figure 3), as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kip.report.pictures import ACCENT, FAINT, INK, SECOND, figure_of, plain, png

PAIRS = (("natural", "distilled", ACCENT), ("natural corrupted", "distilled corrupted", SECOND))
"""Arms drawn against each other, and in what colour."""


def scatter(networks: Mapping[str, Mapping[str, Any]], title: str = "") -> bytes:
    """One panel per network: each grid point by its accuracy on natural (across) and on distilled images (up).

    `networks` is what `transfer.json` holds of each network. Points above the diagonal are settings at which the
    distilled images train the better network; a ring is the setting chosen for the distilled images.
    """
    figure = figure_of(max(4.2, 3.4 * len(networks) + 0.6), 3.9)
    panels = figure.subplots(1, len(networks), squeeze=False)[0]
    for axes, (name, found) in zip(panels, networks.items(), strict=True):
        _panel(axes, found)
        axes.set_title(name, fontsize=11, color=INK)
        axes.set_xlabel("natural images, %")
    panels[0].set_ylabel("distilled images, %")
    if title:
        figure.suptitle(title, fontsize=11, color=INK)
    return png(figure)


def _panel(axes: Any, found: Mapping[str, Any]) -> None:
    drawn: list[float] = []
    for across, up, colour in PAIRS:
        pairs = [_pair(point, across, up) for point in found["grid"] if across in point["arms"] and up in point["arms"]]
        if not pairs:
            continue
        chosen = [point["settings"] == found["chosen"][up]["settings"] for point in found["grid"]]
        axes.plot(*zip(*pairs, strict=True), "o", markersize=5, alpha=0.75, color=colour, label=_legend(up))
        for pair, ring in zip(pairs, chosen, strict=True):
            if ring:
                axes.plot(*pair, "o", markersize=11, markerfacecolor="none", color=colour)
        drawn += [value for pair in pairs for value in pair]
    if not drawn:
        return
    low, high = _limits(drawn)
    axes.plot([low, high], [low, high], color=FAINT, linewidth=1.2, zorder=0)
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    plain(axes)


def _pair(point: Mapping[str, Any], across: str, up: str) -> tuple[float, float]:
    return 100 * point["arms"][across]["test_accuracy"], 100 * point["arms"][up]["test_accuracy"]


def _legend(arm: str) -> str:
    return "corrupted" if arm.endswith("corrupted") else "clean"


def _limits(values: Sequence[float]) -> tuple[float, float]:
    margin = max(2.0, 0.08 * (max(values) - min(values)))
    return max(0.0, min(values) - margin), min(100.0, max(values) + margin)
