"""Pictures: that they show what they are given, at a legible size."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from kip import gallery
from kip.report import pictures
from kip.report.pictures import Column


def opened(data: bytes | None) -> np.ndarray:
    assert data is not None
    with Image.open(io.BytesIO(data)) as image:
        return np.asarray(image.convert("RGB"))


def test_images_stand_side_by_side() -> None:
    dark, light = np.zeros((4, 8, 8, 1)), np.zeros((4, 8, 8, 1))
    light[:, :4] = 1.0
    y = np.eye(2)[[1, 0, 1, 0]]
    picture = opened(pictures.images([Column("before", dark, y), Column("after", light, y)], ["a", "b"]))
    assert picture.shape[1] > 1.5 * picture.shape[0]
    one = opened(pictures.images([Column("before", dark, y)], ["a", "b"]))
    assert picture.shape[1] == 2 * one.shape[1] + pictures.ROOM


def test_images_and_labels_have_one_order_and_captions_that_match(monkeypatch: pytest.MonkeyPatch) -> None:
    y = np.eye(3)[[2, 0, 1, 0]]
    sheets: list[tuple[np.ndarray, list[str]]] = []
    real_sheet = gallery.sheet

    def sheet(rows: list, captions: list[str], columns: int = 10) -> Image.Image:
        sheets.append((rows[0][1], captions))
        return real_sheet(rows, captions, columns)

    figures = []
    real_png = pictures.png
    monkeypatch.setattr(gallery, "sheet", sheet)
    monkeypatch.setattr(pictures, "png", lambda figure: figures.append(figure) or real_png(figure))
    x = np.arange(4.0).reshape(4, 1, 1, 1) * np.ones((4, 5, 5, 1))
    pictures.images([Column("after", x, y)], ["ant", "bee", "cat"])
    pictures.labels(y, ["ant", "bee", "cat"])
    ((drawn, captions),) = sheets
    np.testing.assert_array_equal(drawn, x)
    assert captions == ["#0 cat", "#1 ant", "#2 bee", "#3 ant"]
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == captions
    np.testing.assert_array_equal(axes.images[0].get_array(), y)


def test_at_most_so_many_are_shown_from_every_class_in_turn() -> None:
    codes = np.array([0] * 50 + [1] * 3 + [2] * 50)
    rows = pictures.shown(codes, 9)
    assert codes[rows].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert pictures.shown(np.array([2, 0, 1, 0]), 200).tolist() == [0, 1, 2, 3]  # the set's own order
    rows = pictures.shown(codes, 12)
    assert np.bincount(codes[rows]).tolist() == [5, 3, 4]
    assert sorted(pictures.shown(codes, 200).tolist()) == list(range(103))


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_any_number_of_channels_and_points(channels: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(230, 5, 6, channels))
    y = rng.normal(size=(230, 23))
    names = [f"class {i} ρ é" for i in range(23)]
    assert opened(pictures.images([Column("x", x, y), Column("y", x, y)], names)).shape[0] > 500
    assert opened(pictures.labels(y, names)).std() > 5


def test_curve_has_a_second_panel_where_accuracy_was_watched() -> None:
    plain = [{"step": i, "loss": 1 / i, "evaluated": 1 / i if i % 5 == 0 else None} for i in range(1, 41)]
    watched = [{**entry, "validation_accuracy": 0.5 if entry["evaluated"] else None} for entry in plain]
    assert pictures.curve([]) is None
    low, high = opened(pictures.curve(plain, "title")), opened(pictures.curve(watched, "title"))
    assert high.shape[0] > low.shape[0]
    assert opened(pictures.curve(plain[:1])).shape == low.shape


def test_the_history_of_an_older_run_is_drawn_alike() -> None:
    now = [{"step": i, "loss": 1 / i, **({"evaluated": 2 / i} if i % 5 == 0 else {})} for i in range(1, 41)]
    older = [{{"evaluated": "judged"}.get(name, name): value for name, value in entry.items()} for entry in now]
    without = [{"step": entry["step"], "loss": entry["loss"]} for entry in now]
    assert pictures.curve(older) == pictures.curve(now) != pictures.curve(without)


def test_the_loss_is_named_in_plain_words(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = []
    monkeypatch.setattr(pictures, "png", lambda figure: figures.append(figure) or b"")
    pictures.curve([{"step": 1, "loss": 1.0, "evaluated": 1.0}])
    axes = figures[0].axes[0]
    assert axes.get_ylabel() == "loss per target"
    assert axes.get_legend_handles_labels()[1] == ["batch", "evaluation subset", "kept"]


def test_labels_of_one_value_do_not_fail() -> None:
    assert opened(pictures.labels(np.zeros((2, 2)), ["a", "b"])).size


def test_matrix() -> None:
    values = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    picture = opened(pictures.matrix(values, ["a", "b", "c"], ["rbf", "fc1:nngp:standard=1024"], "made", "tested"))
    assert picture.shape[0] > 300
    assert opened(pictures.matrix(np.full((1, 1), 0.5), ["a"], ["rbf"], "made", "tested")).size


def test_no_window_system_is_asked_for() -> None:
    code = """
import sys
import kip.report.pictures
assert "matplotlib.pyplot" not in sys.modules
assert "tkinter" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("arms", [["natural", "distilled"], ["natural", "natural corrupted", "distilled corrupted"]])
def test_scatter_has_a_panel_a_network(arms: list[str]) -> None:
    from kip.report import networks

    grid = [
        {
            "settings": {"rate": rate},
            "arms": {arm: {"test_accuracy": 0.2 + rate + 0.01 * i} for i, arm in enumerate(arms)},
        }
        for rate in (0.1, 0.2)
    ]
    found = {"grid": grid, "chosen": {arm: {"settings": {"rate": 0.2}} for arm in arms}}
    one = opened(networks.scatter({"fc1": found}, "title"))
    two = opened(networks.scatter({"fc1": found, "lenet": found}))
    assert two.shape[1] > 1.5 * one.shape[1]
    assert one.std() > 5
