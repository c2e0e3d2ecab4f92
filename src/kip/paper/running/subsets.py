"""Random subsets: all kernels and sizes of a draw at once, since they share their inner products.

The subsets of a draw are nested: the first n points of one order. Each cell still sees 20 independent subsets; only
cells of one column share draws. K_ss is in float64 and K_ts in float32, unless α is so large that the rounding of K_ts
would show in the prediction, as it is for the linear kernel: then K_ts is computed anew in float64 (`KernelRidge`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kip.data import Dataset
from kip.data.preprocess import fit
from kip.kernels import Kernel, from_products, kernel
from kip.krr import KernelRidge, Ridge, accuracy, cholesky, cholesky_solve
from kip.paper.running.base import Context, Result, kept, most_cores
from kip.paper.works import Subset, name
from kip.sampling import Stream, generator
from kip.sets import LabelledSet, one_hot

ROWS = 256
"""Rows of inner products that are turned into kernel values at a time."""


def run(works: Sequence[Subset], context: Context) -> dict[Subset, Result]:
    """Measure works of one data set and one way of drawing together."""
    found: dict[Subset, list[dict[str, Any]]] = {work: [] for work in works}
    pool: _Pool | None = None
    for draw in sorted({seed for work in works for seed in work.seeds}):
        context.check()
        wanted = [work for work in works if draw in work.seeds]
        folders = {work: context.folder / name(work) / f"draw-{draw}" for work in wanted}
        missing = [work for work in wanted if not (folders[work] / "outcome.json").is_file()]
        if missing:
            pool = pool or _Pool(context.load(works[0].data), max(work.size for work in works))
            start = time.monotonic()
            measured = dict(pool.measure(missing, draw))
            for work, outcome in measured.items():
                kept(folders[work], lambda outcome=outcome: outcome)  # type: ignore[misc]
            spent = time.monotonic() - start
            context.say(f"{works[0].data}: draw {draw}, {len(missing)} cells in {spent:.0f} s")
        for work in wanted:
            found[work].append(kept(folders[work], dict))
    return {
        work: Result(
            tuple(each["accuracy"] for each in outcomes),
            sum(each["seconds"] for each in outcomes),
            cores=most_cores(outcomes),
        )
        for work, outcomes in found.items()
    }


def order(codes: np.ndarray, size: int, *, balanced: bool, draw: int) -> np.ndarray:
    """Rows whose first n are a random subset for every n; class-balanced at every multiple of the classes."""
    rng = generator(0, Stream.BASELINE, draw)
    if not balanced:
        return rng.permutation(len(codes))[:size]
    members = [rng.permutation(np.flatnonzero(codes == c)) for c in np.unique(codes)]
    deep = -(-size // len(members))
    short = min(map(len, members))
    if deep > short:
        raise ValueError(
            f"`size` must be at most {short * len(members)} for balanced subsets of these data; got {size}"
        )
    return np.stack([rows[:deep] for rows in members], axis=1).reshape(-1)[:size]


class _Pool:
    """A data set, preprocessed in float64 and flattened, and room for the matrices of a draw.

    They are gigabytes; taken anew for each kernel and size, finding room would take as long as computing.
    """

    def __init__(self, dataset: Dataset, most: int) -> None:
        self.fitted, self.dataset = fit("standard", dataset.x_train, dtype=np.dtype(np.float64)), dataset
        self.x_test = _flat(self.fitted.apply(dataset.x_test))
        self.rooms = _Rooms(most, len(self.x_test))

    def measure(self, works: Sequence[Subset], draw: int) -> Iterator[tuple[Subset, dict[str, Any]]]:
        """The accuracy of each work at one draw, with the seconds it took beside what is shared."""
        most = max(work.size for work in works)
        rows = order(self.dataset.y_train, most, balanced=works[0].balanced, draw=draw)
        start = time.monotonic()
        drawn = _Draw(
            _flat(self.fitted.apply(self.dataset.x_train[rows])),
            one_hot(self.dataset.y_train[rows], len(self.dataset.classes), np.float64),
            self.x_test,
            self.rooms,
        )
        shared = (time.monotonic() - start) / len(works)
        for spec in dict.fromkeys(work.kernel for work in works):
            own = [work for work in works if work.kernel == spec]
            start = time.monotonic()
            scores = drawn.model(kernel(spec))
            prepared = (time.monotonic() - start) / len(own)
            for work in own:
                start = time.monotonic()
                reached = accuracy(scores(work.size), self.dataset.y_test)
                yield work, {"accuracy": reached, "seconds": shared + prepared + time.monotonic() - start}


class _Rooms:
    """Memory for the largest draw, of which smaller ones take the beginning."""

    def __init__(self, support: int, tests: int) -> None:
        self._rooms = {
            name: np.empty(support * rows, dtype)
            for name, rows, dtype in (
                ("q_ss", support, np.float64),
                ("k_ss", support, np.float64),
                ("a", support, np.float64),
                ("q_ts", tests, np.float32),
                ("k_ts", tests, np.float32),
            )
        }

    def __call__(self, name: str, rows: int, columns: int) -> np.ndarray:
        return self._rooms[name][: rows * columns].reshape(rows, columns)


class _Draw:
    """One order of points with the inner products that every kernel and every prefix share."""

    def __init__(self, x: np.ndarray, y: np.ndarray, x_test: np.ndarray, rooms: _Rooms) -> None:
        self.x, self.y, self.x_test, self.rooms = x, y, x_test, rooms
        n, self.d = x.shape
        self.narrow, narrow_test = x.astype(np.float32), x_test.astype(np.float32)
        self.q_ss = np.matmul(x, x.T, out=rooms("q_ss", n, n))
        self.q_ts = np.matmul(narrow_test, self.narrow.T, out=rooms("q_ts", len(narrow_test), n))
        self.n_s, self.n_t = np.diagonal(self.q_ss).copy(), np.vecdot(narrow_test, narrow_test)

    def model(self, spec: Kernel) -> Callable[[int], np.ndarray]:
        """Scores of the test points by the first n points, as a function of n."""
        k_ss, k_ts = self.rooms("k_ss", *self.q_ss.shape), self.rooms("k_ts", *self.q_ts.shape)
        _kernel_values(spec, self.q_ss, self.n_s, self.n_s, self.d, k_ss)
        _kernel_values(spec, self.q_ts, self.n_t, self.n_s.astype(np.float32), self.d, k_ts)

        def scores(n: int) -> np.ndarray:
            alpha, y = self._solve(k_ss[:n, :n], self.y[:n]), self.y[:n]
            if KernelRidge([spec], LabelledSet(self.narrow[:n], y), coefficients=[alpha]).needs_float64:
                return KernelRidge([spec], LabelledSet(self.x[:n], y), coefficients=[alpha]).predict(self.x_test)
            return k_ts[:, :n] @ alpha.astype(np.float32)

        return scores

    def _solve(self, k_ss: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(K_ss + ridge·I)⁻¹ y, in room that is there already."""
        a = self.rooms("a", *k_ss.shape)
        a[:] = k_ss
        a.flat[:: len(a) + 1] += Ridge().of(k_ss)
        return cholesky_solve(cholesky(a), y)


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1)


def _kernel_values(spec: Kernel, q: np.ndarray, n1: np.ndarray, n2: np.ndarray, d: int, out: np.ndarray) -> None:
    """Write K into `out`, from inner products and squared norms."""
    for start in range(0, len(q), ROWS):
        part = slice(start, start + ROWS)
        out[part] = from_products(spec, q[part], n1[part], n2, d)
