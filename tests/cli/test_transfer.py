"""`kip transfer` end to end on the digits, and what `kip distill --for networks` presets."""

from __future__ import annotations

import builtins
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import kip
from kip import cli, defaults
from kip.cli import evaluate, main
from kip.cli.transfer import FULL_BATCH, TrainOptions, _Plan
from kip.data import load
from kip.options import Options

QUICK = ["--net", "fc1:8,convnet:4", "--steps", "4", "--seeds", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    options = ["--steps", "2", "--draws", "0", "--validation", "0.1", "--corruption", "0.5"]
    assert main(["distill", *options, "--out", str(folder)]) == 0
    return folder


def test_a_run_is_compared_with_natural_images(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer", str(run), *QUICK]) == 0
    printed = capsys.readouterr().out
    found = json.loads((run / "transfer.json").read_text())
    assert found["validation"] == {"size": 139, "unseen_by_distillation": True}
    assert (found["corruption"], found["certificate"]) == (0.5, True)
    assert list(found["networks"]) == ["fc1:8", "convnet:4"]
    for network in found["networks"].values():
        assert list(network["chosen"]) == ["distilled corrupted", "natural", "natural corrupted"]
        for arm in network["chosen"].values():
            assert len(arm["test_accuracies"]) == 2
            assert arm["test_accuracy"] == pytest.approx(sum(arm["test_accuracies"]) / 2)
            assert arm["epsilon_weak"] is None
            assert f"{100 * arm['test_accuracy']:.2f}" in printed
    with Image.open(run / "transfer.png") as image:
        assert image.width > 400


def test_a_grid_keeps_every_point_and_other_networks_results(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "found.json"
    assert main(["transfer", str(run), "--net", "fc1:8", "--steps", "2", "--seeds", "1", "--out", str(out)]) == 0
    again = ["transfer", str(run), "--net", "convnet:4", "--steps", "2", "--seeds", "2", "--out", str(out)]
    assert main([*again, "--grid", "--loss", "mse", "--full", "--time-budget", "60s"]) == 0
    networks = json.loads(out.read_text())["networks"]
    assert list(networks) == ["fc1:8", "convnet:4"]
    found = networks["convnet:4"]
    assert len(found["grid"]) + found["grid_left_out"] == 6
    assert all(point["settings"]["loss"] == "mse" for point in found["grid"])
    tried = {arm: [point["arms"][arm] for point in found["grid"]] for arm in found["chosen"]}
    for arm, chosen in found["chosen"].items():
        values = [point["validation_accuracy"] for point in tried[arm]]
        assert chosen["settings"] == found["grid"][values.index(max(values))]["settings"]
        full = found["full"]["test_accuracy"]
        assert chosen["epsilon_weak"] == pytest.approx(abs(full - chosen["test_accuracy"]))
    used = found["full"]["settings"]
    assert used == {**found["chosen"]["natural"]["settings"], "batch": FULL_BATCH, "steps": used["steps"]}
    assert used["steps"] >= found["full"]["last_step"] >= found["full"]["step"] > 0
    assert (found["seeds"], found["grid_seeds"], found["time_budget"]) == (2, 1, 60)
    assert out.with_suffix(".png").exists()


def test_points_are_augmented_as_the_data_have_it(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    command = ["transfer", str(run), "--net", "fc1:8", "--steps", "1", "--seeds", "1", "--out", str(out), "--augment"]
    assert main(command) == 0
    assert json.loads(out.read_text())["networks"]["fc1:8"]["grid"][0]["settings"]["augment"] == "digits"


def test_a_clean_set_is_compared_with_noise_put_on_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file says which noise, and holds no networks of another."""
    folder, out = tmp_path / "clean", tmp_path / "found.json"
    assert main(["distill", "--steps", "1", "--draws", "0", "--validation", "0.1", "--out", str(folder)]) == 0
    command = ["transfer", str(folder), "--steps", "1", "--seeds", "1", "--out", str(out), "--corruption", "0.9"]
    for name in ("fc1:8", "fc2:8"):
        assert main([*command, "--net", name]) == 0
    found = json.loads(out.read_text())
    assert (found["corruption"], found["certificate"]) == (0.9, None)
    assert list(found["networks"]) == ["fc1:8", "fc2:8"]
    network = found["networks"]["fc1:8"]
    assert list(network["chosen"]) == ["distilled", "natural", "distilled corrupted", "natural corrupted"]
    assert (network["seeds"], network["grid_seeds"], network["time_budget"]) == (1, None, None)
    capsys.readouterr()
    assert main([*command[:-2], "--net", "fc3:8"]) == 0
    assert "held networks of another corruption: fc1:8, fc2:8 left out" in " ".join(capsys.readouterr().out.split())
    found = json.loads(out.read_text())
    assert (found["corruption"], list(found["networks"])) == (0, ["fc3:8"])


def test_a_network_stopped_half_way_is_no_result(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kip.nets import grid

    out = tmp_path / "found.json"
    command = ["transfer", str(run), "--steps", "4", "--seeds", "1", "--out", str(out), "--net"]
    assert main([*command, "convnet:4"]) == 0
    before = json.loads(out.read_text())["networks"]["convnet:4"]
    real = grid.train

    def interrupted(net: str, *rest: Any, **more: Any) -> Any:
        if net == "convnet:4":
            signal.raise_signal(signal.SIGINT)
        return real(net, *rest, **more)

    monkeypatch.setattr(grid, "train", interrupted)
    capsys.readouterr()
    assert main([*command, "fc1:8,convnet:4,fc2:8"]) == 130
    assert "interrupted: convnet:4, fc2:8 left out" in capsys.readouterr().out
    networks = json.loads(out.read_text())["networks"]
    assert list(networks) == ["convnet:4", "fc1:8"]
    assert networks["convnet:4"] == before
    unwritten = tmp_path / "none.json"
    assert main([*command[:-2], str(unwritten), "--net", "convnet:4"]) == 130
    assert not unwritten.exists()


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (TrainOptions(), 1e-3),
        (TrainOptions(optimiser="momentum"), 1e-1),
        (TrainOptions(parameterisation="ntk"), 3e-2),
        (TrainOptions(optimiser="momentum", learning_rate=0.5), 0.5),
    ],
)
def test_the_rate_goes_by_optimiser_and_parameterisation(options: TrainOptions, rate: float) -> None:
    (settings,) = _Plan(options, False, range(1), range(1), False, None).settings("fc1")
    assert (settings.learning_rate, settings.loss) == (rate, "xent")


def test_labels_become_those_of_the_set(run: Path) -> None:
    data = replace(load("digits"), classes=("3", "1"))
    assert evaluate.codes(kip.load(run), data, np.array([0, 0, 1])).tolist() == [3, 3, 1]
    with pytest.raises(ValueError, match="has the class 'three', which the set does not know"):
        evaluate.codes(kip.load(run), replace(data, classes=("1", "three")), np.array([0]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--net", "lennet"], "did you mean 'lenet'"),
        (["--net", "lenet"], "at least 12×12; got 8×8"),
        (["--net", ","], "names no network"),
        (["--net", "fc1", "--corruption", "0.9"], "learned with 0.5"),
        (["--net", "flax.nnx:Linear"], "network 'Linear' cannot be built with (shape=(8, 8, 1), classes=10, rngs=…)"),
        (["--net", "fc1", "--time-budget", "soon"], "duration"),
        (["--net", "fc1", "--time-budget", "10m"], "shortens --grid and --full, and neither is given"),
    ],
)
def test_what_is_refused_before_training(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["transfer", str(run), *options]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_without_a_set_is_refused_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transfer", str(tmp_path), "--net", "fc1"]) == 2
    assert "distilled.json" in capsys.readouterr().err


def test_without_flax_one_line_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("flax"):
            raise ImportError(name)
        return real(name, *rest, **more)

    for name in [name for name in sys.modules if name.startswith("kip.nets")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    assert main(["transfer", str(run), "--net", "fc1"]) == 2
    assert "pip install 'kip-distill[nets]'" in capsys.readouterr().err


def parsed(*tokens: str) -> tuple[str, str]:
    """The kernel and the labels that a command line asks `kip distill` for."""
    app = cli.build(cli._config(tokens))
    _, bound, _ = app.parse_args(tokens, exit_on_error=False, print_error=False)
    options = bound.arguments.get("options", Options())
    kernel = options.kernel or defaults.kernel(options.purpose, vectors=False)
    about = {"shape": (8, 8), "training": 2000, "classes": 10, "expensive": True}
    return kernel, defaults.resolve(options, **about).labels


def test_for_networks_presets_what_is_not_given(tmp_path: Path) -> None:
    assert parsed("distill") == ("rbf", "auto")
    assert parsed("distill", "--for", "networks") == (defaults.NETWORK_FAMILY, "fixed")
    for alias in (["--purpose", "networks"], ["--purpose=networks"]):
        assert parsed("distill", *alias) == (defaults.NETWORK_FAMILY, "fixed")
    assert parsed("distill", "--for=networks", "--kernel", "fc1", "--labels", "learned") == ("fc1", "learned")
    path = tmp_path / "kip.toml"
    path.write_text('[distill]\nfor = "networks"\n')
    assert parsed("distill", "--config", str(path)) == (defaults.NETWORK_FAMILY, "fixed")
    path.write_text('[distill]\nfor = "networks"\nkernel = "fc2"\n')
    assert parsed("distill", "--config", str(path)) == ("fc2", "fixed")


def test_for_networks_vectors_are_learned_with_dense_kernels(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(40, 3))
    path = tmp_path / "points.csv"
    path.write_text("\n".join(f"{a},{b},{c},{'no' if a < 0 else 'yes'}" for a, b, c in rows))
    short = ["--size", "2", "--draws", "0", "--steps", "1"]
    assert main(["distill", "--for", "networks", "--data", str(path), *short, "--out", str(tmp_path / "run")]) == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["kernel"] == defaults.VECTOR_FAMILY


def test_for_networks_is_in_the_config_that_repeats_the_run(tmp_path: Path) -> None:
    short = ["--kernel", "fc1", "--draws", "0", "--steps", "1"]
    assert main(["distill", "--for", "networks", *short, "--out", str(tmp_path / "one")]) == 0
    config = json.loads((tmp_path / "one" / "config.json").read_text())
    assert (config["purpose"], config["labels"], config["batch"]) == ("networks", "fixed", 1000)
    assert main(["distill", "--config", str(tmp_path / "one"), "--out", str(tmp_path / "two")]) == 0
    again = json.loads((tmp_path / "two" / "config.json").read_text())
    assert again == config
