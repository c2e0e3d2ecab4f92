"""How an option is declared: its help, group, bounds, and what its default means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

DATA, LEARNING, OPTIMISATION, RUNNING = "Data", "What is learned", "How it is learned", "Running"
GROUPS = (DATA, LEARNING, OPTIMISATION, RUNNING)


Kind = Literal["digits", "photos", "images", "vectors"]
LabelMode = Literal["auto", "fixed", "learned", "solved"]


@dataclass(frozen=True)
class Option:
    """An option beside its type and default.

    `none` says what the default None stands for. `names` are its names on the command line where these are not its own;
    `renamed` is the name it had before. A `free` option may differ when a run is resumed: it changes nothing that is
    learned. A `python` option is not on the command line.
    """

    help: str
    group: str
    none: str | None = None
    at_least: float | None = None
    above: float | None = None
    below: float | None = None
    names: tuple[str, ...] = ()
    metavar: str | None = None
    renamed: str | None = None
    free: bool = False
    python: bool = False

    def bounds(self, value: Any) -> str | None:
        """What a number should be, where it is out of bounds."""
        words = []
        if self.at_least is not None:
            words.append((value >= self.at_least, f"at least {self.at_least:g}"))
        if self.above is not None:
            words.append((value > self.above, "positive" if self.above == 0 else f"above {self.above:g}"))
        if self.below is not None:
            words.append((value < self.below, f"below {self.below:g}"))
        return None if all(holds for holds, _ in words) else " and ".join(text for _, text in words)
