"""The distilled set: what comes out, stands on its own, and predicts from raw inputs.

A folder with `distilled.safetensors` (points, labels, mask, preprocessing), `distilled.json` (everything else, and the
hash of the former), a data card `README.md` and a gallery `images.png`. `distilled.json` is written last: a folder
without it holds no distilled set. Nothing is ever unpickled.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from kip import gallery
from kip._version import __version__
from kip.corruption import Certificate, Corruption, certify
from kip.data.preprocess import Preprocess, restore
from kip.files import read_json, sha256, write_atomic, write_json
from kip.kernels import Kernel, family
from kip.krr import Ridge
from kip.sets import check_points, encode
from kip.stream import Plan, coefficients, predict

SCHEMA = 1
ARRAYS, DESCRIPTION, CARD, PICTURE = "distilled.safetensors", "distilled.json", "README.md", "images.png"
SIZE_LIMIT = 8 * 2**30
"""Arrays larger than this are refused before they are read."""

_PREFIX = "preprocess."


@dataclass(frozen=True)
class DistilledSet:
    """A small labelled set with all that is needed to use it.

    `x`, `y` live in preprocessed space, where kernels and masks do; `images()` brings them back for people. `kernel` is
    a kernel or a family ("fc1+conv2"), whose predictions are averaged; `engine` is what computes it here, and is not
    stored.

    >>> import numpy as np, kip
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 5)) + 3 * np.repeat(np.eye(3, 5), 20, axis=0)
    >>> y = np.repeat(["a", "b", "c"], 20)
    >>> small = kip.distill(x, y, size=3, steps=20)
    >>> small.predict(x[:1]).tolist()
    ['a']
    """

    x: np.ndarray
    y: np.ndarray
    classes: tuple[Any, ...]
    kernel: str
    ridge: Ridge
    preprocess: Preprocess
    seed: int
    original_size: int
    corruption: Corruption = Corruption()
    mask: np.ndarray | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)
    engine: str | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        points = f"{len(self)} points of {self.x.shape[1:]}"
        return f"DistilledSet({points}, {len(self.classes)} classes, kernel {self.kernel!r})"

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels it was made for."""
        return family(self.kernel, self.engine)

    @cached_property
    def _alphas(self) -> tuple[np.ndarray, ...]:
        return tuple(coefficients(kernel, self.x, self.y, self.ridge) for kernel in self.kernels)

    def images(self) -> np.ndarray:
        """The points in the scale of the raw data (up to an image's mean and norm under ZCA)."""
        return self.preprocess.invert(self.x)

    def scores(
        self, raw: Any, kernel: str | Kernel | Sequence[Kernel] | None = None, plan: Plan = Plan()
    ) -> np.ndarray:
        """Predicted label vectors of raw inputs; under another `kernel` or family where one is given."""
        x = self.preprocess.apply(check_points(raw, "raw"))
        if kernel is None:
            pairs = list(zip(self.kernels, self._alphas, strict=True))
        else:
            pairs = [(k, coefficients(k, self.x, self.y, self.ridge)) for k in family(kernel)]
        return np.mean([predict(k, self.x, alpha, x, plan) for k, alpha in pairs], axis=0)

    def predict(self, raw: Any, kernel: str | Kernel | None = None) -> np.ndarray:
        """The class of each raw input, as the data set names it."""
        return np.asarray(self.classes)[np.argmax(self.scores(raw, kernel), axis=1)]

    def score(self, raw: Any, labels: Any, kernel: str | Kernel | None = None) -> float:
        """Accuracy on raw inputs with their labels."""
        codes, _ = encode(labels, self.classes, "labels")
        if len(codes) != len(raw):
            raise ValueError(f"`labels` has {len(codes)} entries for {len(raw)} inputs; give one label to an input")
        return float(np.mean(np.argmax(self.scores(raw, kernel), axis=1) == codes))

    def certificate(self) -> Certificate:
        """Whether the set is ρ-corrupted with respect to its recorded mask."""
        mask = np.zeros(self.x.shape, bool) if self.mask is None else self.mask
        return certify(self.x, mask, self.corruption, key=self.seed)

    def picture(self) -> bytes | None:
        """The gallery with labels as PNG, or None where the points are not images."""
        if self.x.ndim != 4:
            return None
        captions = [str(self.classes[code]) for code in np.argmax(self.y, axis=1)]
        buffer = io.BytesIO()
        gallery.sheet([("", self.images())], captions).save(buffer, "PNG")
        return buffer.getvalue()

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the set into `folder`, whole or not at all."""
        folder = Path(folder)
        if (folder / DESCRIPTION).exists() and not overwrite:
            raise FileExistsError(f"{folder} holds a distilled set; choose another folder or pass overwrite=True")
        folder.mkdir(parents=True, exist_ok=True)
        arrays = safetensors.numpy.save(self._arrays())
        picture = self.picture()
        (folder / DESCRIPTION).unlink(missing_ok=True)
        write_atomic(folder / ARRAYS, arrays)
        if picture is not None:
            write_atomic(folder / PICTURE, picture)
        write_atomic(folder / CARD, _card(self).encode())
        write_json(folder / DESCRIPTION, self._description(sha256(arrays)))
        return folder

    def _arrays(self) -> dict[str, np.ndarray]:
        arrays = {"x": np.ascontiguousarray(self.x), "y": np.ascontiguousarray(self.y)}
        if self.mask is not None:
            arrays["mask"] = np.packbits(self.mask)
        arrays |= {_PREFIX + name: np.ascontiguousarray(array) for name, array in self.preprocess.arrays().items()}
        return arrays

    def _description(self, digest: str) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "kip": __version__,
            "classes": list(self.classes),
            "kernel": self.kernel,
            "ridge": {"value": self.ridge.value, "scale_invariant": self.ridge.scale_invariant},
            "preprocess": self.preprocess.config(),
            "seed": self.seed,
            "size": len(self),
            "original_size": self.original_size,
            "corruption": vars(self.corruption),
            "config": dict(self.config),
            "hashes": {ARRAYS: digest},
            "results": dict(self.results),
        }


def load(folder: str | Path) -> DistilledSet:
    """Open a saved distilled set; its hash is checked and nothing in it is executed.

    >>> import numpy as np, kip, tempfile
    >>> x, y = np.random.default_rng(0).normal(size=(40, 5)), [0, 1] * 20
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     len(kip.load(kip.label_solve(x, y, size=4).save(f"{folder}/small")))
    4
    """
    folder = Path(folder)
    if not (folder / DESCRIPTION).is_file():
        raise FileNotFoundError(f"{folder} holds no distilled set: there is no {DESCRIPTION}; give a run folder")
    about = read_json(folder / DESCRIPTION)
    try:
        return _restored(about, _read_arrays(folder, about))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{folder / DESCRIPTION} is damaged or not ours ({error!r}); distil again") from None


def _read_arrays(folder: Path, about: Mapping[str, Any]) -> dict[str, np.ndarray]:
    if not isinstance(about, dict) or not isinstance(about.get("schema"), int):
        raise ValueError(f"{folder / DESCRIPTION} is not a distilled set's description; give a run folder")
    if about["schema"] > SCHEMA:
        raise ValueError(f"{folder} has schema {about['schema']}, newer than this kip reads ({SCHEMA}); upgrade kip")
    path = folder / ARRAYS
    if not path.is_file():
        raise FileNotFoundError(f"{path} is missing; copy the whole folder")
    if path.stat().st_size > SIZE_LIMIT:
        raise ValueError(f"{path} is {path.stat().st_size} bytes, more than the {SIZE_LIMIT} that are read")
    data = path.read_bytes()
    if sha256(data) != about["hashes"][ARRAYS]:
        raise ValueError(f"{path} is not the file that was saved (its hash differs); copy the folder again")
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is not a readable safetensors file: {error}") from None


def _restored(about: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> DistilledSet:
    x = arrays["x"]
    mask = None
    if "mask" in arrays:
        mask = np.unpackbits(arrays["mask"], count=x.size).astype(bool).reshape(x.shape)
    parts = {name.removeprefix(_PREFIX): a for name, a in arrays.items() if name.startswith(_PREFIX)}
    return DistilledSet(
        x=x,
        y=arrays["y"],
        classes=tuple(about["classes"]),
        kernel=about["kernel"],
        ridge=Ridge(**about["ridge"]),
        preprocess=restore(about["preprocess"], parts),
        seed=about["seed"],
        original_size=about["original_size"],
        corruption=Corruption(**about["corruption"]),
        mask=mask,
        config=about["config"],
        results=about["results"],
    )


def made_for(small: DistilledSet) -> str:
    """What the set was made for, and what to use for the other purpose, in one clause."""
    if small.config.get("purpose") == "networks":
        return f"made to train networks, with kernel '{small.kernel}'; for kernel ridge-regression use `kip distill`"
    return (
        f"made for kernel ridge-regression with kernel '{small.kernel}'; "
        "to train networks use `kip distill --for networks`"
    )


def _card(small: DistilledSet) -> str:
    shape = "×".join(map(str, small.x.shape[1:]))
    kind = "images" if small.x.ndim == 4 else "vectors"
    ridge = f"{small.ridge.value:g}{' (× tr K/n)' if small.ridge.scale_invariant else ''}"
    networks = ", to train networks on" if small.config.get("purpose") == "networks" else ""
    lines = [
        f"# {len(small)} distilled {kind}",
        "",
        f"{len(small)} {kind} of {shape} with soft labels for {len(small.classes)} classes, distilled with `kip` "
        f"{__version__} from {small.original_size:,} labelled points: {made_for(small)}.",
        "",
        "```python",
        "import kip",
        "small = kip.load('.')  # this folder",
        "small.predict(raw)     # raw inputs, as the data set has them",
        f"small.x, small.y       # preprocessed points and soft labels{networks}",
        "small.images()         # the points as images",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| classes | {', '.join(map(str, small.classes))} |",
        f"| kernel, ridge | `{small.kernel}`, {ridge} |",
        f"| preprocessing | {small.preprocess.config().get('name', type(small.preprocess).__name__)} |",
        f"| corrupted coordinates | {small.corruption.rho:.0%} |",
        f"| seed | {small.seed} |",
    ]
    for name, value in small.results.items():
        if isinstance(value, float):
            lines.append(f"| {name.replace('_', ' ')} | {value:.4g} |")
    return "\n".join([*lines, ""])
