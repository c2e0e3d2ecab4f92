"""Options: that they mirror the library's, durations, configuration files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kip.api import Options
from kip.cli import options
from kip.cli.options import DataOptions, LearnOptions, RunOptions, SetOptions, kept, read_config, seconds


def test_every_option_of_the_library_can_be_given_and_has_its_default() -> None:
    given = kept(DataOptions(), SetOptions(), LearnOptions(), RunOptions())
    for field in dataclasses.fields(Options):
        assert field.name in given, field.name
        if field.name != "size":  # which the library wants said
            assert given[field.name] == field.default, field.name


def test_no_group_repeats_another() -> None:
    groups = (DataOptions, SetOptions, LearnOptions, RunOptions)
    names = [field.name for group in groups for field in dataclasses.fields(group)]
    assert len(names) == len(set(names))


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


def test_a_runs_config_serves_its_own_command(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"command": "distill", "version": "0.1", "size": 20, "batch": None}))
    assert read_config(path, ["distill"]) == {"size": 20}
    assert read_config(tmp_path, ["distill"]) == {"size": 20}
    with pytest.raises(ValueError, match="kip distill"):
        read_config(path, ["label-solve"])
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_config(tmp_path / "none.toml", ["distill"])
