"""Preprocessing fitted once on training data: channel-wise standardisation, regularised ZCA, or nothing.

Raw points are images (n, h, w) or (n, h, w, ch), or vectors (n, d). Raw uint8 counts from 0 to 255 and is divided by
255 first; what was fitted on uint8 divides by 255 whatever the dtype of what it is applied to, so that equal numbers
give equal results (an augmented batch is float but still counts to 255).
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np
from scipy import linalg

from kip.data.checks import check_finite, nearest, point_shape
from kip.data.scale import Seen
from kip.sets import aligned_empty, same_array
from kip.threads import on_all_cores

STRENGTH = 1e-5
"""What ZCA adds to the eigenvalues of the covariance by default (Shankar et al.)."""

FLAT = 1e-6
"""An image whose deviation from its mean has less than this share of its norm is taken as constant: what is left of it
is rounding, which ZCA would blow up to full size."""

LARGEST_ZCA = 12_288
"""Coordinates above which ZCA, whose cost is their cube, is refused (64×64×3)."""

THREADED_FROM = 2**20
"""Numbers from which on threads are worth their start."""

COMPILED_FROM = 2**15
"""Numbers in a tile of floats from which on a compiled loop is worth its import: augmented batches come every step."""

NAMES = ("standard", "zca", "zca-scaled", "none")

_TILE = 64  # rows worked on at once: they stay in cache from one operation to the next


def as_images(x: Any, dtype: Any = None) -> np.ndarray:
    """Raw points as floats: (n, h, w) gains a channel axis, uint8 is divided by 255, vectors keep their shape.

    The result is `dtype`; left out, float64 stays float64 and everything else becomes float32.
    """
    x = np.asarray(x)
    shape = (len(x), *point_shape(x))
    points = np.asarray(x, float_dtype(x) if dtype is None else dtype).reshape(shape)
    return points / points.dtype.type(255) if x.dtype == np.uint8 else points


def float_dtype(x: np.ndarray) -> np.dtype[Any]:
    """float64 for float64 data, float32 for all other."""
    return np.dtype(np.float64 if x.dtype == np.float64 else np.float32)


class Preprocess(abc.ABC):
    """A map of raw points, row by row, into the space where kernels and masks live, and back.

    `shape` is that of one point, (h, w, ch) or (d,); `dtype` that of the result; `scale` is what raw values are divided
    by. `seen` are the values of the raw training images; None for vectors, and for sets saved before it was recorded.
    """

    name: str
    threaded = True
    """Whether rows gain by threads: not where BLAS has its own."""
    scale_free = False
    """Whether raw points multiplied by a constant give the same result."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any = np.float32, scale: float = 1.0, seen: Seen | None = None
    ) -> None:
        self.shape = tuple(int(n) for n in shape)
        self.dtype = np.dtype(dtype)
        self.scale = float(scale)
        self.seen = seen

    def apply(self, raw: Any) -> np.ndarray:
        """Preprocess raw points, giving shape (n, *shape); each row depends on that row of `raw` alone.

        To the bit where it works coordinate by coordinate; under ZCA to rounding, since BLAS rounds a row by where it
        stands in a matrix (on some processors, in every other group of six).
        """
        raw = self.check_shape(raw)
        out = aligned_empty((len(raw), int(np.prod(self.shape))), self.dtype)

        def work(rows: slice) -> None:
            self._apply(raw[rows].reshape(rows.stop - rows.start, -1), out[rows])

        if self.threaded and out.size > THREADED_FROM:
            list(on_all_cores(work, _slices(len(raw))))
        else:
            list(map(work, _slices(len(raw))))
        return out.reshape(len(raw), *self.shape)

    def check_shape(self, raw: Any) -> np.ndarray:
        """Raw points as an array; a ValueError where one of them has not the shape of the training points."""
        raw = np.asarray(raw)
        shape = point_shape(raw, "raw")
        if shape != self.shape:
            raise ValueError(
                f"`raw` must hold points of shape {self.shape}, as in the training data; got {shape}. Reshape it."
            )
        return raw

    def invert(self, x: Any) -> np.ndarray:
        """Preprocessed points as floats in the scale of raw points: 0…255 where these were uint8, and not clipped."""
        x = np.asarray(x)
        if x.shape[1:] != self.shape:
            raise ValueError(
                f"`x` must hold points of shape {self.shape}; got {x.shape[1:]}. Pass preprocessed points."
            )
        rows = self._invert(x.reshape(len(x), -1).astype(np.float64))
        return (rows * self.scale).astype(self.dtype).reshape(x.shape)

    def config(self) -> dict[str, Any]:
        """Give what `restore` needs beside `arrays`, as JSON values."""
        values = {} if self.seen is None else {"seen": self.seen.config()}
        return {"name": self.name, "shape": list(self.shape), "dtype": self.dtype.name, "scale": self.scale, **values}

    def arrays(self) -> dict[str, np.ndarray]:
        """Give the fitted arrays, by name."""
        return {}

    @abc.abstractmethod
    def _apply(self, tile: np.ndarray, out: np.ndarray) -> None:
        """Map raw rows (n, d) of any dtype, computing in float64, into `out`."""

    @abc.abstractmethod
    def _invert(self, rows: np.ndarray) -> np.ndarray:
        """Map float64 rows (n, d) back to raw values divided by `scale`."""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Preprocess):
            return NotImplemented
        mine, theirs = self.arrays(), other.arrays()
        return self.config() == other.config() and all(same_array(mine[name], theirs[name]) for name in mine)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype.name})"


@final
class Identity(Preprocess):
    """Points as they are, in the scale of `as_images`."""

    name = "none"

    def _apply(self, tile: np.ndarray, out: np.ndarray) -> None:
        np.divide(tile, self.scale, out=out, dtype=np.float64, casting="same_kind")

    def _invert(self, rows: np.ndarray) -> np.ndarray:
        return rows


@final
class Standardise(Preprocess):
    """(x − mean)/std with one mean and deviation per channel of images, or per column of vectors.

    Constant channels and columns have a deviation of 1.
    """

    name = "standard"

    def __init__(self, mean: np.ndarray, std: np.ndarray, shape: tuple[int, ...], **options: Any) -> None:
        super().__init__(shape, **options)
        self.mean = np.asarray(mean, np.float64)
        self.std = np.asarray(std, np.float64)
        repeats = int(np.prod(self.shape)) // self.mean.size
        self._mean_row = np.tile(self.mean, repeats)  # whole rows: NumPy is slow at broadcasting over 3 channels
        self._std_row = np.tile(self.std, repeats)
        self._middle = self._mean_row * self.scale
        self._factor = 1 / (self._std_row * self.scale)

    @classmethod
    def fit(cls, x_train: np.ndarray, **options: Any) -> Standardise:
        """Mean and deviation of `x_train` in float64, in two passes."""
        shape, scale = options["shape"], options["scale"]
        groups = shape[-1]
        count = x_train.size // groups
        mean = sum(tile.reshape(-1, groups).sum(axis=0) for tile in _tiles(x_train)) / count
        square = sum(np.square(tile.reshape(-1, groups) - mean).sum(axis=0) for tile in _tiles(x_train)) / count
        std = np.sqrt(square) / scale
        mean = mean / scale
        std[std <= 1e-12 * np.abs(mean)] = 1.0  # nothing but rounding
        return cls(mean, std, **options)

    def arrays(self) -> dict[str, np.ndarray]:
        """Give the means and deviations, one per channel or column."""
        return {"mean": self.mean, "std": self.std}

    def _apply(self, tile: np.ndarray, out: np.ndarray) -> None:
        if tile.dtype == np.float32 and tile.size >= COMPILED_FROM:
            from kip.data.loops import standardise

            standardise(tile, self._middle, self._factor, out)
        else:
            centred = np.subtract(tile, self._middle, dtype=np.float64)
            np.multiply(centred, self._factor, out=out, casting="same_kind")

    def _invert(self, rows: np.ndarray) -> np.ndarray:
        return rows * self._std_row + self._mean_row


@final
class ZCA(Preprocess):
    """Regularised ZCA after Shankar et al.: each image loses its mean and norm, then is whitened.

    The whitening is W = U (Λ + s)^{-1/2} Uᵀ, where C = XᵀX/n = U Λ Uᵀ is the uncentred covariance of the normalised
    training images and s is `strength`, or strength·tr(C)/d with `scaled`. A constant image maps to 0. `invert` undoes
    W: it gives a raw image up to its mean and norm. `apply(invert(x))` is x for preprocessed images alone; of other
    points it takes away the mean and norm.
    """

    def __init__(
        self, whitening: np.ndarray, shape: tuple[int, ...], *, strength: float, scaled: bool, **options: Any
    ) -> None:
        super().__init__(shape, **options)
        self.strength, self.scaled = float(strength), bool(scaled)
        self._packed = np.ascontiguousarray(whitening, self.dtype)
        self._whitening = _unpack(self._packed, int(np.prod(self.shape)))
        self._factor: tuple[np.ndarray, bool] | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """Which of the two variants it is, as `fit` takes it."""
        return "zca-scaled" if self.scaled else "zca"

    threaded = False
    scale_free = True

    @classmethod
    def fit(cls, x_train: np.ndarray, *, strength: float, scaled: bool, **options: Any) -> ZCA:
        """Whitening of `x_train`: the covariance summed tile by tile and factored in float64."""
        d = int(np.prod(options["shape"]))
        if d > LARGEST_ZCA:
            raise ValueError(
                f"`preprocess` 'zca' takes {LARGEST_ZCA:,} coordinates at most; got {d:,}. Use 'standard' or resize."
            )
        covariance = np.zeros((d, d))
        for tile in _tiles(x_train, 1024):
            rows = _normalise(tile)
            covariance += rows.T @ rows  # BLAS sees the symmetry and does half the work
        covariance /= len(x_train)
        eigenvalues, u = linalg.eigh(covariance, overwrite_a=True, check_finite=False, driver="evd")
        eigenvalues = np.maximum(eigenvalues, 0.0)
        added = strength * eigenvalues.sum() / d if scaled else strength
        if not added > 0:
            raise ValueError("`x_train` holds constant images only: ZCA has nothing to scale by. Use 'standard'.")
        whitening = (u / np.sqrt(eigenvalues + added)) @ u.T
        packed = whitening[np.triu_indices(d)]
        return cls(packed, strength=strength, scaled=scaled, **options)

    def config(self) -> dict[str, Any]:
        """Give what `restore` needs beside `arrays`, the strength included."""
        return {**super().config(), "strength": self.strength}

    def arrays(self) -> dict[str, np.ndarray]:
        """Give W's upper triangle, row by row: W is symmetric, and half is kept."""
        return {"whitening": self._packed}

    def _apply(self, tile: np.ndarray, out: np.ndarray) -> None:
        np.matmul(_normalise(tile.astype(np.float64)).astype(self.dtype), self._whitening, out=out)

    def _invert(self, rows: np.ndarray) -> np.ndarray:
        if self._factor is None:  # W is positive definite with condition (λ_max/s)^½, a few hundred
            self._factor = linalg.cho_factor(self._whitening.astype(np.float64), overwrite_a=True)
        return linalg.cho_solve(self._factor, rows.T).T


def fit(name: str, x_train: Any, *, dtype: Any = None, strength: float | None = None) -> Preprocess:
    """Fit the preprocessing called `name` on raw training points.

    `name` is "standard", "zca", "zca-scaled" or "none"; "zca:0.1" sets the `strength` of ZCA. The result computes
    `dtype`, float32 by default and float64 where `x_train` is float64.
    """
    kind, strength = parse(name, strength)
    x_train = np.asarray(x_train)
    shape = point_shape(x_train, "x_train")
    if len(x_train) == 0:
        raise ValueError("`x_train` must hold at least one point; got none. Pass the training data.")
    check_finite(x_train, "x_train")
    dtype = np.dtype(float_dtype(x_train) if dtype is None else dtype)
    if dtype not in (np.float32, np.float64):
        raise ValueError(f"`dtype` must be float32 or float64; got {dtype}. Leave it out for float32.")
    scale = 255.0 if x_train.dtype == np.uint8 else 1.0
    options: dict[str, Any] = {"shape": shape, "dtype": dtype, "scale": scale, "seen": Seen.of(x_train)}
    if kind == "none":
        return Identity(**options)
    if kind == "standard":
        return Standardise.fit(x_train, **options)
    return ZCA.fit(x_train, strength=strength, scaled=kind == "zca-scaled", **options)


def restore(config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Preprocess:
    """Rebuild the preprocessing that gave this `config()` and these `arrays()`, exact to the bit."""
    try:
        kind = config["name"]
        shape = tuple(int(n) for n in config["shape"])
        options: dict[str, Any] = {"shape": shape, "dtype": np.dtype(config["dtype"]), "scale": float(config["scale"])}
        options["seen"] = Seen.restore(config["seen"]) if "seen" in config else None
        known = kind in NAMES and len(shape) in (1, 3) and min(shape) > 0
        if not (known and options["dtype"].name in ("float32", "float64") and 0 < options["scale"] < np.inf):
            raise ValueError
        if kind == "none":
            return Identity(**options)
        if kind == "standard":
            mean, std = (_stored(arrays, name, shape[-1]) for name in ("mean", "std"))
            if not (std > 0).all():
                raise ValueError
            return Standardise(mean, std, **options)
        d = int(np.prod(shape))
        whitening = _stored(arrays, "whitening", d * (d + 1) // 2)
        return ZCA(whitening, strength=float(config["strength"]), scaled=kind == "zca-scaled", **options)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(
            f"`config` and `arrays` must be those of a stored preprocessing; got {config!s:.200}. Save it again."
        ) from None


def _stored(arrays: Mapping[str, np.ndarray], name: str, size: int) -> np.ndarray:
    array = np.asarray(arrays[name])
    if array.shape != (size,) or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ValueError(name)
    return array


def parse(name: str, strength: float | None = None) -> tuple[str, float]:
    """The kind and the strength that `name` says, such as "zca:0.1"; a ValueError where it says neither."""
    kind, colon, text = str(name).strip().lower().partition(":")
    if kind not in NAMES:
        raise ValueError(f"`preprocess` {name!r} is not known. {nearest(kind, NAMES)}")
    if colon:
        try:
            strength = float(text)
        except ValueError:
            strength = float("nan")
    if strength is None:
        return kind, STRENGTH
    if not kind.startswith("zca"):
        raise ValueError(f"`preprocess` {kind!r} has no strength; got {name!r}. Leave the strength out.")
    if not 0 < strength < np.inf:
        raise ValueError(f"the strength of ZCA must be a positive number; got {text or strength}. Use 'zca:1e-5'.")
    return kind, float(strength)


def _slices(count: int, size: int = _TILE) -> Iterator[slice]:
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def _tiles(raw: np.ndarray, size: int = _TILE) -> Iterator[np.ndarray]:
    """Rows of `raw` as fresh float64 tiles (size, d), so that memory stays bounded."""
    for rows in _slices(len(raw), size):
        yield np.array(raw[rows], np.float64).reshape(rows.stop - rows.start, -1)


def _normalise(rows: np.ndarray) -> np.ndarray:
    """Each row less its mean, divided by its norm; a constant row becomes 0. Overwrites `rows`."""
    size = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    rows -= rows.mean(axis=1, keepdims=True)
    norm = np.sqrt(np.square(rows).sum(axis=1, keepdims=True))
    flat = norm <= FLAT * size
    rows /= np.where(flat, 1.0, norm)
    rows *= ~flat
    return rows


def _unpack(packed: np.ndarray, d: int) -> np.ndarray:
    """Rebuild the symmetric matrix whose upper triangle, row by row, is `packed`."""
    full = np.zeros((d, d), packed.dtype)
    full[np.triu_indices(d)] = packed
    return full + np.triu(full, 1).T
