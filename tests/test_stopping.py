"""Distillations that end early give the set as it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kip
from kip import kip as algorithm
from kip.stopping import within


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 40, 20])
    return rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[y], y


def test_a_time_budget_ends_the_run() -> None:
    now = iter(range(100))
    stop = within(3, lambda: next(now))
    assert [stop() for _ in range(4)] == [False, False, True, True]
    with pytest.raises(ValueError, match="`time_budget` must be positive"):
        within(0, lambda: 0.0)


def interrupt_at(step: int):
    def callback(state: algorithm.State, info: algorithm.Info) -> None:
        if info.step == step:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("labels", ["fixed", "learned", "solved"])
@pytest.mark.parametrize("judge_every", [3, 50])
def test_an_interrupted_set_is_that_of_a_run_stopped_there(data, labels: str, judge_every: int) -> None:
    options = {"size": 3, "steps": 60, "labels": labels, "judge_every": judge_every, "judge_targets": 40}
    with pytest.raises(kip.Interrupted) as caught:
        kip.distill(*data, **options, callback=interrupt_at(7))
    assert str(caught.value) == (
        "interrupted at step 7 of 60; the set as it stands is in `.distilled` of this exception"
    )
    assert isinstance(caught.value, KeyboardInterrupt)
    seen: list[int] = []
    stopped = kip.distill(*data, **options, callback=lambda _, info: seen.append(info.step), stop=lambda: seen[-1] >= 7)
    assert caught.value.distilled == stopped
    assert caught.value.distilled.score(*data) > 0.8


def test_an_interrupt_inside_a_step_leaves_the_state_before_it(data, monkeypatch: pytest.MonkeyPatch) -> None:
    update, calls = algorithm._update, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return update(*args)

    monkeypatch.setattr(algorithm, "_update", interrupted)
    with pytest.raises(kip.Interrupted, match="at step 4 of 60") as caught:
        kip.distill(*data, size=3, steps=60)
    monkeypatch.undo()
    with pytest.raises(kip.Interrupted) as after:
        kip.distill(*data, size=3, steps=60, callback=interrupt_at(4))
    assert caught.value.distilled == after.value.distilled


@pytest.mark.parametrize("judge_every", [3, 50])
def test_a_second_interrupt_gives_what_needs_no_evaluation(
    data, judge_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def callback(state: algorithm.State, info: algorithm.Info) -> None:
        states.append(state)
        interrupt_at(7)(state, info)

    def again(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithm, "finish", again)
    with pytest.raises(kip.Interrupted) as caught:
        kip.distill(*data, size=3, steps=60, judge_every=judge_every, callback=callback)
    best = states[-1].best[0] if judge_every == 3 else states[-1]
    np.testing.assert_array_equal(caught.value.distilled.x, best.x)
    np.testing.assert_array_equal(caught.value.distilled.y, best.y)


def test_an_interrupt_of_the_last_label_solve_keeps_what_was_learned(data, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def publish(*args):
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithm, "publish", publish)
    with pytest.raises(kip.Interrupted, match="at step 20 of 20") as caught:
        kip.distill(*data, size=3, steps=20, labels="solved", judge_targets=40)
    assert len(calls) == 1  # it is not begun anew
    assert caught.value.distilled.score(*data) > 0.8


SCRIPT = """
import sys, numpy as np, kip
rng = np.random.default_rng(0)
y = np.repeat([0, 1, 2], 40)
x = rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[y]
def tell(state, info):
    if info.step == 5:
        print("learning", flush=True)
try:
    kip.distill(x, y, size=3, steps=10_000_000, callback=tell)
except kip.Interrupted as stopped:
    stopped.distilled.save(sys.argv[1])
    print(stopped, flush=True)
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot send SIGINT to one process")
def test_a_real_interrupt(data, tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SCRIPT, tmp_path / "set"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "learning\n"
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert said.startswith("interrupted at step ")
    assert kip.load(tmp_path / "set").score(*data) > 0.8
