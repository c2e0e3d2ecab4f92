"""How long a cell will take, from rates measured on this machine and kept in `rates.json` beside the results.

A prediction is a count of kernel entries, with and without their gradient, of floating-point operations, and of a
network's steps, each times its measured seconds. Where a rate was not measured there is no prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kip.files import read_json, write_json
from kip.label_solver import SPECTRUM_LIMIT
from kip.paper.recipes import Cell
from kip.paper.works import Comparison, Kip, Natural, Network, Part, Solved, Subset, Whole, Work, parts
from kip.timing import shortest

Rates = Mapping[str, float]
"""Seconds for one: a "pair KERNEL DATA" of images, a "gradient KERNEL DATA" of one, a "flop", a "network flop"."""

SHAPES = {"mnist": (28, 28, 1), "fashion-mnist": (28, 28, 1), "cifar10": (32, 32, 3), "digits": (8, 8, 1)}
TRAINING = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000, "digits": 1_437}
TESTS = {"mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000, "digits": 360}
CONJUGATE_GRADIENTS = 100
"""Iterations that a fit of a whole training set takes, about."""

NAME = "rates.json"


def read(folder: Path) -> dict[str, float]:
    """The rates measured so far."""
    path = folder / NAME
    return dict(read_json(path)) if path.is_file() else {}


def write(folder: Path, rates: Rates) -> None:
    """Keep rates beside the results."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / NAME, dict(sorted(rates.items())))


def needed(work: Work) -> set[str]:
    """The names of the rates that a prediction for `work` is made of."""
    return {name for part in parts(work) for name in _counts(part)}


def predicted(work: Work, rates: Rates) -> float | None:
    """Seconds the work will take, or None where a rate is missing."""
    if not needed(work) <= set(rates):
        return None
    return sum(_seconds(part, rates) for part in parts(work))


def cheap_first(cells: Sequence[Cell], rates: Rates) -> list[Cell]:
    """Cells in the order of what they give a minute: a published number first, then what takes least.

    Those without a prediction come last, as they were.
    """

    def rank(cell: Cell) -> tuple[bool, bool, float]:
        seconds = predicted(cell.work, rates)
        return seconds is None, cell.published is None, seconds or 0.0

    return sorted(cells, key=rank)


def _seconds(work: Any, rates: Rates) -> float:
    total = len(getattr(work, "seeds", (0,))) * sum(count * rates[name] for name, count in _counts(work).items())
    if isinstance(work, Kip) and work.seconds is not None:
        return min(total, len(work.seeds) * work.seconds)
    return total


def _counts(work: Any) -> dict[str, float]:
    """What one seed of a work takes, itself only."""
    if isinstance(work, Comparison | Natural):
        return {}
    if isinstance(work, Part):
        return {"flop": 1e9}
    data = work.data
    d, n_t, tests = _width(data), TRAINING[data], TESTS[data]
    if isinstance(work, Network):
        tried = len(work.losses) * len(work.learning_rates) * len(work.read_outs)
        trainings = 1 + (tried / len(work.seeds) if tried > 1 else 0)  # settings are tried with one seed
        seen = work.steps * (work.batch or work.support.size) + work.steps / work.watch_every * work.watch / 3
        return {"network flop": 6.0 * (trainings * seen + tests / 3) * _multiplications(work)}
    if isinstance(work, Subset):
        n = work.size
        return {"flop": n**3 / 3 + 2.0 * n * tests * d}
    pair = f"pair {work.kernel} {data}"
    if isinstance(work, Whole):
        return {pair: n_t * (n_t / 2 + tests), "flop": CONJUGATE_GRADIENTS * 2.0 * n_t**2 * 10 / 4}
    n = work.size
    if isinstance(work, Solved):
        n_t = work.targets or n_t
        spectrum = 22.0 if n <= SPECTRUM_LIMIT else 4.0
        entries = {pair: n * (n_t + tests + n), "flop": 4.0 * n_t * n**2 + spectrum * n**3}
        if work.tested is not None:
            tested = f"pair {work.tested} {data}"
            entries[tested] = entries.get(tested, 0.0) + n * (n + tests)
        return entries
    assert isinstance(work, Kip)
    steps, batch = work.steps or 600, work.batch or 6_000
    found = {"flop": steps * n**3 / 3}
    for each in work.kernel.split("+"):
        gradient = f"gradient {each} {data}"
        found[gradient] = found.get(gradient, 0.0) + steps * n * (batch + n) / len(work.kernel.split("+"))
    for each in work.tested:
        found[f"pair {each} {data}"] = work.checkpoints * n * tests
    return found


def _multiplications(work: Network) -> float:
    """What the network takes for one image, about."""
    h, w, ch = SHAPES[work.data]
    kind, depth = work.net.rstrip("0123456789"), int(work.net.lstrip("abcdefghijklmnopqrstuvwxyz") or 0)
    if kind == "fc":
        width = work.width or 1024
        return h * w * ch * width + (depth - 1) * width**2
    if kind == "conv":
        width = work.width or 128
        return 9.0 * h * w * (ch * width + (depth - 1) * width**2)
    return {"lenet": 4e5, "wideresnet": 3e7}[kind]


def _width(data: str) -> int:
    h, w, ch = SHAPES[data]
    return h * w * ch


def measure(names: set[str], *, seconds: float = 1.0, say: Callable[[str], object] = print) -> dict[str, float]:
    """Measure the rates of those names here, for about `seconds` each beside compilation."""
    found = {}
    for name in sorted(names):
        found[name] = _measured(name, seconds)
        say(f"{name}: {found[name]:.3g} s")
    return found


def _measured(name: str, seconds: float) -> float:
    import numpy as np

    kind, _, rest = name.partition(" ")
    rng = np.random.default_rng(0)
    if kind in ("flop", "network"):
        n = 1500
        a: Any = rng.standard_normal((n, n)).astype(np.float64 if kind == "flop" else np.float32)
        return shortest(lambda: a @ a, seconds) / (2.0 * n**3)
    spec, _, data = rest.rpartition(" ")
    from kip.kernels import kernel

    each = kernel(spec)
    rows, columns = (8, 16) if each.expensive(SHAPES[data]) else (512, 4096)
    x1 = rng.standard_normal((rows, *SHAPES[data]), np.float32)
    x2 = rng.standard_normal((columns, *SHAPES[data]), np.float32)
    cotangent = np.ones((rows, columns), np.float32)

    def call() -> object:
        return each.gram(x1, x2) if kind == "pair" else each.vjp(x1, x2)[1](cotangent)

    call()
    return shortest(call, seconds) / (rows * columns)
