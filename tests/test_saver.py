"""When checkpoints are written: by the clock, and no more often than their cost allows."""

import pytest

from kip import checkpoint


class Clock:
    """Seconds that tests set, and that saving takes."""

    def __init__(self, now=1000.0):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def slow_save(monkeypatch):
    clock = Clock()
    saved = []

    def save(folder, state, identity):
        clock.now += 2
        saved.append(clock.now)
        return folder

    monkeypatch.setattr(checkpoint, "save", save)
    return clock, saved


def test_saver_saves_by_the_clock_and_counts_its_seconds(tmp_path, slow_save):
    clock, saved = slow_save
    saver = checkpoint.Saver(tmp_path, {}, 10, clock)
    for now in (1000, 1009, 1010, 1013, 1021.5, 1022):
        clock.now = now
        saver(None)
    assert saved == [1012, 1024]
    assert (saver.seconds, saver.saves) == (4, 2)
    saver.save(None)
    assert (saver.seconds, saver.saves) == (6, 3)


def test_saver_waits_longer_where_saving_is_slow(tmp_path, slow_save):
    clock, saved = slow_save
    saver = checkpoint.Saver(tmp_path, {}, 1, clock, share=0.02)
    for now in (1001, 1100.9, 1101):
        clock.now = now
        saver(None)
    assert saved == [1003, 1103]


def test_a_clock_that_jumps_back_delays_a_save_by_one_interval_at_most(tmp_path, slow_save):
    clock, saved = slow_save
    saver = checkpoint.Saver(tmp_path, {}, 10, clock)
    for now in (5, 14, 15):
        clock.now = now
        saver(None)
    assert saved == [17]
    assert saver.seconds == 2


@pytest.mark.parametrize("arguments", [{"every": -1}, {"every": float("nan")}, {"every": 1, "share": 0}])
def test_saver_refuses_times_that_are_none(tmp_path, arguments):
    with pytest.raises(ValueError, match="must be a"):
        checkpoint.Saver(tmp_path, {}, **arguments)
