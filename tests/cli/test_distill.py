"""`kip distill` and `kip label-solve` end to end on the digits, with few steps."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import kip
from kip import algorithm, checkpoint, runs
from kip.algorithm import DivergedError
from kip.cli import main
from kip.data import load

QUICK = ["--steps", "6", "--evaluate-every", "2"]


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def size_of(path: Path) -> tuple[int, int]:
    with Image.open(path) as image:
        return image.size


def distilled(folder: Path, *more: str, draws: int = 0) -> Path:
    assert main(["distill", "--out", str(folder), *QUICK, "--draws", str(draws), *more]) == 0
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distilled(tmp_path_factory.mktemp("runs") / "digits", draws=2)


def test_the_folder_holds_what_the_contract_lists(run: Path) -> None:
    files = {path.name for path in run.iterdir() if not path.name.startswith(".")}
    assert files == {
        *("distilled.safetensors", "distilled.json", "README.md", "config.json", "history.jsonl", "metrics.json"),
        *("images.png", "curve.png", "labels.png"),
    }
    for name in ("images.png", "curve.png", "labels.png"):
        assert min(size_of(run / name)) > 100


def test_metrics(run: Path) -> None:
    metrics = metrics_of(run)
    assert metrics["size"] == 10
    assert metrics["seed"] == 0
    assert metrics["steps"] == 6
    assert metrics["stopped"] == "all steps done"
    assert metrics["compression_ratio"] == metrics["original_size"] / 10
    assert metrics["seconds"] > 0
    assert metrics["config"]["kernel"] == "rbf"
    others = metrics["baselines"]
    assert set(others) == {"random_subset", "label_solve", "kmeans", "full"}
    for name in ("random_subset", "label_solve"):
        assert others[name]["draws"] == 2
        assert others[name]["test_accuracy_std"] >= 0
    accuracies = [metrics["test_accuracy"], *(other["test_accuracy"] for other in others.values())]
    assert all(0 < value <= 1 for value in accuracies)
    expected = abs(others["full"]["test_accuracy"] - metrics["test_accuracy"])
    assert metrics["epsilon_weak"] == pytest.approx(expected, abs=1e-12)


def test_the_last_lines_say_what_the_set_was_made_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distilled(tmp_path / "kernels")
    assert capsys.readouterr().out.rstrip().endswith("to train networks use `kip distill --for networks`")
    distilled(tmp_path / "networks", "--for", "networks", "--kernel", "fc1")
    last = capsys.readouterr().out.rstrip().rpartition("\n")[2]
    assert last == "made to train networks, with kernel 'fc1'; for kernel ridge-regression use `kip distill`"


def test_warnings_are_in_the_metrics_and_under_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--labels", "learned", "--learning-rate", "1e-9"]
    folder = tmp_path / "run"
    assert main(["distill", "--out", str(folder), "--steps", "1", "--draws", "1", *more]) == 0
    metrics, printed = metrics_of(folder), capsys.readouterr().out
    (sentence,) = metrics["warnings"]  # the natural images that the set starts from
    assert "of the same size do better" in sentence
    assert sentence.endswith("try more --steps (this run made 1; the default is 600)")
    assert f"note: {sentence}" in printed
    assert metrics["idle_points"] == 0
    assert metrics["largest_label"] == pytest.approx(0.9, abs=1e-3)


def test_train_loss_is_that_of_the_predictions(run: Path) -> None:
    data, small = load("digits"), kip.load(run)
    y = np.eye(10)[data.y_train] - 0.1
    loss = 0.5 * np.mean(np.sum((small.scores(data.x_train) - y) ** 2, axis=1))
    assert metrics_of(run)["train_loss"] == pytest.approx(loss, rel=1e-5)


def test_history_has_a_line_a_step(run: Path) -> None:
    history = runs.read_history(run)
    assert [entry["step"] for entry in history] == [1, 2, 3, 4, 5, 6]
    assert all(entry["loss"] > 0 and entry["seconds"] > 0 for entry in history)
    assert ["evaluated" in entry for entry in history] == [False, True] * 3
    assert history[-1]["evaluated"] < history[0]["loss"]


def test_the_set_predicts_in_a_fresh_process_from_elsewhere(run: Path, tmp_path: Path) -> None:
    code = f"""
import kip, numpy as np
from kip.data import load
data, small = load("digits"), kip.load({str(run)!r})
assert np.mean(small.predict(data.x_test) == data.y_test) == small.score(data.x_test, data.y_test)
print(repr(small.score(data.x_test, data.y_test)))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert float(done.stdout) == metrics_of(run)["test_accuracy"]
    assert kip.load(run).results["test_accuracy"] == metrics_of(run)["test_accuracy"]


def test_a_finished_folder_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = metrics_of(run)
    assert main(["distill", "--out", str(run), *QUICK]) == 2
    assert "never overwritten" in capsys.readouterr().err
    assert main(["distill", "--out", str(run), "--resume"]) == 2
    assert "is finished" in capsys.readouterr().err
    assert metrics_of(run) == before


def test_the_default_folder_is_named_and_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["distill", "--steps", "1", "--draws", "0"]) == 0
    assert {path.name for path in Path("runs").iterdir()} == {"digits-rbf-10-s0", "digits-rbf-10-s0-2"}


def test_a_runs_config_repeats_it_and_the_command_line_wins(run: Path, tmp_path: Path) -> None:
    same = ["--out", str(tmp_path / "same"), "--draws", "0"]
    assert main(["distill", "--config", str(run / "config.json"), *same]) == 0
    again = kip.load(tmp_path / "same")
    np.testing.assert_array_equal(again.x, kip.load(run).x)
    assert metrics_of(tmp_path / "same")["test_accuracy"] == metrics_of(run)["test_accuracy"]
    other = ["--seed", "3", "--draws", "0", "--out", str(tmp_path / "other")]
    assert main(["distill", "--config", str(run), *other]) == 0
    assert metrics_of(tmp_path / "other")["config"]["seed"] == 3
    assert metrics_of(tmp_path / "other")["config"]["steps"] == 6


def test_toml(tmp_path: Path) -> None:
    path = tmp_path / "kip.toml"
    path.write_text('[distill]\nsteps = 2\ndraws = 0\nlabels = "learned"\nlearning-rate = 0.01\n')
    assert main(["distill", "--config", str(path), "--out", str(tmp_path / "run"), "--steps", "1"]) == 0
    config = metrics_of(tmp_path / "run")["config"]
    assert (config["steps"], config["labels"], config["learning_rate"]) == (1, "learned", 0.01)


def test_seeds_each_have_a_folder_and_give_a_mean(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "many"
    assert main(["distill", "--seeds", "2", "--seed", "4", "--steps", "1", "--draws", "0", "--out", str(out)]) == 0
    accuracies = [metrics_of(out / name)["test_accuracy"] for name in ("s4", "s5")]
    printed = capsys.readouterr().out
    assert f"mean {100 * np.mean(accuracies):.2f} %" in printed
    assert f"deviation {100 * np.std(accuracies, ddof=1):.2f}" in printed


def test_validation_corruption_and_augmentation_are_recorded(tmp_path: Path) -> None:
    more = ["--validation", "0.2", "--corruption", "0.5", "--augment", "--kernel", "fc1:nngp"]
    folder = distilled(tmp_path / "run", *more)
    metrics, small = metrics_of(folder), kip.load(folder)
    watched = [entry["validation_accuracy"] for entry in runs.read_history(folder) if "evaluated" in entry]
    assert len(watched) == 3
    assert metrics["validation_accuracy"] in (pytest.approx(watched[-1], abs=0.05), watched[-1])
    assert metrics["config"]["augment"] == "digits"
    assert small.certificate().holds
    width, height = size_of(folder / "images.png")
    assert width > 3 * height  # three sets side by side


def test_a_time_budget_ends_a_run(tmp_path: Path) -> None:
    command = ["distill", "--steps", "100000", "--time-budget", "0.2s", "--draws", "0", "--out", str(tmp_path / "run")]
    assert main(command) == 0
    metrics = metrics_of(tmp_path / "run")
    assert metrics["stopped"] == "time budget"
    assert 0 < metrics["steps"] < 100000


def test_a_diverged_run_saves_the_last_finite_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = algorithm.step

    def fails(state: Any, *rest: Any) -> Any:
        if state.step == 3:
            raise DivergedError(state)
        return step(state, *rest)

    monkeypatch.setattr(algorithm, "step", fails)
    assert main(["distill", "--out", str(tmp_path), *QUICK, "--draws", "0"]) == 1
    assert metrics_of(tmp_path)["stopped"] == "diverged"
    assert metrics_of(tmp_path)["kept_step"] == 2
    assert np.isfinite(kip.load(tmp_path).x).all()


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A real process, returned once it has made some steps."""
    command = [sys.executable, "-m", "kip.cli", "distill", "--out", str(folder), "--draws", "0", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while len(runs.read_history(folder)) < 5:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_the_set_as_it_stands(number: int, tmp_path: Path) -> None:
    process = started(tmp_path, "--steps", "20000", "--evaluate-every", "1000")
    os.kill(process.pid, number)
    out, error = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "interrupted" in out
    assert "--resume" in out
    assert "Traceback" not in error
    metrics = metrics_of(tmp_path)
    assert metrics["stopped"] == "interrupted"
    assert metrics["steps"] == runs.read_history(tmp_path)[-1]["step"]
    assert metrics["test_accuracy"] == kip.load(tmp_path).results["test_accuracy"]


class KilledError(BaseException):
    """Ends a run where it stands."""


@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_a_broken_run_resumes_to_the_bit(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint.Saver.save

    def breaks(self: Any, state: Any) -> None:
        if state.step != 5:
            return
        if how == "interrupted":
            signal.raise_signal(signal.SIGINT)
            return
        save(self, state)
        raise KilledError

    command = ["distill", "--out", str(tmp_path / "broken"), *QUICK, "--draws", "0"]
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Saver, "__call__", breaks)
        if how == "interrupted":
            assert main(command) == 130
        else:
            with pytest.raises(KilledError):
                main(command)
    whole = distilled(tmp_path / "whole")
    assert main(["distill", "--resume", "--out", str(tmp_path / "broken")]) == 0
    np.testing.assert_array_equal(kip.load(tmp_path / "broken").x, kip.load(whole).x)
    np.testing.assert_array_equal(kip.load(tmp_path / "broken").y, kip.load(whole).y)
    assert timeless(tmp_path / "broken") == timeless(whole)
    assert not (tmp_path / "broken" / runs.CHECKPOINTS).exists()


def timeless(folder: Path) -> list[dict[str, Any]]:
    return [{**entry, "seconds": 0} for entry in runs.read_history(folder)]


def test_resume_refuses_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = started(tmp_path, "--steps", "20000")
    process.kill()
    process.communicate()
    assert main(["distill", "--resume", "--out", str(tmp_path), "--size", "20"]) == 2
    assert "`--size` is 20 but the run" in capsys.readouterr().err


def test_two_processes_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = started(tmp_path, "--steps", "20000")
    assert main(["distill", "--out", str(tmp_path), *QUICK]) == 2
    assert f"process {process.pid}" in capsys.readouterr().err
    process.kill()
    process.communicate()


def test_label_solve(tmp_path: Path) -> None:
    assert main(["label-solve", "--size", "20", "--draws", "2", "--out", str(tmp_path / "run")]) == 0
    metrics, small = metrics_of(tmp_path / "run"), kip.load(tmp_path / "run")
    same = kip.label_solve(load("digits").x_train, load("digits").y_train, size=20)
    np.testing.assert_array_equal(small.x, same.x)
    np.testing.assert_allclose(small.y, same.y, rtol=1e-5)
    assert metrics["test_accuracy"] > metrics["baselines"]["random_subset"]["test_accuracy"]
    assert (
        main(["label-solve", "--config", str(tmp_path / "run"), "--draws", "0", "--out", str(tmp_path / "again")]) == 0
    )
    assert metrics_of(tmp_path / "again")["test_accuracy"] == metrics["test_accuracy"]


OLD = Path(__file__).parents[1] / "data" / "old-run"
"""Runs that the version before the options and checkpoints changed has written."""


def test_the_config_of_an_old_run_says_what_is_renamed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = OLD / "corrupted" / "config.json"
    assert main(["distill", "--config", str(path), "--out", str(tmp_path / "run")]) == 2
    line = f"kip: {path}: the option 'judge_every' is now called 'evaluate_every'; rename it there\n"
    assert capsys.readouterr().err == line
    config = path.read_text().replace("judge_", "evaluate_")
    (tmp_path / "config.json").write_text(config)
    assert main(["distill", "--config", str(tmp_path), "--draws", "0", "--out", str(tmp_path / "run")]) == 0
    assert metrics_of(tmp_path / "run")["test_accuracy"] == metrics_of(OLD / "corrupted")["test_accuracy"]


@pytest.mark.parametrize("how", ["as it is", "renamed", "completed"])
def test_an_old_unfinished_run_is_left_to_the_version_that_began_it(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(OLD / "unfinished", run)
    path = run / "config.json"
    if how != "as it is":
        path.write_text(path.read_text().replace("judge_", "evaluate_"))
    if how == "completed":
        now = {"kind": "digits", "labels": "solved", "start": None, "optimiser": "adam"}
        path.write_text(json.dumps(json.loads(path.read_text()) | now))
    before = {each: each.read_bytes() for each in run.rglob("*") if each.is_file() and each.name != ".lock"}
    assert main(["distill", "--resume", "--out", str(run)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert {
        "as it is": f"{path}: the option 'judge_every' is now called 'evaluate_every'; finish it with the version",
        "renamed": "was begun by kip 0.1.0, which had no option 'kind'; finish it with the version",
        "completed": "before the format of checkpoints changed (schema 1; this version reads 2); finish the run with",
    }[how] in error
    assert "begin anew in another folder" in error
    assert {each: each.read_bytes() for each in run.rglob("*") if each.is_file() and each.name != ".lock"} == before


@pytest.mark.parametrize("more", [["--size", "20"], ["--kernel", "fc1"], []], ids=["larger", "another kernel", "again"])
def test_a_run_starts_from_another_and_is_resumed(
    more: list[str], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    options = ["--start", run.name, *more, *QUICK, "--draws", "0"]
    assert main(["distill", "--out", str(tmp_path / "whole"), *options]) == 0
    small, config = kip.load(tmp_path / "whole"), metrics_of(tmp_path / "whole")["config"]
    assert len(small) == config["size"] == (20 if "--size" in more else 10)
    assert config["start"] == str(run.resolve()), "found from anywhere"
    data = load("digits")
    same = kip.distill(
        data.x_train,
        data.y_train,
        start=run,
        kind="digits",
        steps=6,
        evaluate_every=2,
        **({"size": 20} if "--size" in more else {"kernel": "fc1"} if more else {}),
    )
    np.testing.assert_array_equal(small.x, same.x)
    save = checkpoint.Saver.save

    def dies(self: Any, state: Any) -> None:
        if state.step == 3:
            save(self, state)
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Saver, "__call__", dies)
        with pytest.raises(KilledError):
            main(["distill", "--out", str(tmp_path / "broken"), *options])
    monkeypatch.chdir(tmp_path)
    assert main(["distill", "--resume", "--out", "broken"]) == 0
    again = kip.load(tmp_path / "broken")
    np.testing.assert_array_equal(again.x, small.x)
    np.testing.assert_array_equal(again.y, small.y)
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_what_cannot_be_started_from_is_refused_before_data_are_read(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["distill", "--start", "nowhere"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert "nowhere holds no distilled set" in printed.err
    assert main(["distill", "--start", str(run), "--size", "9"]) == 2
    assert "`size` must be at least the 10 points of `start`; got 9" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
