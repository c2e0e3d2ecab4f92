"""The run folder: names, the lock, what is never written over, and the history."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kip import runs


def test_names_follow_the_contract() -> None:
    assert runs.run_name("digits", "rbf", 10, 0) == "digits-rbf-10-s0"
    assert runs.run_name("été à la mer", "fc1:nngp:standard=1024", 20, 3) == "été-à-la-mer-fc1-nngp-standard=1024-20-s3"
    assert runs.run_name("mnist", "0.5*rbf&fc1", 10, 0, kind="label-solve") == "mnist-0.5-rbf-fc1-10-label-solve-s0"


@given(st.text(min_size=1), st.text(min_size=1))
def test_any_name_is_one_folder_within_its_root(data: str, kernel: str) -> None:
    name = runs.run_name(data, kernel, 10, 0)
    assert name not in (".", "..")
    assert "/" not in name
    assert "\0" not in name
    assert name.endswith("-s0")


def finish(name: str, root: Path) -> Path:
    with runs.opened(name, root=root) as run:
        run.finish({"test_accuracy": 1.0})
    return run.folder


def test_finished_runs_are_numbered_and_unfinished_ones_taken_again(tmp_path: Path) -> None:
    assert [finish("a", tmp_path).name for _ in range(3)] == ["a", "a-2", "a-3"]
    with runs.opened("b", root=tmp_path) as run:
        run.configure({"size": 1})
    with runs.opened("b", root=tmp_path) as again:
        assert again.folder == run.folder


@pytest.mark.parametrize("file", [runs.METRICS, runs.DESCRIPTION])
def test_a_given_folder_with_results_is_refused(tmp_path: Path, file: str) -> None:
    (tmp_path / file).write_text("{}")
    with pytest.raises(ValueError, match="never overwritten"), runs.opened("x", tmp_path):
        pass


def test_a_given_folder_with_checkpoints_asks_for_resume(tmp_path: Path) -> None:
    (tmp_path / runs.CHECKPOINTS).mkdir()
    with pytest.raises(ValueError, match="--resume"), runs.opened("x", tmp_path):
        pass
    with runs.opened("x", tmp_path, resume=True) as run:
        assert run.folder == tmp_path


def test_a_given_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(ValueError, match="is a file"), runs.opened("x", path):
        pass


def test_a_locked_folder_is_left_to_its_owner(tmp_path: Path) -> None:
    with runs.opened("a", root=tmp_path) as first:
        with pytest.raises(runs.BusyError, match="another run"), runs.opened("x", first.folder):
            pass
        with runs.opened("a", root=tmp_path) as second:
            assert second.folder.name == "a-2"
    with runs.opened("x", first.folder):
        pass


def test_the_lock_of_another_process_ends_with_it(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from kip import runs
with runs.opened("x", Path({str(tmp_path)!r})):
    print("locked", flush=True)
    sys.stdin.read()
"""
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "locked\n"
    with pytest.raises(runs.BusyError, match=f"process {owner.pid}"), runs.opened("x", tmp_path):
        pass
    owner.kill()
    owner.communicate()
    with runs.opened("x", tmp_path):
        pass


def test_history_is_written_as_it_goes_and_cut_back_on_resumption(tmp_path: Path) -> None:
    run = runs.Run(tmp_path)
    with run.history() as history:
        for step in (1, 2, 3):
            history.add({"step": step, "loss": 1 / step, "seconds": float(step)})
            assert len(runs.read_history(tmp_path)) == step
    with (tmp_path / runs.HISTORY).open("a") as file:
        file.write('{"step": 4, "lo')  # as a killed process leaves it
    assert [entry["step"] for entry in runs.read_history(tmp_path)] == [1, 2, 3]
    assert runs.seconds_until(tmp_path, 2) == 2.0
    with run.history(keep=2) as history:
        history.add({"step": 3, "loss": 0.5})
    lines = [json.loads(line) for line in (tmp_path / runs.HISTORY).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.0), (2, 0.5), (3, 0.5)]


def test_an_interrupted_run_is_not_finished_but_kept(tmp_path: Path) -> None:
    run = runs.Run(tmp_path)
    run.finish({"stopped": "interrupted"})
    (tmp_path / runs.CHECKPOINTS).mkdir()
    assert not runs.is_finished(tmp_path)
    assert runs.is_kept(tmp_path)
    run.reopen()
    assert not (tmp_path / runs.METRICS).exists()


def test_config_that_is_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run folder"):
        runs.read_config(tmp_path)
    (tmp_path / runs.CONFIG).write_text("[1]")
    with pytest.raises(ValueError, match="run folder"):
        runs.read_config(tmp_path)
