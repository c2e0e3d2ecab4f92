"""The schema on the command line: help, names, durations, configuration files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kip.cli import main, options
from kip.cli.options import read_config, seconds, spelt
from kip.options import BUDGET, RESUME, DataOptions, Options, RunOptions, SetOptions, declared

PLACES = {
    "distill": (DataOptions, Options, RunOptions),
    "plan": (DataOptions, Options, RunOptions),
    "label-solve": (DataOptions, SetOptions, RunOptions),
}


@pytest.mark.parametrize("command", PLACES)
def test_help_shows_every_option_of_the_schema_with_its_default(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # an option per line
    assert main([command, "--help"]) == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines() if "--" in line]
    for schema in PLACES[command]:
        for name, _, option in declared(schema):
            found = [line for line in lines if line.startswith(f"{spelt(name)} ")]
            assert len(found) == (0 if option.python else 1), name
            for line in found:
                assert f"{option.help} (default: " in line, name
                assert "(default: None)" not in line, name
    for option in {"distill": (BUDGET, RESUME), "plan": (BUDGET,), "label-solve": ()}[command]:
        assert any(f"{option.help} (default: " in line for line in lines)


def test_the_command_line_makes_instances_of_the_schema() -> None:
    for here, schema in ((options.USUAL, Options), (options.USUAL_DATA, DataOptions), (options.USUAL_RUN, RunOptions)):
        assert isinstance(here, schema)
        assert dataclasses.asdict(here) == dataclasses.asdict(schema())


@pytest.mark.parametrize(
    ("text", "value"),
    [("90s", 90), ("10m", 600), ("1h", 3600), ("1h30m", 5400), ("45", 45), ("1.5m", 90), (" 2 M ", 120)],
)
def test_durations(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5m", "0s", "m", "1m1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="time-budget"):
        seconds(text)


def test_augment_may_stand_alone() -> None:
    assert options.with_augment_named(["--augment", "--size", "9"]) == ["--augment=auto", "--size", "9"]
    assert options.with_augment_named(["--size", "9", "--augment"]) == ["--size", "9", "--augment=auto"]
    assert options.with_augment_named(["--augment", "flips"]) == ["--augment", "flips"]


def test_toml_gives_the_table_of_a_command(tmp_path: Path) -> None:
    path = tmp_path / "kip.toml"
    path.write_text('[distill]\nsize = 20\nkernel = "fc1"\n[data.fetch]\nsource = "registry"\n')
    assert read_config(path, ["distill"]) == {"size": 20, "kernel": "fc1"}
    assert read_config(path, ["data", "fetch"]) == {"source": "registry"}
    assert read_config(path, ["evaluate"]) == {}
    path.write_text("distill = 3")
    with pytest.raises(ValueError, match="table"):
        read_config(path, ["distill"])
    path.write_text("[distill")
    with pytest.raises(ValueError, match="TOML"):
        read_config(path, ["distill"])


@pytest.mark.parametrize("name", ["judge_every", "judge-every"])
def test_an_option_with_another_name_by_now_is_told_it(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, now = tmp_path / "kip.toml", name.replace("judge", "evaluate")
    path.write_text(f"[distill]\n{name} = 3\n")
    assert main(["distill", "--config", str(path), "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err == f"kip: {path}: the option '{name}' is now called '{now}'; rename it there\n"
    assert main(["distill", "--judge-every", "3"]) == 2
    assert "--evaluate-every" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_runs_config_serves_its_own_command(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    config = {"command": "distill", "version": "0.1", "size": 20, "batch": None, "optimiser": "adam"}
    path.write_text(json.dumps(config))
    assert read_config(path, ["distill"]) == {"size": 20}
    assert read_config(tmp_path, ["distill"]) == {"size": 20}
    with pytest.raises(ValueError, match="kip distill"):
        read_config(path, ["label-solve"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_config(tmp_path / "none.toml", ["distill"])
