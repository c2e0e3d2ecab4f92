"""Long Gram matrices in commands: kept by tiles across a kill, shown as they go, stopped between tiles."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import kip
from kip.cli import main, progress
from kip.cli.watch import GRAMS, Watch
from kip.gram_cache import CachedGram, Store
from kip.kernels.planes_cpu import NumbaPlanesKernel

SOLVE = ["label-solve", "--kernel", "conv2:nngp", "--size", "10", "--targets", "600", "--draws", "0"]

# Runs a command and kills itself, as a power failure would, once so many tiles are written.
KILLED = textwrap.dedent("""
    import os, signal, sys
    from kip import gram_cache
    from kip.cli import main
    write, written = gram_cache.Store.write, []
    def counting(store, key, tile):
        write(store, key, tile)
        written.append(key)
        if len(written) == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
    gram_cache.Store.write = counting
    main(sys.argv[2:])
""")


def killed_after(tiles: int, command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tiles), *command], check=False, env=os.environ)
    assert done.returncode == -signal.SIGKILL


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The pairs of every Gram matrix that the engine itself computes."""
    pairs: list[int] = []
    gram = NumbaPlanesKernel.gram

    def counting(kernel: NumbaPlanesKernel, x1: np.ndarray, x2: np.ndarray | None = None) -> np.ndarray:
        pairs.append(len(x1) * len(x1 if x2 is None else x2))
        return gram(kernel, x1, x2)

    monkeypatch.setattr(NumbaPlanesKernel, "gram", counting)
    return pairs


def test_a_killed_label_solve_recomputes_nothing_it_has(tmp_path: Path, computed: list[int]) -> None:
    whole, again, cache = tmp_path / "whole", tmp_path / "again", tmp_path / "cache"
    assert main([*SOLVE, "--out", str(whole)]) == 0
    all_pairs = sum(computed)
    killed_after(3, [*SOLVE, "--out", str(again), "--cache", str(cache)])
    there = {path.name for path in cache.glob("*.gram")}
    assert len(there) == 3
    computed.clear()
    assert main([*SOLVE, "--out", str(again), "--cache", str(cache)]) == 0
    # K_ss and two tiles of 256 targets were there
    assert sum(computed) == all_pairs - 10 * 10 - 2 * 10 * 256
    for name in ("distilled.safetensors", "images.png"):
        assert (again / name).read_bytes() == (whole / name).read_bytes()
    first, second = (json.loads((folder / "metrics.json").read_text()) for folder in (whole, again))
    for key in ("test_accuracy", "train_loss"):
        assert first[key] == second[key]
    computed.clear()
    assert main([*SOLVE, "--out", str(tmp_path / "repeated"), "--cache", str(cache)]) == 0
    assert sum(computed) <= 1 + 10 * 10  # all were found: a few are computed only to know how long a pair takes


def test_without_a_cache_tiles_are_kept_in_the_run_until_it_ends(tmp_path: Path, computed: list[int]) -> None:
    out = tmp_path / "run"
    killed_after(2, [*SOLVE, "--out", str(out)])
    assert len(list((out / GRAMS).glob("*.gram"))) == 2
    assert main([*SOLVE, "--out", str(out)]) == 0
    assert not (out / GRAMS).exists()
    # beside the test set only what was missing: the training loss found what the solution had computed
    assert sum(computed) == (600 - 256) * 10 + 359 * 10
    assert "cache" not in json.loads((out / "config.json").read_text())


def test_evaluate_and_distill_find_what_is_kept(tmp_path: Path, computed: list[int]) -> None:
    cache = ["--cache", str(tmp_path / "cache")]
    learn = ["distill", "--kernel", "conv1:nngp", "--targets", "100", "--steps", "1", "--draws", "1"]
    assert main([*learn, "--out", str(tmp_path / "a"), *cache]) == 0
    assert not (tmp_path / "a" / GRAMS).exists()
    computed.clear()
    assert main(["evaluate", str(tmp_path / "a"), "--kernels", "conv1:nngp", *cache]) == 0
    assert computed == []
    found = json.loads((tmp_path / "a" / "evaluate.json").read_text())["test_accuracy"]
    assert found["conv1:nngp"] == json.loads((tmp_path / "a" / "metrics.json").read_text())["test_accuracy"]


def test_a_cache_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main([*SOLVE, "--cache", str(tmp_path / "file"), "--out", str(tmp_path / "run")]) == 2
    assert "is a file; choose a folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Sends Ctrl-C when the first Gram matrix of at least so many pairs is there; calls afterwards are counted."""
    told = Watch._told
    after: list[int] = []

    def counting(watch: Watch, count: int, fresh: bool) -> None:
        if watch._interrupt is not None:
            after.append(count)
            if len(after) == 1:
                os.kill(os.getpid(), signal.SIGINT)
        told(watch, count, fresh)

    monkeypatch.setattr(Watch, "_told", counting)
    return after


@pytest.mark.parametrize("kernel", ["rbf", "conv1:nngp"])
def test_an_interrupt_is_heard_in_the_middle_of_a_comparison(
    kernel: str, tmp_path: Path, interrupted: list[int]
) -> None:
    command = ["distill", "--kernel", kernel, "--targets", "100", "--steps", "1", "--draws", "3"]
    assert main([*command, "--out", str(tmp_path)]) == 128 + signal.SIGINT
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert metrics["stopped"] == "interrupted"
    assert metrics["baselines"] == {}
    assert len(interrupted) == 1
    assert kip.load(tmp_path).results["test_accuracy"] == metrics["test_accuracy"]


def test_an_interrupted_label_solve_goes_on_from_what_it_has(
    tmp_path: Path, interrupted: list[int], computed: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*SOLVE, "--out", str(tmp_path)]) == 128 + signal.SIGINT
    assert "the same command continues" in capsys.readouterr().out
    assert not (tmp_path / "distilled.json").exists()
    assert computed == [10 * 10]
    computed.clear()
    assert main([*SOLVE, "--out", str(tmp_path)]) == 0
    assert 10 * 10 not in computed


def test_progress_has_pairs_a_second_and_an_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    times = iter(range(0, 10_000, 30))
    pace = functools.partial(progress._Pace, clock=lambda: float(next(times)))
    monkeypatch.setattr(progress, "_Pace", pace)
    with (tmp_path / "out").open("w+") as file:
        monkeypatch.setattr(progress, "console", Console(file=file, width=100))
        with progress.pairs("scoring", 4000) as show:
            for fresh in (False, True, True, True):
                show(1000, fresh)
        file.seek(0)
        lines = file.read().splitlines()
    assert lines[0] == "scoring"
    assert lines[3] == "scoring: 3,000/4,000 pairs  33 pairs/s  30 s left"
    assert "4,000/4,000" in lines[4]


def test_a_bar_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w+") as file:
        monkeypatch.setattr(progress, "console", Console(file=file, width=100, force_terminal=True))
        x = np.random.default_rng(0).normal(size=(6, 8, 8, 1))
        watch = Watch(tmp_path / "cache")
        kernels = watch.kernels([kip.kernel("conv1")], (8, 8, 1))
        for total in (36, None):
            with watch.over("a long one", True, total):
                kernels[0].gram(x)
        file.seek(0)
        printed = file.read()
    assert "36/36" in printed
    assert "a long one" in printed


def test_a_full_disk_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kip.gram_cache.write_atomic", refuse)
    assert main([*SOLVE, "--out", str(tmp_path / "run")]) == 0
    assert capsys.readouterr().out.count("no longer kept") == 1


def test_the_pace_is_measured_anew_where_all_was_found(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 8, 8, 1))
    CachedGram(kip.kernel("conv1"), Store(tmp_path)).gram(x)
    watch = Watch(tmp_path)
    kernels = watch.kernels([kip.kernel("conv1")], (8, 8, 1))
    with watch.over("again", True, 36):
        kernels[0].gram(x)
    assert 0 < watch.seconds_per_pair(kernels, x) < 60
