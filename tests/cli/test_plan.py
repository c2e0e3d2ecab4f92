"""`kip plan`, and what `kip distill` does with a prediction: refuse, choose steps, and write it beside what came."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kip import machine
from kip.cli import main, planning
from kip.plan import Rates


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "calibrations"
    monkeypatch.setattr(planning, "calibration_file", lambda _: folder / "calibration.json")


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def test_plan_predicts_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--steps", "50", "--again"]) == 0
    first = capsys.readouterr().out
    assert "measuring this machine" in first
    assert "50 steps of" in first
    for word in ("learning", "time", "memory", "disk"):
        assert word in first
    assert main(["plan", "--steps", "50"]) == 0
    assert "measuring this machine" not in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "options",
    [
        "--kernel conv1 --augment digits --preprocess zca --validation 0.1 --batch 50",
        "--kernel rbf+fc1 --labels learned --support-batch 5 --size 20 --draws 0",
    ],
)
def test_whatever_distill_takes_can_be_planned(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--targets", "200", *options.split()]) == 0
    assert "steps of" in capsys.readouterr().out


def test_a_run_has_predicted_beside_actual(tmp_path: Path) -> None:
    assert main(["distill", "--steps", "3", "--draws", "0", "--out", str(tmp_path / "run")]) == 0
    metrics = metrics_of(tmp_path / "run")
    planned = metrics["planned"]
    for pair in (*planned["seconds"].values(), planned["peak_memory"], planned["disk"]):
        assert pair["predicted"] >= 0
        assert pair["actual"] >= 0
    parts = metrics["seconds_by_part"]
    assert planned["seconds"]["learning"]["actual"] == parts["learning"]
    assert planned["seconds"]["total"]["actual"] == pytest.approx(sum(parts.values()), abs=0.01)
    assert planned["peak_memory"]["actual"] > 50 * 2**20


def test_what_does_not_fit_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "memory_limit", lambda: 2**20)
    for command in ("distill", "plan"):
        assert main([command, "--steps", "3"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "of memory and there are 1 MB here; use " in error
    assert list(tmp_path.iterdir()) == []


def test_a_time_budget_chooses_steps_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known = planning.Store.known

    def slow(self: planning.Store, kind: Any, key: str, measure_it: Any) -> Any:
        """As a machine on which each of the steps takes a second."""
        if kind is Rates:
            return Rates(10, 1438, 1.0, 0.0, 0.0, 0.0, 0.0, False)
        return known(self, kind, key, measure_it)

    monkeypatch.setattr(planning.Store, "known", slow)
    run = tmp_path / "run"
    assert main(["distill", "--time-budget", "20s", "--draws", "0", "--out", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    assert 10 <= config["steps"] <= 18  # nine tenths of 20 s
    assert config["judge_every"] == 1
    metrics = metrics_of(run)
    assert metrics["steps"] == config["steps"]  # the cosine came to its end
    assert metrics["stopped"] == "all steps done"
    capsys.readouterr()
    assert main(["plan", "--time-budget", "20s", "--steps", "7"]) == 0
    assert "7 steps of" in capsys.readouterr().out


def test_measurements_are_kept_until_the_machine_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calibration.json"
    rates, other = (Rates(10, 16, seconds, 0.2, 0.3, 0.4, 0.5, True) for seconds in (0.1, 0.7))
    store = planning.Store(path)
    assert store.known(Rates, "rbf", lambda: rates) == rates
    store.write()
    assert planning.Store(path).known(Rates, "rbf", lambda: other) == rates
    assert planning.Store(path, again=True).known(Rates, "rbf", lambda: other) == other
    monkeypatch.setattr(machine, "cores", lambda: 999)
    assert planning.Store(path).known(Rates, "rbf", lambda: other) == other
