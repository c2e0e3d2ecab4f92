"""What a run will take before it starts: seconds, bytes of memory and bytes of disk, as arithmetic on measured rates.

`Work` says what has to be done, `Rates` how long pieces of it took on this machine at sizes near those asked for; what
is between them are the leading terms: pairs of points, and the cubes and squares of dense algebra. Nothing here touches
the disk, the clock or the terminal.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kip.stream import DEFAULT_MEMORY, Plan

BUDGET_SHARE = 0.9
"""A time budget is filled so far: the end of a schedule is worth more than the last tenth of the steps."""

FULL_LIMIT = 10_000
"""Training points up to which the full training set is factorised for comparison."""

KEPT_CHECKPOINTS = 3
"""Two are kept, and a third may be being written."""

BEST = 5
"""Support sets that a state keeps."""

FRESH = 48 * 2**20
"""Arrays larger than this are given back to the system and come from it anew each time."""

HISTORY_LINE = 110
PICTURES = 600_000
"""Bytes, about: a line of history.jsonl, and all pictures."""


@dataclass(frozen=True)
class Work:
    """A run in numbers. `support` is what a step takes of `size`, `width` the numbers in a point.

    `draws` None means as many as `patience` seconds allow, up to `most_draws`. `remembered` are the bytes a kernel
    keeps of an image it has seen, up to `memory_of_images` in all; `planes` those it keeps of a pair of images within a
    step, up to `memory_of_planes`.
    """

    training: int
    test: int
    validation: int
    width: int
    classes: int
    itemsize: int
    raw_itemsize: int
    original: int
    size: int
    support: int
    batch: int
    steps: int
    judge_every: int
    judging: int
    solved: bool
    augmented: bool
    whitened: bool
    draws: int | None
    most_draws: int
    patience: float
    full: bool
    save_every: float
    remembered: int = 0
    memory_of_images: int = 0
    planes: int = 0
    memory_of_planes: int = 0

    @property
    def solves_again(self) -> bool:
        """Whether labels are solved once more, for publication: they are those of the judgement where all judge."""
        return self.solved and self.judging < self.training

    @property
    def rows(self) -> int:
        """Rows of a tile in a step."""
        return Plan().rows(self.batch, self.support, self.width, self.itemsize)

    def tiles(self, targets: int) -> int:
        """Tiles in a pass over so many targets, with the whole support set."""
        return -(-targets // self.rows_of(targets))

    def rows_of(self, targets: int) -> int:
        """Rows of a tile in a pass over so many targets, with the whole support set."""
        return Plan().rows(targets, self.size, self.width, self.itemsize)


@dataclass(frozen=True)
class Rates:
    """Seconds of one kernel, measured at `support` points and tiles of `rows` targets.

    `step` is what a step takes beside its tiles, `tile` each of them; `forward` is K of a tile alone, `system` K_ss
    with its factor, `first` what the first calls take beyond later ones. `pairs` says that all of it grows with the
    pairs of points alone, as convolutional kernels do; otherwise matrix products and dense algebra are what grows.
    """

    support: int
    rows: int
    step: float
    tile: float
    forward: float
    system: float
    first: float
    pairs: bool


@dataclass(frozen=True)
class Pace:
    """Seconds of what no kernel enters, measured with dense matrices of `order` and points of the width asked for.

    `fold` is a QR of `rows` such rows, `svd` a whole decomposition. The others are of one point: to preprocess it, to
    augment it, to draw it into a batch; `touched` of one byte used for the first time; `passes` of one point through
    all passes of k-means, `means` of one and each centroid besides, `seeding` of these in finding one. `eigen` is of
    one order cubed, `drawn` of the pictures, `resident` the bytes of a process that has computed a little.
    """

    order: int
    rows: int
    fold: float
    svd: float
    eigen: float
    prepared: float
    augmented: float
    sampled: float
    touched: float
    passes: float
    means: float
    seeding: float
    drawn: float
    resident: int


@dataclass(frozen=True)
class Prediction:
    """What a run will take: seconds by part, bytes at the peak, bytes on disk; and of the seconds, those of a step."""

    preparing: float
    learning: float
    publishing: float
    measuring: float
    step: float
    judgement: float
    memory: int
    disk: int

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.preparing + self.learning + self.publishing + self.measuring


def predict(work: Work, rates: Sequence[Rates], pace: Pace, *, compiled: bool = False) -> Prediction:
    """What `work` will take with kernels of these `rates`; `compiled` where the process has made the first calls."""
    step, judgement = step_seconds(work, rates, pace), judgement_seconds(work, rates, pace)
    first = 0.0 if compiled else sum(r.first for r in rates)
    learning = first + work.steps * step + judgements(work.steps, work.judge_every) * judgement
    return Prediction(
        preparing=preparing_seconds(work, pace),
        learning=learning,
        publishing=solving_seconds(work, rates, pace, work.training) if work.solves_again else 0.0,
        measuring=measuring_seconds(work, rates, pace),
        step=step,
        judgement=judgement,
        memory=memory(work, pace),
        disk=disk(work, learning),
    )


def judgements(steps: int, every: int) -> int:
    """How often checkpoints are judged: every so many steps, and at the end."""
    return -(-steps // every)


# --- seconds


def _step_weight(n: int, width: int, solved: bool, pairs: bool) -> float:
    # K_ss in float64, its pullback in float32, and one or two Cholesky factors
    return n * n if pairs else n * n * (8.0 * width + 100) + (1.4 if solved else 0.7) * n**3


def _tile_weight(n: int, rows: int, width: int, solved: bool, pairs: bool) -> float:
    # K of the tile and its pullback in float32; the normal equations in float64
    return n * rows if pairs else n * rows * (4.0 * width + 100 + (4.0 * n if solved else 0))


def step_seconds(work: Work, rates: Sequence[Rates], pace: Pace) -> float:
    """A step: one kernel of the family, drawn at random."""
    tiles = -(-work.batch // work.rows)
    each = [_step(work, r) + tiles * _tile(work, r) for r in rates]
    points = work.batch * (pace.augmented if work.augmented else 0.0)
    sampled = work.training * pace.sampled if work.batch < work.training else 0.0
    copied = work.batch * work.width * work.itemsize if work.batch < work.training or work.augmented else 0
    return sum(each) / len(each) + points + sampled + (copied * pace.touched if copied > FRESH else 0.0)


def _step(work: Work, r: Rates) -> float:
    wanted = _step_weight(work.support, work.width, work.solved, r.pairs)
    return r.step * wanted / _step_weight(r.support, work.width, work.solved, r.pairs)


def _tile(work: Work, r: Rates) -> float:
    wanted = _tile_weight(work.support, work.rows, work.width, work.solved, r.pairs)
    return r.tile * wanted / _tile_weight(r.support, r.rows, work.width, work.solved, r.pairs)


def _system(work: Work, r: Rates, n: int) -> float:
    return r.system * _system_weight(n, work.width, r.pairs) / _system_weight(r.support, work.width, r.pairs)


def _system_weight(n: int, width: int, pairs: bool) -> float:
    return n * n if pairs else n * n * (4.0 * width + 100) + 0.7 * n**3


def _forward(r: Rates, n: int, targets: int) -> float:
    """K between `n` points and so many targets."""
    return r.forward * (n * targets) / (r.support * r.rows)


def judgement_seconds(work: Work, rates: Sequence[Rates], pace: Pace) -> float:
    """One judgement: labels solved on the judging set where labels are, predictions of it where not."""
    seconds = (
        solving_seconds(work, rates, pace, work.judging)
        if work.solved
        else _predicting(work, rates, work.size, work.judging)
    )
    return seconds + _predicting(work, rates, work.size, work.validation)


def _predicting(work: Work, rates: Sequence[Rates], n: int, targets: int) -> float:
    return sum(_system(work, r, n) + _forward(r, n, targets) for r in rates) if targets else 0.0


def solving_seconds(work: Work, rates: Sequence[Rates], pace: Pace, targets: int) -> float:
    """Label Solve on so many targets: K_ts, its QR folded tile by tile, and one decomposition."""
    n = work.size
    kernels = sum(_system(work, r, n) + _forward(r, n, targets) for r in rates)
    unit = pace.fold / _folds(pace.rows, pace.order, 1)
    folds = _folds(targets, n + work.classes, work.tiles(targets))
    return kernels + len(rates) * (folds * unit + 2.0 * n**3 * unit) + pace.svd * (n / pace.order) ** 3


def _folds(rows: float, columns: float, tiles: int) -> float:
    """Operations of a QR without Q of so many rows: those of every tile folded, then the triangles of two tiles.

    A tile with fewer rows than columns has no triangle of its own, and goes into that of all.
    """
    triangles = tiles - 1 if rows > tiles * columns else 0
    return 2.0 * columns**2 * (rows + triangles * columns / 3)


def preparing_seconds(work: Work, pace: Pace) -> float:
    """Fitting the preprocessing and applying it to the training and validation points."""
    points = work.training + work.validation
    fresh = points * work.width * (work.itemsize + 3 * work.raw_itemsize)  # the result, and copies of what it is from
    seconds = points * pace.prepared + fresh * pace.touched
    return seconds + (pace.eigen * work.width**3 if work.whitened else 0.0)


def measuring_seconds(work: Work, rates: Sequence[Rates], pace: Pace) -> float:
    """Scoring, every comparison, and the pictures."""
    scoring = _predicting(work, rates, work.size, work.test) + work.test * pace.prepared
    fitting = _predicting(work, rates, work.size, work.training)
    seconds = scoring + fitting + _predicting(work, rates, work.size, work.validation) + pace.drawn
    if work.draws != 0:
        solved = solving_seconds(work, rates, pace, work.training)
        scored = _predicting(work, rates, work.size, work.test)
        seconds += _draws(work, scoring) * scored
        seconds += _draws(work, scoring + fitting) * (solved + scored)
        seconds += 3 * work.test * pace.prepared + scored + _k_means(work, pace)
    if work.full:
        seconds += _predicting(work, rates, work.training, work.test)
    return seconds


def _draws(work: Work, seconds: float) -> int:
    return work.draws or max(3, min(work.most_draws, math.floor(work.patience / max(seconds, 1e-9))))


def _k_means(work: Work, pace: Pace) -> float:
    centroids = -(-work.size // work.classes)
    return work.training * (pace.passes + centroids * (pace.means + pace.seeding))


# --- bytes


def memory(work: Work, pace: Pace) -> int:
    """The most that is held at once: what stays, and the largest of what comes and goes."""
    return pace.resident + _data(work) + max(_preparing(work), _stepping(work), _measuring(work)) + _images(work)


def _data(work: Work) -> int:
    """The raw points, and the training and validation points preprocessed."""
    raw = (work.original + work.test) * (work.width * work.raw_itemsize + 8)
    kept = (work.training + work.validation) * (work.width + work.classes) * work.itemsize
    return raw + kept + (work.training * work.width * work.raw_itemsize if work.augmented else 0)


def _preparing(work: Work) -> int:
    square = 8 * work.width**2 if work.whitened else 0
    return work.training * work.width * work.raw_itemsize + 5 * square


def _state(work: Work) -> int:
    """Bytes of a support set with its labels."""
    return work.size * (work.width + work.classes) * work.itemsize


def _dense(work: Work) -> int:
    return 8 * work.size**2


def _stepping(work: Work) -> int:
    n, rows = work.support, work.rows
    copies = 4 if work.augmented else 1 if work.batch < work.training else 0
    judging = work.judging * work.width * work.itemsize if work.judging < work.training else 0
    batch = copies * work.batch * work.width * work.itemsize
    kept = 2 * n * work.batch * work.itemsize
    tiles = max(kept if work.solved and kept <= DEFAULT_MEMORY else 0, 6 * n * rows * work.itemsize)
    square = (9 if work.solved else 4) * 8 * n * n
    points = 3 * 8 * n * work.width
    planes = min(work.memory_of_planes, n * work.batch * work.planes)
    judged = _solving(work) if work.solved else 0
    return judging + (4 + BEST) * _state(work) + max(batch + tiles + square + points + planes, judged)


def _solving(work: Work) -> int:
    columns = work.size + work.classes
    return 3 * 8 * (work.rows_of(work.training) + columns) * columns + 6 * _dense(work)


def _measuring(work: Work) -> int:
    test = work.test * (work.width + 2 * work.classes) * work.itemsize
    rows = work.rows_of(work.training)
    tile = 4 * work.size * rows * work.itemsize
    largest = max(tile, _solving(work) if work.solved or work.draws != 0 else 0)
    if work.draws != 0:
        largest = max(largest, 3 * work.training // work.classes * work.width * 8)
    if work.full:
        largest = max(largest, 5 * 8 * work.training**2)
    return test + largest + (2 + BEST) * _state(work)


def _images(work: Work) -> int:
    """What a kernel remembers of the images it has seen."""
    if not work.remembered:
        return 0
    seen = work.training + work.test + (work.batch * work.steps if work.augmented else 0)
    return min(work.memory_of_images, seen * work.remembered)


def disk(work: Work, learning: float) -> int:
    """The checkpoints that `learning` seconds leave time for, the distilled set, the history and the pictures."""
    best = min(BEST, judgements(work.steps, work.judge_every))
    checkpoint = (3 + best) * _state(work) + work.size * work.width
    checkpoints = min(KEPT_CHECKPOINTS, math.floor(learning / max(work.save_every, 1e-3)))
    whitening = work.itemsize * work.width * (work.width + 1) // 2 if work.whitened else 0
    return checkpoints * checkpoint + _state(work) + whitening + HISTORY_LINE * work.steps + PICTURES


# --- choices


def steps_within(
    budget: float, work: Work, rates: Sequence[Rates], pace: Pace, every: Callable[[int], int], *, compiled: bool
) -> int:
    """The most steps whose learning fills the budget but for a tenth; 1 where not even that many fit.

    `every(steps)` is how often so many steps are judged.
    """

    def fits(steps: int) -> bool:
        wanted = dataclasses.replace(work, steps=steps, judge_every=every(steps))
        return predict(wanted, rates, pace, compiled=compiled).learning <= BUDGET_SHARE * budget

    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def remedy(work: Work, pace: Pace, limit: int) -> str:
    """What to ask for so that a run which does not fit into `limit` bytes does."""
    if work.full and memory(dataclasses.replace(work, full=False), pace) <= limit:
        return "use --draws 0, which compares with nothing"
    for option, name, least in (
        ("batch", "--batch", 1),
        ("size", "--size", work.classes),
        ("training", "--targets", 1),
    ):
        most = _most(option, work, pace, limit, least)
        if most is not None:
            return f"use {name} {most:,}".replace(",", "") + " or less"
    return "use a smaller data set, or a machine with more memory"


def _most(option: str, work: Work, pace: Pace, limit: int, least: int) -> int | None:
    """The largest value of `option`, to two digits, with which the run fits; None where none does."""
    low, high = least, getattr(work, option)

    def fits(value: int) -> bool:
        return memory(_with(work, option, value), pace) <= limit

    if high <= low or not fits(low):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    digit = 10 ** max(0, len(str(low)) - 2)
    return max(least, low // digit * digit)


def _with(work: Work, option: str, value: int) -> Work:
    if option == "batch":
        return dataclasses.replace(work, batch=value)
    if option == "size":
        return dataclasses.replace(work, size=value, support=min(work.support, value))
    return dataclasses.replace(work, training=value, batch=min(work.batch, value), judging=min(work.judging, value))
