"""`kip plan`, and what `kip distill` does with a prediction: refuse, choose steps, and write it beside what came."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kip import machine
from kip.cli import main
from kip.cli import plan as planning
from kip.machine import Limit
from kip.plan import Pace


def metrics_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def in_a_process(*tokens: str, address_space: int | None = None) -> subprocess.CompletedProcess[str]:
    """`kip` in a process of its own, whose address space may be limited."""
    limit = (
        ""
        if address_space is None
        else f"import resource; resource.setrlimit(resource.RLIMIT_AS, {2 * (address_space,)}); "
    )
    program = f"import sys; {limit}from kip.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", program, *tokens], capture_output=True, text=True)


def test_plan_predicts_and_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", "--steps", "50"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"about [\d.:]+ s \([\d.]+ ms per step\), [\d.]+ [MG]B of memory, [\d.]+ MB of disk\n", out)
    assert "50 steps of" in out
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
    assert "per step)" in capsys.readouterr().out


@pytest.mark.parametrize(
    "options",
    [
        "--steps 20 --draws 0",
        "--size 100 --steps 20",
        "--kernel conv1 --targets 300 --steps 3 --draws 0",
    ],
    ids=["a small run", "augmented and compared", "a convolutional kernel"],
)
def test_the_bound_lies_above_the_peak_and_near_it(options: str, tmp_path: Path) -> None:
    done = in_a_process("distill", *options.split(), "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    planned = metrics_of(tmp_path / "run")["planned"]
    assert set(planned) == {"peak_memory"}  # no time was foreseen
    assert 1.0 <= planned["peak_memory"]["predicted"] / planned["peak_memory"]["actual"] <= 1.6


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (Limit(2**20), "of memory and this machine has 1.0 MB; use "),
        (
            Limit(2**20, name="control group"),
            "of memory and the limit here is 1.0 MB (control group); raise it, or use ",
        ),
    ],
    ids=["the machine", "a control group"],
)
def test_what_does_not_fit_is_refused_before_it_starts(
    limit: Limit, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "tightest_limit", lambda: limit)
    for command in ("distill", "plan"):
        assert main([command, "--steps", "3"]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert words in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space hold on Linux only")
def test_a_small_run_fits_into_little_address_space(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = in_a_process("distill", "--steps", "3", "--out", str(run), address_space=2_048_000_000)
    assert done.returncode == 0, done.stderr
    assert metrics_of(run)["steps"] == 3


@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space hold on Linux only")
@pytest.mark.parametrize(
    ("megabytes", "status", "words"),
    [
        (
            750,
            2,
            r"kip: this run needs about [\d.]+ [MG]B of address space and the limit here is 786 MB \(ulimit -v\); ",
        ),
        (300, 1, r"kip: out of memory .*the limit here is 0.3 GB of address space \(ulimit -v\): raise it, or use "),
    ],
    ids=["too little to run", "too little to import JAX"],
)
def test_too_little_address_space_is_one_clear_line(megabytes: int, status: int, words: str, tmp_path: Path) -> None:
    options = ["--steps", "3", "--out", str(tmp_path / "run")]
    done = in_a_process("distill", *options, address_space=megabytes * 2**20)
    assert done.returncode == status, done.stderr
    assert re.match(words, done.stderr)
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), RuntimeError("can't start new thread")], ids=["array", "thread"]
)
def test_want_of_memory_is_one_clear_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("kip.data.load", fail)
    assert main(["distill"]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"kip: out of memory ({error}); ")
    assert "use a smaller --size, --batch or --targets" in said
    assert said.count("\n") == 1


def test_other_errors_are_not_taken_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr("kip.data.load", fail)
    with pytest.raises(RuntimeError, match="mistake"):
        main(["distill"])


def test_a_time_budget_chooses_steps_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(planning, "paced", lambda *_: Pace(1.0, 0.0, 0.0, 2.0))  # a step takes a second here
    run = tmp_path / "run"
    command = ["distill", "--time-budget", "20s", "--draws", "0", "--out", str(run), "--seeds", "2"]
    assert main(command) == 0
    assert "about 15 s (1.0 s per step), " in capsys.readouterr().out
    for seed in ("s0", "s1"):
        config = json.loads((run / seed / "config.json").read_text())
        assert config["steps"] == 15  # nine tenths of 20 s, less the 2 s that timing took and a little to compile again
        assert config["evaluate_every"] == 1
        metrics = metrics_of(run / seed)
        assert metrics["steps"] == 15  # the cosine came to its end
        assert metrics["stopped"] == "all steps done"
    assert metrics_of(run / "s0")["planned"]["seconds"]["predicted"] == 15.0
    assert main(["plan", "--time-budget", "20s", "--steps", "7"]) == 0
    assert "7 steps of" in capsys.readouterr().out


def test_a_time_budget_is_kept(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["distill", "--time-budget", "5s", "--draws", "0", "--out", str(run)]) == 0
    metrics = metrics_of(run)
    assert metrics["steps"] > 1
    assert metrics["stopped"] in ("all steps done", "time budget")  # the second where other work slowed the machine
    assert metrics["seconds"] < 60
    assert metrics["planned"]["seconds"]["predicted"] <= 5


@pytest.mark.parametrize(("draws", "loaded"), [("1", True), ("0", False)])
def test_the_libraries_of_a_comparison_are_counted(draws: str, loaded: bool) -> None:
    """They are loaded before memory is predicted, so that what they hold lies under the bound."""
    program = (
        "import sys; from kip.cli import main; from kip import machine; found = []; resident = machine.resident; "
        "machine.resident = lambda: found.append('sklearn.cluster' in sys.modules) or resident(); "
        f"main(['plan', '--steps', '1', '--draws', '{draws}']); assert found == [{loaded}], found"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
