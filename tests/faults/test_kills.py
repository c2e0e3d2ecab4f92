"""SIGKILL at random times, and inside a checkpoint's writing; `python -m tests.faults` does more of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.faults.kills import CASES, INSIDE, Attack
from tests.support import require_dataset

KILLS = dict(zip(CASES, (6, 4, 4, 2, 4), strict=True))
"""Twenty, one in each case inside the writing of a checkpoint."""


@pytest.mark.parametrize("name", CASES)
def test_a_killed_run_ends_as_one_that_was_left_alone(name: str, tmp_path: Path) -> None:
    if "mnist" in name:
        require_dataset("mnist")
    tally = Attack(CASES[name], tmp_path, np.random.default_rng(len(name))).kill(KILLS[name], inside=1)
    assert tally.total == KILLS[name]
    assert tally.kills[INSIDE] >= 1
    assert tally.compared >= 1


def test_the_kills_are_as_many_as_promised() -> None:
    assert sum(KILLS.values()) == 20
    assert len(KILLS) >= 5
