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
from kip import algorithm, learning
from kip.options import Options
from kip.plan import Pace
from kip.task import prepare


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 40, 20])
    return rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[y], y


def test_a_time_budget_ends_the_run(data) -> None:
    task = prepare(*data, Options(size=3, steps=50, evaluate_every=10))
    now = iter(range(1000))
    seen: list[learning.Seen] = []
    learned = learning.learn(task, task.initial(), [seen.append], budget=8, clock=lambda: float(next(now)))
    assert learned.ended == learning.LATE
    assert 0 < learned.state.step < 8
    assert learned.seconds >= 8
    assert [each.info.step for each in seen] == list(range(1, learned.state.step + 1))
    assert [each.seconds for each in seen] == sorted(each.seconds for each in seen)
    with pytest.raises(ValueError, match="`time_budget` must be a positive number of seconds; got 0"):
        kip.distill(*data, size=3, time_budget=0)


def test_seconds_before_count_towards_the_budget(data) -> None:
    task = prepare(*data, Options(size=3, steps=50))
    learned = learning.learn(task, task.initial(), budget=5, before=100.0)
    assert (learned.ended, learned.state.step) == (learning.LATE, 1)


def test_a_run_ends_for_one_reason_and_can_be_continued(data) -> None:
    task = prepare(*data, Options(size=3, steps=12, evaluate_every=5))
    done = learning.learn(task, task.initial())
    assert (done.ended, done.state.step) == (learning.DONE, 12)
    seen: list[learning.Seen] = []
    half = learning.learn(task, task.initial(), [seen.append], stop=lambda: seen[-1].info.step >= 7)
    assert (half.ended, half.state.step, len(half.state.best)) == (learning.STOPPED, 7, 1)
    rest = learning.learn(task, half.state)
    np.testing.assert_array_equal(rest.checkpoint.x, done.checkpoint.x)
    assert [each.entry["step"] for each in seen if "evaluated" in each.entry] == [5]


def test_a_time_budget_chooses_the_steps(data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning, "paced", lambda *_: Pace(0.01, 0.0, 0.0, 0.0))
    small = kip.distill(*data, size=3, time_budget=1.0)
    assert small.config["steps"] == 60  # nine tenths of a second, less what the update takes to compile
    assert small.config["evaluate_every"] == 3
    assert kip.distill(*data, size=3, time_budget=100.0, steps=5).config["steps"] == 5


def interrupt_at(step: int):
    def callback(state: algorithm.State, info: algorithm.Info) -> None:
        if info.step == step:
            raise KeyboardInterrupt

    return callback


@pytest.mark.parametrize("labels", ["fixed", "learned", "solved"])
@pytest.mark.parametrize("evaluate_every", [3, 50])
def test_an_interrupted_set_is_that_of_a_run_stopped_there(data, labels: str, evaluate_every: int) -> None:
    options = {"size": 3, "steps": 60, "labels": labels, "evaluate_every": evaluate_every, "evaluate_targets": 40}
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


@pytest.mark.parametrize("evaluate_every", [3, 50])
def test_a_second_interrupt_gives_what_needs_no_evaluation(
    data, evaluate_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []

    def callback(state: algorithm.State, info: algorithm.Info) -> None:
        states.append(state)
        interrupt_at(7)(state, info)

    def again(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithm, "finish", again)
    with pytest.raises(kip.Interrupted) as caught:
        kip.distill(*data, size=3, steps=60, evaluate_every=evaluate_every, callback=callback)
    best = states[-1].best[0] if evaluate_every == 3 else states[-1]
    np.testing.assert_array_equal(caught.value.distilled.x, best.x)
    np.testing.assert_array_equal(caught.value.distilled.y, best.y)


def test_an_interrupt_of_the_last_label_solve_keeps_what_was_learned(data, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def publish(*args):
        calls.append(args)
        raise KeyboardInterrupt

    monkeypatch.setattr(algorithm, "publish", publish)
    with pytest.raises(kip.Interrupted, match="at step 20 of 20") as caught:
        kip.distill(*data, size=3, steps=20, labels="solved", evaluate_targets=40)
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
