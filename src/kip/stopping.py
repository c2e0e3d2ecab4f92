"""Ways for a distillation to end early: a time budget, a stop of one's own, and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable

from kip.artefact import DistilledSet


def within(seconds: float | None, clock: Callable[[], float]) -> Callable[[], bool] | None:
    """A stop that is true once `seconds` have gone by on `clock`."""
    if seconds is None:
        return None
    if seconds <= 0:
        raise ValueError(f"`time_budget` must be positive; got {seconds}")
    end = clock() + seconds
    return lambda: clock() >= end


def either(*stops: Callable[[], bool] | None) -> Callable[[], bool]:
    """A stop that is true when any of those given is."""
    given = [stop for stop in stops if stop is not None]
    return lambda: any(stop() for stop in given)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during `distill`; `distilled` is the set as it stands.

    It is the set of a run that `stop()` ends at that step. Its evaluation takes a moment; a second Ctrl-C skips it and
    gives the best points evaluated before. In a notebook, `sys.last_value` is the exception.

    >>> import numpy as np, kip
    >>> def interrupt(state, info):
    ...     if info.step == 7:
    ...         raise KeyboardInterrupt
    >>> x = np.random.default_rng(0).normal(size=(40, 3)) + 4 * np.repeat(np.eye(2, 3), 20, axis=0)
    >>> try:
    ...     small = kip.distill(x, np.repeat([0, 1], 20), size=2, steps=10, callback=interrupt)
    ... except kip.Interrupted as stopped:
    ...     print(stopped)
    ...     small = stopped.distilled
    interrupted at step 7 of 10; the set as it stands is in `.distilled` of this exception
    """

    def __init__(self, distilled: DistilledSet, step: int, steps: int) -> None:
        super().__init__(
            f"interrupted at step {step} of {steps}; the set as it stands is in `.distilled` of this exception"
        )
        self.distilled = distilled
