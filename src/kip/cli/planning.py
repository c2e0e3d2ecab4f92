"""A run predicted: rates measured or looked up, what was asked for put into numbers, what does not fit refused.

Rates are kept in the user's cache folder, and used as long as the machine and this package stay the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from kip import machine
from kip.api import Options, Outline, resolve
from kip.cli import calibrate, common, learning, measure
from kip.cli.calibrate import Points
from kip.cli.options import RunOptions
from kip.cli.progress import duration, say, working
from kip.data import Dataset
from kip.data.checks import megabytes
from kip.files import read_json, sha256, write_json
from kip.kernels import Kernel
from kip.kernels.inner import InnerProductKernel
from kip.plan import FULL_LIMIT, Pace, Prediction, Rates, Work, predict, remedy, steps_within

MOST_ENTRIES = 500
"""Measurements that are kept; the oldest go first."""

T = TypeVar("T", Rates, Pace)


@dataclass(frozen=True)
class Planned:
    """A prediction, the options it is of (with the steps that a budget chose), and what it was computed from."""

    prediction: Prediction
    options: Options
    work: Work
    rates: tuple[Rates, ...]
    pace: Pace

    def refuse(self, limit: int) -> None:
        """Refuse what does not fit into `limit` bytes, and name what would."""
        need = self.prediction.memory
        if need > limit:
            raise ValueError(
                f"this run needs about {megabytes(need)} of memory and there are {megabytes(limit)} here; "
                f"{remedy(self.work, self.pace, limit)}"
            )

    def beside(self, actual: dict[str, float], peak: int, folder: Path) -> dict[str, Any]:
        """Predicted beside actual, as `metrics.json` has them."""
        found = self.prediction
        seconds = {
            name: {"predicted": round(getattr(found, name), 3), "actual": round(actual[name], 3)} for name in PARTS
        }
        total = {"predicted": round(found.seconds, 3), "actual": round(sum(actual[name] for name in PARTS), 3)}
        return {
            "seconds": {**seconds, "total": total},
            "peak_memory": {"predicted": found.memory, "actual": peak},
            "disk": {"predicted": found.disk, "actual": _size(folder)},
        }


PARTS = ("preparing", "learning", "publishing", "measuring")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def plan(
    dataset: Dataset, options: Options, running: RunOptions, budget: float | None = None, *, again: bool = False
) -> Planned:
    """Predict a run; where it has a time budget and no steps of its own, choose them. `again` measures anew."""
    outline = common.outlined(dataset, options)
    kernels = outline.config.kernels
    work = work_of(dataset, outline, running)
    points = _points(dataset, outline)
    store = Store(again=again)
    with working("measuring this machine") if not store.knows(kernels, work, points) else contextlib.nullcontext():
        rates = tuple(store.rates(kernel, work, points) for kernel in kernels)
        pace = store.pace(work, points, dataset)
    store.write()
    if budget is not None and options.steps is None:

        def every(steps: int) -> int:
            found = resolve(dataclasses.replace(options, steps=steps), len(outline.rows), kernels, dataset.kind)
            assert found.judge_every is not None
            return found.judge_every

        steps = steps_within(budget, work, rates, pace, every, compiled=store.measured)
        options = dataclasses.replace(options, steps=steps)
        work = dataclasses.replace(work, steps=steps, judge_every=every(steps))
    return Planned(predict(work, rates, pace, compiled=store.measured), options, work, rates, pace)


def work_of(dataset: Dataset, outline: Outline, running: RunOptions) -> Work:
    """What was asked for, in numbers."""
    config, options, n = outline.config, outline.options, len(outline.rows)
    assert options.steps is not None
    assert options.judge_every is not None
    inner = all(isinstance(kernel, InnerProductKernel) for kernel in config.kernels)
    compared = running.draws != 0 and inner and n <= FULL_LIMIT
    return Work(
        training=n,
        test=len(dataset.x_test),
        validation=len(outline.held_out),
        width=int(np.prod(dataset.x_train.shape[1:])),
        classes=len(outline.classes),
        itemsize=np.dtype(options.dtype).itemsize,
        raw_itemsize=dataset.x_train.itemsize,
        original=len(dataset.x_train),
        size=options.size,
        support=options.support_batch or options.size,
        batch=options.batch or n,
        steps=options.steps,
        judge_every=options.judge_every,
        judging=config.judging(n),
        solved=config.mode(n) == "solved",
        augmented=(options.augment or "none") != "none",
        whitened=options.preprocess.startswith("zca"),
        draws=running.draws,
        most_draws=measure.DRAWS,
        patience=measure.PATIENCE,
        full=running.full or compared,
        save_every=learning.SAVE_EVERY,
        **_kept_by(config.kernels, dataset, options),
    )


def _points(dataset: Dataset, outline: Outline) -> Points:
    shape = dataset.x_train.shape[1:]
    options = outline.options
    return Points(
        shape=(*shape, 1) if len(shape) == 2 else shape,
        dtype=options.dtype,
        raw_dtype=str(dataset.x_train.dtype),
        preprocess=options.preprocess,
        augment=options.augment or "none",
    )


ENTRY = 400
"""Bytes of the key and the headers of one remembered image."""


def _kept_by(kernels: tuple[Kernel, ...], dataset: Dataset, options: Options) -> dict[str, int]:
    """Bytes that kernels keep of each image, and the largest of them of a pair within a step; with their limits."""
    if all(type(kernel).__module__ != "kip.kernels.planes_cpu" for kernel in kernels):
        return {}  # before the import below, which takes long
    from kip.kernels.lanes import geometry
    from kip.kernels.planes_cpu import KEPT_BYTES, MEMO_BYTES, NumbaPlanesKernel

    shape, itemsize = dataset.x_train.shape[1:], np.dtype(options.dtype).itemsize
    image = (*shape, 1) if len(shape) == 2 else shape if len(shape) == 3 else (1, 1, *shape)
    planes = [kernel for kernel in kernels if isinstance(kernel, NumbaPlanesKernel)]
    laid_out = [geometry(kernel.network, image, False) for kernel in planes]
    pairs = [int(g.sizes[1]) * (1 if kernel.nngp else 2) for g, kernel in zip(laid_out, planes, strict=True)]
    return {
        "remembered": sum((g.maps + 1) * itemsize + ENTRY for g in laid_out),
        "memory_of_images": MEMO_BYTES,
        "planes": max(pairs) * itemsize,
        "memory_of_planes": KEPT_BYTES,
    }


class Store:
    """The measurements of this machine: read once, measured where missing, written back."""

    def __init__(self, path: Path | None = None, *, again: bool = False) -> None:
        self.machine = machine.identity()
        self.path = path or calibration_file(self.machine)
        self.entries = self._read()
        self.again = again
        self.measured = False

    def _read(self) -> dict[str, Any]:
        try:
            stored = read_json(self.path)
            entries = stored["entries"]
            return entries if stored["machine"] == self.machine and isinstance(entries, dict) else {}
        except (OSError, ValueError, KeyError, TypeError):  # none yet, or none of ours: measure again
            return {}

    def write(self) -> None:
        """Keep what was measured; a folder that cannot be written costs only the next measurement."""
        if not self.measured:
            return
        kept = dict(list(self.entries.items())[-MOST_ENTRIES:])
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, {"machine": self.machine, "entries": kept})

    def knows(self, kernels: tuple[Kernel, ...], work: Work, points: Points) -> bool:
        """Whether nothing has to be measured."""
        names = [*(_rates_key(kernel, work, points) for kernel in kernels), _pace_key(work, points)]
        return not self.again and all(name in self.entries for name in names)

    def rates(self, kernel: Kernel, work: Work, points: Points) -> Rates:
        """The rates of a kernel on such points."""
        return self.known(
            Rates,
            _rates_key(kernel, work, points),
            lambda: calibrate.measure_rates(kernel, work, points, time.perf_counter),
        )

    def pace(self, work: Work, points: Points, dataset: Dataset) -> Pace:
        """What no kernel enters."""

        def measure_pace() -> Pace:
            gc.collect()
            held = sum(array.nbytes for array in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test))
            resident = max(machine.resident() - held, 0)
            return calibrate.measure_pace(work, points, time.perf_counter, _drawing(work.classes), resident)

        return self.known(Pace, _pace_key(work, points), measure_pace)

    def known(self, kind: type[T], key: str, measure_it: Callable[[], T]) -> T:
        """The entry called `key`, measured where there is none or it is not one of ours."""
        names = {field.name for field in dataclasses.fields(kind)}
        entry = self.entries.get(key)
        if (
            not self.again
            and isinstance(entry, dict)
            and set(entry) == names
            and all(map(_is_measured, entry.values()))
        ):
            return kind(**entry)
        found = measure_it()
        self.entries.pop(key, None)
        self.entries[key] = dataclasses.asdict(found)
        self.measured = True
        return found


def _is_measured(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def _rates_key(kernel: Kernel, work: Work, points: Points) -> str:
    mode = "solved" if work.solved else "learned"
    fresh = "augmented" if work.augmented else "same"
    of = f"{kernel.spec} {type(kernel).__name__} {points.shape} {points.dtype}"
    return f"{of} {mode} {fresh} {work.support} of {work.size} by {work.rows}"


def _pace_key(work: Work, points: Points) -> str:
    of = f"{points.shape} {points.dtype} {points.raw_dtype} {points.preprocess} {points.augment}"
    return f"{of} {work.size} {work.classes} {work.batch} of {work.training}"


def calibration_file(identity: Mapping[str, Any]) -> Path:
    """Where measurements of a machine are kept; with other cores it counts as another."""
    from platformdirs import user_cache_path

    name = sha256(json.dumps(identity, sort_keys=True).encode())[:12]
    return user_cache_path("kip", appauthor=False) / f"calibration-{name}.json"


def _drawing(classes: int) -> float:
    """Seconds that the pictures of a run take."""
    start = time.perf_counter()
    from kip.report import pictures

    rng = np.random.default_rng(0)
    y = rng.standard_normal((16, classes))
    pictures.labels(y, [str(c) for c in range(classes)])
    pictures.curve([{"step": n, "loss": 1.0, "judged": 1.0} for n in range(1, 40)], "calibration")
    return time.perf_counter() - start


def tell(planned: Planned) -> None:
    """A line of what a run will take, and a word where memory is scarce just now."""
    found = planned.prediction
    say(f"about {duration(found.seconds)}, {megabytes(found.memory)} of memory, {megabytes(found.disk)} of disk")
    free = machine.free_memory()
    if free is not None and found.memory - machine.resident() > free:
        say(f"  (only {megabytes(free)} of memory are free now: other programs hold the rest)")
