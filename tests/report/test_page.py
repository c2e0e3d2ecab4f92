"""The page and its figures, made from a small folder of results."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from kip.files import write_json
from kip.paper import recipes, store
from kip.paper.running import Result
from kip.report import page

CLAIM = {
    "verdict": "holds in part",
    "rules": [
        {"statement": "images do better", "holds": True, "clear": True},
        {"statement": "always", "holds": False, "clear": False},
    ],
    "trials": {"image": {"mean": 90.0, "deviation": 0.5, "accuracies": [89.5, 90.5]}},
}


def put(folder: Path, cell: str, *accuracies: float, details: dict | None = None, deviations: tuple = ()) -> None:
    recipe, _, name = cell.partition("/")
    result = Result(tuple(a / 100 for a in accuracies), 60.0, deviations, details or {})
    store.append(folder, [store.record(recipes.cells(recipe, [name])[0], result)])


@pytest.fixture
def results(tmp_path: Path) -> Path:
    put(tmp_path, "mnist-baselines/rbf-kip-100", 97.2, 97.4, deviations=("900 of 10,000 steps (5 minutes)",))
    put(tmp_path, "mnist-baselines/rbf-kip-10", 80.0)
    put(tmp_path, "mnist-baselines/rbf-ours-10", 92.0, 91.0, 93.0)
    put(tmp_path, "mnist-subsets/rbf-10", 45.0, 47.0)
    put(tmp_path, "mnist-subsets/rbf-10-unbalanced", 39.0, 41.0)
    put(tmp_path, "mnist-sweep-mse/natural-1000-rho0", 92.5)
    put(tmp_path, "label-solve/mnist-fc1-10-of-500", 50.0, 52.0)
    put(tmp_path, "kernel-transfer/fc1-10", 25.0)
    put(tmp_path, "label-transfer/myrtle10-labels-fc1-10", 15.0)
    put(tmp_path, "claims/image-init", details=CLAIM)
    return tmp_path


def test_published_and_measured_stand_side_by_side(results: Path) -> None:
    page.write(results)
    text = (results / "README.md").read_text(encoding="utf-8")
    kip = next(line for line in text.splitlines() if line.startswith("| KRR | RBF, KIP |"))  # CIFAR-10 has one too
    assert "89.60±0.09 / **80.00** ↓" in kip
    assert "97.31±0.09 / **97.30±0.14** ✓" in kip
    assert "98.29±0.06 / – |" in kip  # not run
    (prior,) = [line for line in text.splitlines() if line.startswith("| NN | LeNet, SLDD |")]
    assert prior == "| NN | LeNet, SLDD |  | *82.7±2.8* |  |  |  |"
    ours = text[text.index("### Ours") :].splitlines()
    assert any(line.startswith("| KRR | RBF, KIP (a + l) | 90.63±0.27 / **92.00±1.00** ✓") for line in ours)
    assert "| rbf-10-unbalanced | 45.3±3.9 / **40.00±1.41** ↓ |" in text
    assert "- 900 of 10,000 steps (5 minutes): `rbf-kip-100`" in text


def test_what_the_paper_gives_no_number_for_is_listed(results: Path) -> None:
    page.write(results)
    text = (results / "README.md").read_text(encoding="utf-8")
    assert "| MNIST, FC1, 10 images | **51.00±1.41** | – |" in text
    assert "| fc1 | **25.00** | – | – |" in text
    assert "| 10 images | tested with myrtle10 | tested with fc1 |" in text
    assert "| myrtle10 labels |  | **15.00** |" in text
    assert "> We found image initialization to perform better." in text
    assert "Image initialisation does better than noise initialisation.** Holds in part." in text
    assert "- ✓ images do better\n- ✗ always (within the noise of the runs)\n" in text
    assert "| image | 90.00±0.50 |" in text
    assert "Labels learned for kernel ridge-regression often harm networks trained on them.** Not run." in text


def test_what_was_tried_with_other_settings_is_told(results: Path) -> None:
    records = store.read(results, "mnist-baselines")
    older = {**records[1], "measured": {"mean": 70.0, "deviation": None}}
    older["work"] = {**older["work"], "batch": 100}
    del older["work"]["schedule"]  # as if it had come later
    ours = {**records[2], "details": {"options": {"augment": "digits"}}}  # whose work leaves the augmentation open
    oldest = {**ours, "measured": {"mean": 70.0, "deviation": None}, "details": {"options": {"augment": "none"}}}
    write_json(results / "mnist-baselines.json", [oldest, older, *records[:2], ours])
    page.write(results)
    text = (results / "README.md").read_text(encoding="utf-8")
    assert "- `rbf-ours-10` with augment none: 70.00\n" in text  # a default that has changed since
    assert "- `rbf-kip-10` with batch 100, no schedule: 70.00\n" in text
    assert "89.60±0.09 / **80.00** ↓" in text


def test_options_that_are_recorded_since_are_no_other_settings(results: Path) -> None:
    record = store.read(results, "mnist-baselines")[1]
    older = {**record, "details": {"options": {"labels": "auto", "judge_every": 50}}}
    newer = {**record, "details": {"options": {"labels": "solved", "evaluate_every": 50, "kind": "digits"}}}
    write_json(results / "mnist-baselines.json", [older, newer])
    page.write(results)
    assert "Tried before" not in (results / "README.md").read_text(encoding="utf-8")


def test_the_summary_counts_every_cell_once(results: Path) -> None:
    page.write(results)
    lines = (results / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|")[3:-1] for line in lines if line.startswith("| [")]
    total = sum(int(entry) for row in rows for entry in row if entry.strip())
    assert total == sum(len(each.cells) for each in recipes.recipes())


def test_figures_are_drawn_from_what_was_measured(results: Path) -> None:
    page.write(results)
    names = {path.stem for path in (results / "figures").iterdir()}
    assert names == {"mnist-baselines", "mnist-subsets", "mnist-sweep-mse", "label-solve", "kernel-transfer"}
    text = (results / "README.md").read_text(encoding="utf-8")
    for name in names:
        assert f"(figures/{name}.png)" in text
        picture = Image.open(io.BytesIO((results / "figures" / f"{name}.png").read_bytes()))
        assert picture.width > 500
        assert len(picture.convert("L").getcolors(256) or ()) > 10  # something is drawn


def test_without_results_there_is_a_page_and_no_figure(tmp_path: Path) -> None:
    page.write(tmp_path)
    assert (tmp_path / "README.md").is_file()
    assert not (tmp_path / "figures").exists()
