"""A folder of one's own pictures and a table distil with no code, and what comes out predicts elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import kip
from kip.cli import main
from kip.cli.options import DataOptions
from kip.data import load

CLASSES = {"Küche blå": 14, "été à la mer": 8, "plain": 11}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Grey and colour pictures of many sizes; a bar at another height for each class, of which one is rare."""
    rng = np.random.default_rng(0)
    root = tmp_path / "mes photos é"
    for c, (name, count) in enumerate(CLASSES.items()):
        (root / name).mkdir(parents=True)
        for i in range(count):
            side = int(rng.integers(12, 24))
            pixels = rng.integers(0, 60, (side, side + i % 4)).astype(np.uint8)
            row = (1, side // 2, side - 4)[c]
            pixels[row : row + 3] = 220
            colour = np.stack([pixels, pixels // 2, pixels], axis=-1)
            Image.fromarray(colour if i % 2 else pixels).save(root / name / f"image {i} ñ.png")
    return root


def predicted_elsewhere(run: Path, raw: np.ndarray, elsewhere: Path) -> list[str]:
    """What a fresh process, in another folder, predicts with nothing but the run folder."""
    np.save(elsewhere / "raw.npy", raw)
    code = f"import json, kip, numpy; print(json.dumps(kip.load({str(run)!r}).predict(numpy.load('raw.npy')).tolist()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=elsewhere, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def test_a_folder_of_mixed_pictures(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(photos.parent)
    command = ["distill", "--data", photos.name, "--size", "6", "--steps", "10", "--draws", "2"]
    assert main(command) == 2
    assert "--resize" in capsys.readouterr().err
    assert main([*command, "--resize", "10"]) == 0
    run = photos.parent / "runs" / "mes-photos-é-rbf-6-s0"
    data = load(photos, resize=10)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = predicted_elsewhere(run, data.x_test, elsewhere)
    truth = np.array(data.classes)[data.y_test]
    accuracy = json.loads((run / "metrics.json").read_text())["test_accuracy"]
    assert np.mean(np.array(found) == truth) == accuracy > 0.6
    assert set(kip.load(run).classes) == set(CLASSES)

    assert json.loads((run / "config.json").read_text())["fit"] == "crop"
    monkeypatch.chdir(elsewhere)  # the run remembers where its data lie
    assert main(["evaluate", str(run), "--kernels", "rbf"]) == 0
    assert json.loads((run / "evaluate.json").read_text())["test_accuracy"]["rbf"] == accuracy


def test_accents_survive_a_locale_without_them(photos: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONIOENCODING", "LANG")}
    environment |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONWARNDEFAULTENCODING": "1"}
    command = [sys.executable, "-m", "kip.cli", "distill", "--data", photos.name, "--resize", "10", "--size", "6"]
    done = subprocess.run(
        [*command, "--steps", "2", "--draws", "1"], cwd=photos.parent, env=environment, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"EncodingWarning" not in b"".join(line for line in done.stderr.splitlines() if b"kip" in line)
    run = photos.parent / "runs" / "mes-photos-é-rbf-6-s0"
    for path in (*run.glob("*.json"), *run.glob("*.jsonl"), *run.glob("*.md")):
        assert path.read_text(encoding="utf-8")
    assert set(kip.load(run).classes) == set(CLASSES)
    assert json.loads((run / "config.json").read_text(encoding="utf-8"))["data"] == str(photos)
    for more in ([], ["--data", photos.name]):
        again = [sys.executable, "-m", "kip.cli", "evaluate", f"runs/{run.name}", "--kernels", "rbf", *more]
        assert subprocess.run(again, cwd=photos.parent, env=environment, check=False).returncode == 0
    found = json.loads((run / "evaluate.json").read_text(encoding="utf-8"))["test_accuracy"]["rbf"]
    assert found == json.loads((run / "metrics.json").read_text(encoding="utf-8"))["test_accuracy"]


def test_a_heading_with_accents_is_found_in_a_locale_without_them() -> None:
    given = "espèce".encode().decode("ascii", "surrogateescape")  # as Python gives the argument there
    assert DataOptions(label=given).label == "espèce"


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    names = np.repeat(["lys", "rose", "œillet"], 40)
    x = rng.normal(size=(120, 4)) + 4 * np.repeat(np.eye(3, 4), 40, axis=0)
    rows = [",".join([name, *(f"{value:.5f}" for value in row)]) for name, row in zip(names, x, strict=True)]
    monkeypatch.chdir(tmp_path)
    Path("mes fleurs.csv").write_text("\n".join(["espèce,a,b,c,d", *rows]), encoding="utf-8")
    command = ["distill", "--data", "mes fleurs.csv", "--label", "espèce", "--size", "6", "--steps", "20"]
    assert main([*command, "--draws", "2"]) == 0
    run = tmp_path / "runs" / "mes-fleurs-rbf-6-s0"
    assert not (run / "images.png").exists()
    assert (run / "labels.png").exists()
    data = load(Path("mes fleurs.csv"), label="espèce")
    found = predicted_elsewhere(run, data.x_test, tmp_path)
    accuracy = json.loads((run / "metrics.json").read_text())["test_accuracy"]
    assert np.mean(np.array(found) == np.array(data.classes)[data.y_test]) == accuracy > 0.8


def test_integer_classes_are_predicted_as_integers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    y = np.repeat([7, -2], 30)
    x = rng.normal(size=(60, 3)) + y[:, None]
    np.savez(tmp_path / "two.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    assert main(["distill", "--data", "two.npz", "--steps", "2", "--draws", "0", "--out", "run"]) == 0
    small = kip.load("run")
    assert len(small) == 10
    assert small.predict(x[:1]).tolist() == [7]
    assert small.score(x, y) > 0.9


def test_channels_may_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(3)
    y = np.arange(60) % 2
    x = (rng.integers(0, 99, (60, 3, 6, 7)) + 100 * y[:, None, None, None]).astype(np.uint8)
    np.savez(tmp_path / "torch.npz", x=x, y=y)
    monkeypatch.chdir(tmp_path)
    command = ["distill", "--data", "torch.npz", "--steps", "2", "--draws", "0", "--augment", "none", "--out", "run"]
    assert main(command) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "looks like (n, channels, h, w)" in said
    assert "layout" in said
    assert main([*command, "--layout", "channels-first"]) == 0
    small = kip.load("run")
    assert small.x.shape[1:] == (6, 7, 3)
    assert small.score(x, y, layout="channels-first") > 0.9
    assert main(["evaluate", "run", "--kernels", "rbf"]) == 0  # read as the run read it
    accuracy = json.loads(Path("run/metrics.json").read_text())["test_accuracy"]
    assert json.loads(Path("run/evaluate.json").read_text())["test_accuracy"]["rbf"] == accuracy
    assert main(["distill", "--config", "run/config.json", "--out", "again"]) == 0
    assert kip.load("again") == small
