"""The library and the command line give the same set, to the bit, from the same data and options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.support import require_dataset

import kip
from kip.cli import main
from kip.cli.common import class_names
from kip.data import Dataset, load


def assert_the_same(data: str, tmp_path: Path, dataset: Dataset, *place: str, **options: Any) -> kip.DistilledSet:
    """Distil `data` by either way with `options`, as Python has them."""
    tokens = []
    for name, value in options.items():
        flag = "--for" if name == "purpose" else f"--{name.replace('_', '-')}"
        tokens += [flag] if value is True else [flag, str(value)]
    folder = tmp_path / "run"
    assert main(["distill", "--data", data, *place, *tokens, "--draws", "0", "--out", str(folder)]) == 0
    theirs = kip.load(folder)
    y = np.asarray(class_names(dataset))[dataset.y_train]
    ours = kip.distill(dataset.x_train, y, **{"size": None, **options}, kind=dataset.kind)
    np.testing.assert_array_equal(ours.x, theirs.x)
    np.testing.assert_array_equal(ours.y, theirs.y)
    assert ours.classes == theirs.classes
    assert ours.kernel == theirs.kernel
    assert ours.config == {name: value for name, value in theirs.config.items() if name != "data"}
    return ours


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"size": 50, "labels": "learned", "batch": 100},
        {"augment": "auto", "corruption": 0.3, "validation": 0.2, "seed": 3},
        {"kernel": "0.5*rbf&fc1", "preprocess": "zca", "targets": 300, "by_pixel": True, "corruption": 0.2},
        {"kernel": "conv1", "targets": 100, "init": "noise"},
    ],
    ids=["defaults", "learned", "augmented", "a sum", "convolutional"],
)
def test_digits(options: dict[str, Any], tmp_path: Path) -> None:
    assert_the_same("digits", tmp_path, load("digits"), steps=3, **options)


def test_for_networks(tmp_path: Path) -> None:
    small = assert_the_same("digits", tmp_path, load("digits"), steps=2, purpose="networks", targets=60)
    assert small.config["labels"] == "fixed"
    assert small.kernel.count("+") == 4


@pytest.fixture
def photographs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    return np.clip(rng.normal(90 + 40 * y[:, None, None, None], 30, (60, 8, 6, 3)), 0, 255).astype(np.uint8), y


@pytest.mark.parametrize("options", [{}, {"augment": "auto"}, {"augment": "photos:0.1"}], ids=str)
def test_small_colour_images_in_an_npz(
    options: dict[str, Any], photographs: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    path = tmp_path / "own.npz"
    np.savez(path, x=photographs[0], y=np.array(["ant", "bee", "cat"])[photographs[1]])
    small = assert_the_same(str(path), tmp_path, load(path), steps=4, size=6, **options)
    assert small.config["kind"] == "photos"
    assert small.config["augment"] == options.get("augment", "flips").replace("auto", "photos")


def test_a_folder_of_images(photographs: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    for number, (image, code) in enumerate(zip(*photographs, strict=True)):
        folder = tmp_path / "images" / f"class {code}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{number}.png")
    root = tmp_path / "images"
    assert_the_same(str(root), tmp_path, load(root, resize=4), "--resize", "4", steps=4, size=6)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
@pytest.mark.parametrize("options", [{}, {"augment": "auto", "size": 50}], ids=["defaults", "augmented"])
def test_named_data_sets(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    dataset = require_dataset(name)
    small = assert_the_same(name, tmp_path, dataset, steps=3, targets=2000, **options)
    assert small.config["kind"] == {"mnist": "digits", "cifar10": "photos"}[name]
