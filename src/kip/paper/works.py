"""Kinds of work: what one cell asks to be computed, as plain frozen values that can be read, compared and stored.

None means that `kip.defaults` chooses. `seconds` is the time that one run may take; `seeds` are the repetitions, each
of which can be resumed by itself. Two cells that ask for the same work share its runs.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DRAWS = tuple(range(20))
SAMPLES = (0, 1, 2)
NETWORKS = tuple(range(5))


@dataclass(frozen=True, kw_only=True)
class Subset:
    """KRR on random subsets with their natural labels; a seed is a resampling."""

    data: str
    kernel: str
    size: int
    balanced: bool = True
    seeds: tuple[int, ...] = DRAWS


@dataclass(frozen=True, kw_only=True)
class Whole:
    """KRR on the whole training set, by streamed conjugate gradients."""

    data: str
    kernel: str
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Solved:
    """Label Solve on class-balanced samples; `targets` None takes the whole training set.

    `tested` names another kernel to predict with, `tested_preprocess` how it sees the images where that is not as
    `kernel` does; `natural` leaves the labels as they are, for comparison.
    """

    data: str
    kernel: str
    size: int
    preprocess: str = "standard"
    targets: int | None = None
    tested: str | None = None
    natural: bool = False
    tested_preprocess: str | None = None
    seeds: tuple[int, ...] = SAMPLES


@dataclass(frozen=True, kw_only=True)
class Kip:
    """One KIP learning; a seed is an initialisation, and the `checkpoints` of lowest training loss are scored.

    `tested` names kernels to predict with instead of the one learned with; their accuracies are averaged.
    """

    data: str
    kernel: str
    size: int
    labels: str = "auto"
    augment: str | None = None
    steps: int | None = None
    batch: int | None = None
    support_batch: int | None = None
    learning_rate: float | None = None
    schedule: str = "cosine"
    corruption: float = 0.0
    init: str = "image"
    learn_kernel: bool = False
    evaluate_every: int | None = None
    checkpoints: int = 1
    tested: tuple[str, ...] = ()
    seconds: float | None = None
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True, kw_only=True)
class Part:
    """Class-balanced subsets of `size` of a learned set, with the labels they have there; a seed is a resampling."""

    of: Kip
    size: int
    seeds: tuple[int, ...] = NETWORKS


@dataclass(frozen=True, kw_only=True)
class Natural:
    """A class-balanced sample of natural images with their labels, corrupted where asked.

    `redrawn` draws images, mask and noise anew for each of the network's seeds.
    """

    data: str
    size: int
    corruption: float = 0.0
    redrawn: bool = False


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network trained on a support set, natural or learned; a seed is an initialisation of the network.

    The step to stop at, and one of `losses`, `learning_rates` and `read_outs` (how the last layer starts), are chosen
    on `watch` training images; `patience` is how many steps may go by without a better one. `width` None is the
    network's own; `batch` None takes all images each step.
    """

    data: str
    net: str
    support: Natural | Kip
    losses: tuple[str, ...]
    optimiser: str
    learning_rates: tuple[float, ...]
    steps: int
    parameterisation: str = "standard"
    width: int | None = None
    batch: int | None = None
    watch: int = 5_000
    watch_every: int = 25
    patience: int | None = None
    read_outs: tuple[str, ...] = ("auto",)
    seeds: tuple[int, ...] = NETWORKS


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What a claim says of two trials: `left` is "above" `right`, or "alike" within `slack`, or a `share` of it.

    The statement is for people. Accuracies and `slack` are in per cent.
    """

    statement: str
    left: str
    relation: str
    right: str
    slack: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A named work of a comparison."""

    name: str
    work: Subset | Whole | Solved | Kip | Part | Network


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A claim put to the test: trials, and the rules that their mean accuracies must obey for it to hold."""

    trials: tuple[Trial, ...]
    rules: tuple[Rule, ...]


Work = Subset | Whole | Solved | Kip | Part | Network | Comparison


def plain(work: Any) -> dict[str, Any]:
    """The work as JSON values, with its kind."""
    values = dataclasses.asdict(work, dict_factory=_without_later)
    return {"kind": type(work).__name__.lower(), **json.loads(json.dumps(values))}


RENAMED = {"judge_every": "evaluate_every", "judge_targets": "evaluate_targets"}
"""Settings that had another name in older records, by that name."""


def renamed(values: Any, names: Mapping[str, str] = RENAMED) -> Any:
    """JSON values with the keys of all objects renamed."""
    if isinstance(values, dict):
        return {names.get(key, key): renamed(value, names) for key, value in values.items()}
    if isinstance(values, list):
        return [renamed(value, names) for value in values]
    return values


_LATER = {"patience": None, "tested_preprocess": None, "redrawn": False, "read_outs": ("auto",)}
"""Fields that came after the first results: left out where they have this value, so that a record from before is still
of its work."""


def _without_later(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {key: value for key, value in items if key not in _LATER or value != _LATER[key]}


def parts(work: Work) -> list[Any]:
    """The works a work is made of, itself included; each has its own runs."""
    found: list[Any] = [work]
    if isinstance(work, Comparison):
        for trial in work.trials:
            found += parts(trial.work)
    elif isinstance(work, Part):
        found += parts(work.of)
    elif isinstance(work, Network) and isinstance(work.support, Kip):
        found += parts(work.support)
    return found


_NOT_LEARNED = ("seeds", "checkpoints", "tested")
"""Fields of `Kip` that say how often it is repeated and how it is scored: not what is learned."""


def name(work: Any) -> str:
    """A folder's name for the runs of a work: readable, and different for different works.

    What is learned and how it is scored are apart, so that a learned set serves every cell that scores it. The name
    is made with the settings' first names, so that folders are found again.
    """
    values = renamed(plain(work), {now: before for before, now in RENAMED.items()})
    # The networks of all seeds have one outcome, since they stop at one step; every other work has one per seed.
    left_out = _NOT_LEARNED if isinstance(work, Kip) else () if isinstance(work, Network) else ("seeds",)
    text = json.dumps({key: value for key, value in values.items() if key not in left_out}, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:10]
    words = [values["kind"], *(str(values[key]) for key in ("data", "kernel", "net", "size") if values.get(key))]
    return "-".join("".join(c if c.isalnum() or c in "=." else "-" for c in word) for word in words) + f"-{digest}"
