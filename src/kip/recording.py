"""What a run leaves in its folder while it learns: the history and checkpoints, and how to continue from them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kip import checkpoint, runs
from kip.algorithm import State
from kip.learning import Seen, Watcher

SAVE_EVERY = 10.0
SAVE_SHARE = 0.01
"""A checkpoint is written this often, in seconds, but never takes more than this share of the time."""


class Record:
    """History and checkpoints of one run; `identity` is what its checkpoints belong to."""

    def __init__(self, run: runs.Run, identity: Mapping[str, Any]) -> None:
        self.run = run
        folder = run.folder / runs.CHECKPOINTS
        self.saver = checkpoint.Saver(folder, identity, SAVE_EVERY, share=SAVE_SHARE, before=run.flush_history)

    def latest(self, fresh: State, *, say: Callable[[str], object]) -> State | None:
        """The state in which the run was left, to the bit; None where there is no checkpoint."""
        return checkpoint.latest(self.saver.folder, fresh, self.saver.identity, say=say)

    def seconds(self, state: State) -> float:
        """How long the steps before `state` took."""
        return runs.seconds_until(self.run.folder, state.step)

    @contextlib.contextmanager
    def watching(self, state: State) -> Iterator[Watcher]:
        """A watcher that writes the history from `state` on, and a checkpoint now and then."""
        with self.run.history(keep=state.step) as history:

            def watch(seen: Seen) -> None:
                history.add(seen.entry)
                self.saver(seen.state)

            yield watch

    def save(self, state: State) -> None:
        """Save `state` now, whatever the time: before stopping on purpose."""
        self.saver.save(state)

    def cost(self, seconds: float) -> dict[str, float]:
        """How often checkpoints were written, how long that took, and its share of the `seconds` of learning."""
        spent = self.saver.seconds
        return {"saves": self.saver.saves, "seconds": round(spent, 4), "share": round(spent / max(seconds, 1e-9), 5)}

    def forget(self) -> None:
        """Remove the checkpoints of a run that needs them no more."""
        shutil.rmtree(self.saver.folder, ignore_errors=True)
