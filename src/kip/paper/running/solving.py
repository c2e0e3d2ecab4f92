"""What is computed in closed form: Label Solve on natural images, and KRR on the whole training set."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kip import conjugate_gradients
from kip.files import write_atomic
from kip.gram_cache import CachedGram, Store
from kip.kernels import Kernel, kernel
from kip.krr import KernelRidge
from kip.label_solver import solve_labels
from kip.paper.running.base import Context, Result, kept, most_cores
from kip.paper.running.data import Ready, ready
from kip.paper.works import Solved, Whole, name
from kip.sampling import Stream
from kip.sets import LabelledSet

COEFFICIENTS = "coefficients.bin"
SAVE_EVERY = 60.0


def whole(work: Whole, context: Context) -> Result:
    """KRR on the whole training set; the record says how far the conjugate gradients went."""
    folder = context.folder / name(work)
    outcome = kept(folder, lambda: _whole(work, folder, context))
    (folder / COEFFICIENTS).unlink(missing_ok=True)
    reached = outcome["details"]
    deviations: tuple[str, ...] = ()
    if reached.get("residual", 0.0) > reached.get("tolerance", 0.0):
        deviations = (f"solved to a residual of {reached['residual']:.1e} instead of {reached['tolerance']:.0e}",)
    return Result((outcome["accuracy"],), outcome["seconds"], deviations, reached, most_cores([outcome]))


def _whole(work: Whole, folder: Path, context: Context) -> dict[str, Any]:
    data, spec = ready(context.load(work.data)), kernel(work.kernel)
    saves = _Coefficients(folder / COEFFICIENTS, data.train.y.shape)
    begun, before, start = saves.read(), saves.seconds, time.monotonic()

    def progress(iteration: int, residual: float) -> None:
        context.check()
        if iteration % 20 == 0:
            context.say(f"  iteration {iteration}: residual {residual:.1e}")

    model = KernelRidge([spec], data.train)
    reached: dict[str, Any] = {"solver": "Cholesky"}
    if len(data.train) > conjugate_gradients.DIRECT_LIMIT:
        fit = conjugate_gradients.fit(spec, data.train, progress=progress, start=begun, keep=saves)
        model = KernelRidge([spec], data.train, coefficients=[fit.alpha])
        reached = {
            "solver": "conjugate gradients",
            "residual": fit.residual,
            "tolerance": fit.tolerance,
            "iterations": fit.iterations,
        }
    return {
        "accuracy": model.accuracy(data.test.x, data.test_codes),
        "seconds": before + time.monotonic() - start,
        "details": reached,
    }


class _Coefficients:
    """Coefficients on disk, written every so often, with the seconds that they took."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        self.path, self.shape = path, shape
        self.seconds = 0.0
        self._start = self._last = time.monotonic()

    def read(self) -> np.ndarray | None:
        """What a killed fit left; None where there is nothing, or something else."""
        if not self.path.is_file() or self.path.stat().st_size != 8 * (1 + math.prod(self.shape)):
            return None
        values = np.fromfile(self.path)
        self.seconds = float(values[0])
        return values[1:].reshape(self.shape)

    def __call__(self, alpha: np.ndarray) -> None:
        now = time.monotonic()
        if now - self._last >= SAVE_EVERY:
            spent = np.array([self.seconds + now - self._start])
            write_atomic(self.path, spent.tobytes(), np.ascontiguousarray(alpha).tobytes())
            self._last = now


def solved(work: Solved, context: Context) -> Result:
    """Label Solve, one sample per seed; with `tested`, predicted by that kernel."""

    @functools.cache
    def seen(preprocess: str) -> Ready:
        return ready(context.load(work.data), preprocess)

    outcomes = []
    for seed in work.seeds:
        context.check()
        folder = context.folder / name(work) / f"s{seed}"
        outcomes.append(kept(folder, functools.partial(_solved, work, seed, seen, context)))
        context.say(f"  sample {seed}: {100 * outcomes[-1]['accuracy']:.2f} %, {outcomes[-1]['seconds']:.0f} s")
    accuracies = tuple(outcome["accuracy"] for outcome in outcomes)
    return Result(accuracies, sum(outcome["seconds"] for outcome in outcomes), cores=most_cores(outcomes))


def _solved(work: Solved, seed: int, seen: Callable[[str], Ready], context: Context) -> dict[str, Any]:
    data, data_tested = seen(work.preprocess), seen(work.tested_preprocess or work.preprocess)
    start = time.monotonic()
    targets, shape = data.train, data.train.x.shape[1:]
    own = _watched(work.kernel, shape, context)
    tested = own if work.tested is None else _watched(work.tested, shape, context)
    if work.targets is not None and work.targets < len(targets):
        targets = targets.take(np.sort(data.draw(work.targets, seed=seed, stream=Stream.TARGET)))
    rows = data.draw(work.size, seed=seed)
    support = data.train.take(rows)
    y = support.y if work.natural else solve_labels([own], support.x, targets).y
    model = KernelRidge([tested], LabelledSet(data_tested.train.x[rows], y))
    reached = model.accuracy(data_tested.test.x, data.test_codes)
    return {"accuracy": reached, "seconds": time.monotonic() - start}


def _watched(spec: str, shape: tuple[int, ...], context: Context) -> Kernel:
    """The kernel; an expensive one caches its Gram matrices, tile by tile, so that a killed cell continues."""
    found = kernel(spec)
    if not found.expensive(shape):
        return found
    store = Store(context.folder / "grams", say=context.say)
    return CachedGram(found, store, progress=_reporter(spec, context))


def _reporter(spec: str, context: Context) -> Callable[[int, bool], None]:
    start, pairs, said = time.monotonic(), 0, 0.0

    def progress(count: int, fresh: bool) -> None:
        nonlocal pairs, said
        context.check()
        if not fresh:
            return
        pairs += count
        spent = time.monotonic() - start
        if spent - said > 60:
            said = spent
            context.say(f"  {spec}: {pairs:,} pairs, {1000 * spent / pairs:.2f} ms per pair")

    return progress
