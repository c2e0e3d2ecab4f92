"""How long something takes on this machine, for `kip bench` and the costs of the paper's cells."""

from __future__ import annotations

import time
from collections.abc import Callable


def shortest(call: Callable[[], object], seconds: float) -> float:
    """The shortest of the calls that fit into `seconds`: what else the machine does only ever adds."""
    spent, best = 0.0, float("inf")
    while spent < seconds:
        start = time.perf_counter()
        call()
        took = time.perf_counter() - start
        spent, best = spent + took, min(best, took)
    return best
