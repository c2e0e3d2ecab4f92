"""What a run will take before it starts: memory and disk from shapes alone, time and steps from a few timed steps.

The memory bound is a sum of arrays that exist at once, one term per array or per pass; it is meant to lie between the
measured peak and one and a half times that (`benchmarks/plan.py` prints the ratios). Nothing here touches the disk,
the clock or the terminal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kip.execution import CONCURRENT_ROWS, DEFAULT_MEMORY, TILE_ROWS
from kip.task import Outline

MB = 2**20

COMPILED = 144 * MB
"""What a process gains after its imports, whatever the data: XLA's compiled functions and Matplotlib with its fonts
take about 100 MB, and the allocator keeps some of what was freed."""

LOOPS = 64 * MB
"""The same for loops that Numba compiles, which augmentation and convolutional kernels have."""

FULL_LIMIT = 10_000
"""Training points up to which the full training set is factorised for comparison."""

BUDGET_SHARE = 0.9
"""The share of a time budget that steps are chosen to fill: the last steps of a schedule matter most."""

QUICK = 1.0
"""A call that takes less than so many seconds is repeated until as many have passed, or a twentieth of a budget."""

UPDATE = 0.3
"""Seconds that Adam's update takes to be compiled again, for the schedule of the steps that were chosen."""

REMEMBERED = 2**30
"""Bytes of images that convolutional kernels remember at most."""

BEST, CHECKPOINTS = 5, 3
"""Support sets in a state; checkpoints on disk: two are kept, and a third may be being written."""

HISTORY_LINE, PICTURES = 110, 600_000
"""Bytes, about: a line of history.jsonl, and all pictures."""


@dataclass(frozen=True)
class Work:
    """The shapes of a run. `support` is the part of `size` in a step, `width` the numbers in a point.

    `inner` says that all kernels are functions of inner products; `image_bytes` are what convolutional
    kernels keep per image they have seen, `pair_bytes` per pair within a step.
    """

    training: int
    test: int
    validation: int
    width: int
    classes: int
    itemsize: int
    raw_itemsize: int
    size: int
    support: int
    batch: int
    steps: int
    evaluated: int
    solved: bool
    augmented: bool
    whitened: bool
    inner: bool
    compared: bool
    full: bool
    threads: int
    image_bytes: int = 0
    pair_bytes: int = 0

    @property
    def against_all(self) -> bool:
        """Whether the set is compared with the full training set: asked for, or quick enough."""
        return self.full or (self.compared and self.inner and self.training <= FULL_LIMIT)

    @classmethod
    def of(cls, outline: Outline, test: int, *, threads: int, draws: int | None, full: bool) -> Work:
        """The shapes of what `outline` describes, scored on `test` points and compared as a run is."""
        config, options, n = outline.config, outline.options, len(outline.rows)
        inner = not any(kernel.expensive(_point(outline.raw)) for kernel in config.kernels)
        image_bytes, pair_bytes = _kept_by_kernels(outline)
        return cls(
            training=n,
            test=test,
            validation=len(outline.held_out),
            width=int(np.prod(outline.raw.shape[1:])),
            classes=len(outline.classes),
            itemsize=np.dtype(options.dtype).itemsize,
            raw_itemsize=outline.raw.itemsize,
            size=config.size,
            support=config.support_batch or config.size,
            batch=config.batch or n,
            steps=config.steps,
            evaluated=config.evaluation_size(n),
            solved=config.labels == "solved",
            augmented=(options.augment or "none") != "none",
            whitened=options.preprocess.startswith("zca"),
            inner=inner,
            compared=draws != 0,
            full=full,
            threads=threads,
            image_bytes=image_bytes,
            pair_bytes=pair_bytes,
        )


def _kept_by_kernels(outline: Outline) -> tuple[int, int]:
    """Bytes that kernels keep per image, all of them, and per pair within a step, the largest of them."""
    itemsize = np.dtype(outline.options.dtype).itemsize
    kept = [kernel.kept_bytes(_point(outline.raw), itemsize) for kernel in outline.config.kernels]
    return sum(image for image, _ in kept), max(pair for _, pair in kept)


def _point(raw: np.ndarray) -> tuple[int, ...]:
    """The shape of a preprocessed point."""
    return (*raw.shape[1:], 1) if raw.ndim == 3 else raw.shape[1:]


# --- bytes


def memory(work: Work, floor: int) -> int:
    """A bound on the peak of a process that holds `floor` bytes after its imports, raw data included.

    What stays is the data as prepared and what kernels keep of images; of the phases only the largest counts.
    """
    loops = LOOPS if work.augmented or work.image_bytes else 0
    phases = max(_preparing(work), _learning(work), _measuring(work))
    return floor + COMPILED + loops + _prepared(work) + _images(work) + phases


def _prepared(work: Work) -> int:
    """Preprocessed points with their label vectors; W of ZCA, whole and packed; raw rows, where they are augmented."""
    points = (work.training + work.validation) * (work.width + 2 * work.classes) * work.itemsize
    whitening = int(1.5 * work.itemsize * work.width**2) if work.whitened else 0
    return points + whitening + (work.training * work.width * work.raw_itemsize if work.augmented else 0)


def _preparing(work: Work) -> int:
    """A copy of the raw rows that are learned from; for ZCA the covariance, its eigenvectors, and LAPACK's space."""
    return work.training * work.width * work.raw_itemsize + (5 * 8 * work.width**2 if work.whitened else 0)


def _images(work: Work) -> int:
    """Own variances of every image seen, up to what kernels remember; each step augments a batch anew."""
    seen = work.training + work.test + work.validation + work.size
    seen += work.steps * work.batch if work.augmented else 0
    return min(REMEMBERED, seen * work.image_bytes)


def _learning(work: Work) -> int:
    """Adam's state and the best sets so far; beside them a step, or the evaluation of a checkpoint."""
    evaluated = work.evaluated * work.width * work.itemsize if work.evaluated < work.training else 0
    evaluating = _solving(work, work.evaluated) if work.solved else _tiles(work, work.size, work.evaluated)
    return (7 + BEST) * _set(work) + evaluated + max(_step(work), evaluating)


def _step(work: Work) -> int:
    """The batch with its augmented copies; tiles; K_ss, its factor and cotangents, α's system; x̄_s in float64."""
    m, copies = work.support, 4 if work.augmented else 1 if work.batch < work.training else 0
    batch = copies * work.batch * work.width * work.itemsize
    kept = 2 * m * work.batch * work.itemsize
    kept = kept if work.solved and kept <= DEFAULT_MEMORY // 2 else 0  # K_ts between the two visits of a tile
    dense = (9 if work.solved else 6) * 8 * m * m
    gradient = (2 + work.threads) * 8 * m * work.width
    planes = min(DEFAULT_MEMORY, m * work.batch * work.pair_bytes)
    return batch + kept + _tiles(work, m, work.batch) + dense + gradient + planes


def _tiles(work: Work, support: int, targets: int) -> int:
    """Tiles in flight, one per thread: each row has its point, K, residuals and two cotangents, and K in float64."""
    rows = min(targets, max(TILE_ROWS, work.threads * CONCURRENT_ROWS))
    return min(DEFAULT_MEMORY, rows * (work.itemsize * (4 * support + 2 * work.width) + 8 * support))


def _solving(work: Work, targets: int) -> int:
    """Label Solve: per thread the rows of a tile and their triangle with copies for LAPACK; K_ss, A⁻¹ and an SVD."""
    columns, rows = work.size + work.classes, min(targets, CONCURRENT_ROWS)
    return _tiles(work, work.size, targets) + 8 * columns * (2 * work.threads * (rows + columns) + 6 * work.size)


def _measuring(work: Work) -> int:
    """Scoring the test set, preprocessed twice; Label Solve on all targets; k-means per class; K of the full set."""
    test = 2 * work.test * (work.width + 2 * work.classes) * work.itemsize
    passes = [_tiles(work, work.size, max(work.training, work.test))]
    if work.compared:
        passes += [_solving(work, work.training), 3 * 8 * (work.training // work.classes) * work.width]
    if work.against_all:
        passes.append(3 * 8 * work.training**2 + _tiles(work, work.training, work.test))
    return BEST * _set(work) + test + max(passes)


def _set(work: Work) -> int:
    """Bytes of a support set with its labels."""
    return work.size * (work.width + work.classes) * work.itemsize


def disk(work: Work) -> int:
    """Checkpoints with Adam's moments and the best sets, the distilled set, the history and the pictures."""
    whitening = work.itemsize * work.width * (work.width + 1) // 2 if work.whitened else 0
    sets = CHECKPOINTS * (3 + BEST) + 1
    return sets * _set(work) + whitening + HISTORY_LINE * work.steps + PICTURES


def remedy(work: Work, floor: int, limit: int) -> str:
    """What to ask for so that a run which does not fit into `limit` bytes does."""
    if work.against_all and memory(dataclasses.replace(work, full=False, compared=False), floor) <= limit:
        return "use --draws 0, which compares with nothing"
    for name, least in (("batch", 1), ("size", work.classes), ("targets", work.classes)):
        most = _most(name, work, floor, limit, least)
        if most is not None:
            return f"use --{name} {most} or less"
    return "use a smaller data set, or a machine with more memory"


def _most(name: str, work: Work, floor: int, limit: int, least: int) -> int | None:
    """The largest value of an option, to two digits, with which the run fits; None where none does."""
    low, high = least, work.training if name == "targets" else int(getattr(work, name))

    def fits(value: int) -> bool:
        return memory(limited(work, name, value), floor) <= limit

    if high <= low or not fits(low):
        return None
    low = _last(fits, low, high)
    digit = 10 ** max(0, len(str(low)) - 2)
    rounded = max(least, low // digit * digit)
    return rounded if fits(rounded) else low


def limited(work: Work, name: str, value: int) -> Work:
    """The work where the option `name` (batch, size or targets) has this value."""
    if name == "size":
        return dataclasses.replace(work, size=value, support=min(work.support, value))
    if name == "batch":
        return dataclasses.replace(work, batch=value)
    training, batch, evaluated = (min(of, value) for of in (work.training, work.batch, work.evaluated))
    return dataclasses.replace(work, training=training, batch=batch, evaluated=evaluated)


def _last(fits: Callable[[int], bool], low: int, high: int) -> int:
    """The last number from `low` on that fits, where `low` does and `high` does not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


# --- seconds


@dataclass(frozen=True)
class Pace:
    """Measured seconds: of a step and of an evaluation once compiled, and of compiling; `spent` in measuring them."""

    step: float
    evaluation: float
    compiling: float
    spent: float

    def learning(self, steps: int, every: int) -> float:
        """Seconds of so many compiled steps, with an evaluation every so often and at the end."""
        return steps * self.step + -(-steps // every) * self.evaluation

    def steps_within(self, budget: float, every: Callable[[int], int]) -> int:
        """The most steps that fill the budget but for a tenth, timing included; 1 where not even that many fit.

        `every(steps)` is the number of steps between evaluations.
        """

        def fits(steps: int) -> bool:
            return self.spent + UPDATE + self.learning(steps, every(steps)) <= BUDGET_SHARE * budget

        high = 2
        while fits(high):
            high *= 2
        return _last(fits, high // 2, high)


def timed(call: Callable[[], Any], clock: Callable[[], float], patience: float, *, again: bool) -> tuple[float, float]:
    """Seconds of the first call, which compiles, and the mean of those after it, repeated for `patience` seconds.

    A first call longer than `patience` is repeated once if `again`; otherwise it stands for those after it.
    """
    start = clock()
    call()
    begun = clock()
    first = begun - start
    if first > patience and not again:
        return first, first
    calls, now = 0, begun
    while calls == 0 or now - begun < patience:
        call()
        calls, now = calls + 1, clock()
    return first, max((now - begun) / calls, 1e-6)


@dataclass(frozen=True)
class Expected:
    """What a run is told to take: bytes of memory at its peak, and seconds of learning where they were foreseen."""

    memory: int
    learning: float | None = None

    def beside(self, learning: float, peak: int) -> dict[str, Any]:
        """Predicted beside actual, as `metrics.json` has them."""
        found: dict[str, Any] = {"peak_memory": {"predicted": self.memory, "actual": peak}}
        if self.learning is not None:
            found["seconds"] = {"predicted": round(self.learning, 3), "actual": round(learning, 3)}
        return found
