"""The distilled set: what comes out, stands on its own, and predicts from raw inputs.

A folder with `distilled.safetensors` (points, labels, mask, preprocessing), `distilled.json` (everything else, and the
hash of the former), a data card `README.md` and a gallery `images.png`. `distilled.json` is written last: a folder
without it holds no distilled set. Nothing is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import io
import json
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
from kip.data.scale import Seen, check_scale, rescale
from kip.files import read_json, sha256, write_atomic, write_json
from kip.kernels import Kernel, KernelLike, family
from kip.kernels.traced import OWN
from kip.krr import KernelRidge, Ridge
from kip.sets import LabelledSet, channels_last, check_points, encode, same_array

SCHEMA = 1
ARRAYS, DESCRIPTION, CARD, PICTURE = "distilled.safetensors", "distilled.json", "README.md", "images.png"
SIZE_LIMIT = 8 * 2**30
"""Arrays larger than this are refused before they are read."""

_PREFIX = "preprocess."


@dataclass(frozen=True, eq=False)
class DistilledSet:
    """A small labelled set with all that is needed to use it.

    `x`, `y` live in preprocessed space, where kernels and masks do; `images()` gives the points as raw data. `kernel`
    is a kernel or a family ("fc1+conv2"), whose predictions are averaged; `engine` is what computes it here, and is not
    stored. Two sets are equal where everything that `save` stores is.

    Raw images must be on the scale of those that the set was made from: counts to 255, or floats in 0…1. Images that
    cannot be are refused. `scale` says otherwise: it is what raw values are divided by, 255 for counts and 1.0 for
    floats in 0…1. `layout` says where the channels of raw images are: "channels-last" (default) or "channels-first".

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
    own_kernels: tuple[Kernel, ...] = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistilledSet):
            return NotImplemented
        mine, theirs = self._arrays(), other._arrays()
        return (
            self._described() == other._described()
            and mine.keys() == theirs.keys()
            and all(same_array(mine[name], theirs[name]) for name in mine)
        )

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        points = f"{len(self)} points of {self.x.shape[1:]}"
        return f"DistilledSet({points}, {len(self.classes)} classes, kernel {self.kernel!r})"

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels it was made for."""
        return self.own_kernels or family(self.kernel, self.engine)

    @cached_property
    def model(self) -> KernelRidge:
        """Kernel ridge-regression on the set, for preprocessed points."""
        return KernelRidge(self.kernels, LabelledSet(self.x, self.y), self.ridge)

    def images(self) -> np.ndarray:
        """The points in the scale of the raw data, as `predict` takes them, and not clipped to its range.

        `scores(images())` are the scores of the support points themselves, to rounding. Under ZCA that holds for
        natural points only (`label_solve`): ZCA brings every image to mean 0 and norm 1, which learned images do not
        have, so their scores differ a little.
        """
        return self.preprocess.invert(self.x)

    def scores(
        self,
        raw: Any,
        kernel: KernelLike | Sequence[KernelLike] | None = None,
        *,
        scale: float | None = None,
        layout: str | None = None,
    ) -> np.ndarray:
        """Predicted label vectors of raw inputs; under another `kernel` or family where one is given."""
        x = self.preprocess.apply(self._checked(raw, scale, layout))
        if kernel is None:
            return self.model.predict(x)
        return KernelRidge(family(kernel), LabelledSet(self.x, self.y), self.ridge).predict(x)

    def _checked(self, raw: Any, scale: float | None, layout: str | None) -> np.ndarray:
        """Raw inputs in the layout and on the scale that `preprocess` takes."""
        raw = check_points(raw, "raw")
        if layout is None and raw.shape[1:] == self.preprocess.shape:
            layout = "channels-last"  # the shape of the training images, whatever it looks like
        raw = self.preprocess.check_shape(channels_last(raw, layout, "raw"))
        if scale is not None:
            return rescale(raw, scale, self.preprocess.scale)
        seen = self._seen()
        if seen is not None and not self.preprocess.scale_free:
            check_scale(raw, seen, self.preprocess.scale, lambda: float(np.abs(self.images()).max()))
        return raw

    def _seen(self) -> Seen | None:
        """The values of the raw training images; of sets that do not record them, what uint8 implies."""
        if self.preprocess.seen is None and self.preprocess.scale == 255 and self.x.ndim == 4:
            return Seen(0.0, 255.0, 255.0)
        return self.preprocess.seen

    def predict(
        self, raw: Any, kernel: KernelLike | None = None, *, scale: float | None = None, layout: str | None = None
    ) -> np.ndarray:
        """The class of each raw input, as the data set names it."""
        return np.asarray(self.classes)[np.argmax(self.scores(raw, kernel, scale=scale, layout=layout), axis=1)]

    def score(
        self,
        raw: Any,
        labels: Any,
        kernel: KernelLike | None = None,
        *,
        scale: float | None = None,
        layout: str | None = None,
    ) -> float:
        """Accuracy on raw inputs with their labels."""
        codes, _ = encode(labels, self.classes, "labels")
        if len(codes) != len(raw):
            raise ValueError(f"`labels` has {len(codes)} entries for {len(raw)} inputs; give one label per input")
        scores = self.scores(raw, kernel, scale=scale, layout=layout)
        return float(np.mean(np.argmax(scores, axis=1) == codes))

    def certificate(self) -> Certificate:
        """Whether the set is ρ-corrupted with respect to its recorded mask."""
        mask = np.zeros(self.x.shape, bool) if self.mask is None else self.mask
        return certify(self.x, mask, self.corruption, key=self.seed)

    def picture(self) -> bytes | None:
        """The gallery with labels as PNG, or None where the points are not images."""
        if self.x.ndim != 4:
            return None
        buffer = io.BytesIO()
        gallery.sheet([("", self.images())], gallery.captions(self.y, self.classes)).save(buffer, "PNG")
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

    def _described(self) -> str:
        """The description as it reads after `save` and `load`, where tuples have become lists."""
        return json.dumps(self._description(""), sort_keys=True, default=repr)

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


def load(folder: str | Path, *, kernel: KernelLike | Sequence[KernelLike] | None = None) -> DistilledSet:
    """Open a saved distilled set; its hash is checked and nothing in it is executed.

    A set that was made with a custom kernel needs that `kernel` again.

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
        small = _restored(about, _read_arrays(folder, about))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{folder / DESCRIPTION} is damaged or not ours ({error!r}); distil again") from None
    return _with_kernel(small, folder, kernel)


def _with_kernel(small: DistilledSet, folder: Path, kernel: KernelLike | Sequence[KernelLike] | None) -> DistilledSet:
    """The set with the kernel handed in, which must be that it was made with."""
    if kernel is None:
        if OWN in small.kernel:
            raise ValueError(
                f"{folder} was made with a custom kernel, {small.kernel!r}, which no string can rebuild; "
                "pass it: kip.load(folder, kernel=mine)"
            )
        return small
    kernels = family(kernel)
    spec = "+".join(each.spec for each in kernels)
    if spec != small.kernel:
        raise ValueError(f"{folder} was made with kernel {small.kernel!r}; got {spec!r}. Use predict(raw, kernel=…)")
    return dataclasses.replace(small, own_kernels=kernels)


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
        "small.predict(raw)     # raw inputs, on the scale of the data set",
        f"small.x, small.y       # preprocessed points and soft labels{networks}",
        "small.images()         # the points as raw data",
        "```",
        "",
        "| | |",
        "|---|---|",
        f"| classes | {', '.join(map(str, small.classes))} |",
        f"| kernel, ridge | `{small.kernel}`, {ridge} |",
        f"| preprocessing | {small.preprocess.config().get('name', type(small.preprocess).__name__)} |",
        *([] if (seen := small.preprocess.seen) is None else [f"| raw values | {seen} |"]),
        f"| corrupted coordinates | {small.corruption.rho:.0%} |",
        f"| seed | {small.seed} |",
    ]
    for name, value in small.results.items():
        if isinstance(value, float):
            lines.append(f"| {name.replace('_', ' ')} | {value:.4g} |")
    return "\n".join([*lines, ""])
