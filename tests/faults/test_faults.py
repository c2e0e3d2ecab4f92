"""What else goes wrong: disks that fill or refuse, files that vanish or rot, clocks that jump, losses that diverge."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.kills import assert_identical, names

import kip
from kip import checkpoint, recording, runs
from kip.cli import main

QUICK = ["--steps", "8", "--evaluate-every", "3", "--draws", "0"]


class KilledError(BaseException):
    """Ends a run where it stands."""


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step."""
    monkeypatch.setattr(recording, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(recording, "SAVE_SHARE", 1.0)


def killed_after(step: int, command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    save = checkpoint.Saver.save

    def saves_and_dies(self: Any, state: Any) -> None:
        save(self, state)
        if state.step == step:
            raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Saver, "save", saves_and_dies)
        with pytest.raises(KilledError):
            main(command)


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """A small disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def one_line(capsys: pytest.CaptureFixture[str]) -> str:
    error = capsys.readouterr().err
    assert error.startswith("kip: ")
    assert error.count("\n") == 1
    return error


@pytest.mark.usefixtures("often")
def test_a_full_disk_leaves_a_good_checkpoint_from_which_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["distill", "--out", str(tmp_path / "whole"), *QUICK]) == 0
    with disk(tmp_path / "disk", "size=40k") as small:
        run = small / "run"
        capsys.readouterr()
        assert main(["distill", "--out", str(run), *QUICK]) == 2
        error = one_line(capsys)
        assert "No space left on device" in error
        assert "the last good one, is kept; free some space and resume" in error
        assert not [name for name in names(run) if name.endswith(".partial")]
        subprocess.run(["mount", "-o", "remount,size=16m", str(small)], check=True)
        assert main(["distill", "--resume", "--out", str(run)]) == 0
        assert "continuing at step" in capsys.readouterr().out
        assert_identical(run, tmp_path / "whole")


def test_a_disk_that_is_full_for_the_history_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with disk(tmp_path / "disk", "size=16k") as small:
        assert main(["distill", "--out", str(small / "run"), "--steps", "2000", "--draws", "0"]) == 2
        error = one_line(capsys)
        assert "history.jsonl: no space left on device; free some space" in error


def test_a_read_only_disk_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with disk(tmp_path / "disk", "size=64k,ro") as small:
        assert main(["distill", "--out", str(small / "run"), *QUICK]) == 2
        assert f"{small / 'run'}: read-only file system" in one_line(capsys)


@pytest.fixture
def own_data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "own.npz"
    np.savez(path, x=rng.normal(size=(60, 5)) + 3 * np.repeat(np.eye(3, 5), 20, axis=0), y=np.repeat([0, 1, 2], 20))
    return path


@pytest.mark.usefixtures("often")
def test_data_that_vanished_or_changed_stop_a_resumption_and_cost_nothing(
    own_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, more = tmp_path / "run", ["--data", str(own_data), "--size", "3", *QUICK]
    assert main(["distill", "--out", str(tmp_path / "whole"), *more]) == 0
    killed_after(4, ["distill", "--out", str(run), *more], monkeypatch)
    before = names(run)
    own_data.rename(tmp_path / "away.npz")
    capsys.readouterr()
    assert main(["distill", "--resume", "--out", str(run)]) == 2
    assert str(own_data) in one_line(capsys)
    with np.load(tmp_path / "away.npz") as data:
        np.savez(own_data, x=data["x"] + 1, y=data["y"])
    assert main(["distill", "--resume", "--out", str(run)]) == 2
    assert "belongs to other settings (data: " in one_line(capsys)
    assert names(run) == before
    shutil.copy(tmp_path / "away.npz", own_data)
    assert main(["distill", "--resume", "--out", str(run)]) == 0
    assert_identical(run, tmp_path / "whole")


@pytest.mark.usefixtures("often")
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["distill", "--out", str(tmp_path / "whole"), *QUICK]) == 0
    killed_after(5, ["distill", "--out", str(run), *QUICK], monkeypatch)
    newest = run / runs.CHECKPOINTS / "checkpoint-5.safetensors"
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert main(["distill", "--resume", "--out", str(run)]) == 0
    assert "going on from checkpoint-4.safetensors" in capsys.readouterr().out
    assert_identical(run, tmp_path / "whole")


@pytest.mark.usefixtures("often")
def test_a_resumption_clears_away_what_a_killed_one_was_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    killed_after(5, ["distill", "--out", str(run), *QUICK], monkeypatch)
    left = run / ".metrics.json.0123456789abcdef.partial"
    left.write_text("{")
    assert main(["distill", "--resume", "--out", str(run)]) == 0
    assert not left.exists()


@pytest.mark.usefixtures("often")
def test_resuming_takes_everything_from_the_run(
    own_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set too: its name must not be taken for the command `kip data`."""
    run = tmp_path / "run"
    killed_after(2, ["distill", "--out", str(run), "--data", str(own_data), "--size", "4", *QUICK], monkeypatch)
    assert main(["distill", "--resume", "--out", str(run)]) == 0
    config = json.loads((run / "config.json").read_text())
    assert (config["data"], config["size"], config["steps"]) == (str(own_data), 4, 8)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("clock", ["monotonic", "time"])
def test_a_clock_that_jumps_back_changes_nothing_but_times(
    clock: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["distill", "--out", str(tmp_path / "whole"), *QUICK]) == 0
    real, calls = getattr(time, clock), 0

    def jumping() -> float:
        nonlocal calls
        calls += 1
        return real() - (1e6 if calls > 40 else 0)

    monkeypatch.setattr(time, clock, jumping)
    assert main(["distill", "--out", str(tmp_path / "run"), *QUICK]) == 0
    monkeypatch.undo()
    assert_identical(tmp_path / "run", tmp_path / "whole")
    seconds = [entry["seconds"] for entry in runs.read_history(tmp_path / "run")]
    assert seconds == sorted(seconds)
    assert seconds[0] >= 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # overflow is what it is about
def test_a_loss_that_is_not_finite_ends_the_run_with_what_was_finite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["distill", "--out", str(tmp_path / "run"), "--learning-rate", "1e25", *QUICK]
    assert main(command) == 1
    assert (
        "lower the learning rate, or raise the ridge. The last finite support set was kept" in capsys.readouterr().out
    )
    small = kip.load(tmp_path / "run")
    assert np.isfinite(small.x).all()
    assert np.isfinite(small.y).all()
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["stopped"] == "diverged"
