"""What can be said on the command line, as typed groups that commands share; and `--config` files.

Nothing here imports NumPy or JAX: help must answer at once. `LearnOptions` mirrors `kip.api.Options` field by field
(a test compares the two).
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from kip import defaults
from kip.files import as_text, read_json

DATA = Group("Data", sort_key=1)
LEARNING = Group("What is learned", sort_key=2)
OPTIMISATION = Group("How it is learned", sort_key=3)
RUNNING = Group("Running", sort_key=4)

AUGMENTATIONS = ("auto", "none", "digits", "photos", "flips")

AUTO = Parameter(show_default=lambda _: "chosen by the data")
"""For options whose None means that `kip.defaults` chooses."""

BUDGET = Parameter(
    group=RUNNING, help="Choose the steps that 90s, 10m or 1h30m allow, and stop then; given --steps, only stop."
)

PURPOSE = ("--for", "--purpose")
"""Two names of one option: in files it goes by the second, which is its name in the library."""

COUNT, POSITIVE = Parameter(validator=Number(gte=1)), Parameter(validator=Number(gt=0))
NOT_NEGATIVE = Parameter(validator=Number(gte=0))

CONFIG_HELP = "TOML with a table a command, or the config.json of a run; what is given here wins."

FIT_HELP = (
    "How --resize treats images that are not square: crop scales the image to cover the square and keeps the centre, "
    "pad fits it inside, centred on black, stretch ignores proportions."
)
SKIP_UNREADABLE_HELP = "Leave out the images of a folder that cannot be read, and say which."

CACHE_HELP = "Folder to keep values of expensive kernels in, for other runs to find."


@Parameter(name="*")
@dataclass(frozen=True)
class DataOptions:
    """Which data, and how to read them."""

    data: Annotated[
        str,
        Parameter(
            group=DATA,
            help="digits, mnist, fashion-mnist, cifar10, or a path: .npz, .csv, a folder of class folders of images.",
        ),
    ] = "digits"
    label: Annotated[str | None, Parameter(group=DATA, help="Column of a .csv that holds the classes: the last.")] = (
        None
    )
    resize: Annotated[
        int | None, COUNT, Parameter(group=DATA, help="Bring the images of a folder to this height and width.")
    ] = None
    layout: Annotated[
        Literal["channels-last", "channels-first"] | None,
        Parameter(
            group=DATA,
            help="Axes of images in an .npz: (n, h, w, channels) by default; channels-first is (n, channels, h, w).",
        ),
    ] = None
    fit: Annotated[Literal["crop", "pad", "stretch"], Parameter(group=DATA, help=FIT_HELP)] = "crop"
    skip_unreadable: Annotated[
        bool, Parameter(group=DATA, negative="", show_default=False, help=SKIP_UNREADABLE_HELP)
    ] = False
    source: Annotated[
        Literal["official", "registry"] | None,
        Parameter(group=DATA, help="Where to fetch a named data set from: whichever answers."),
    ] = None
    preprocess: Annotated[
        str,
        Parameter(group=DATA, help="What is done to raw points first: standard, zca, zca-scaled:0.1 (strength), none."),
    ] = "standard"
    targets: Annotated[
        int | None, COUNT, Parameter(group=DATA, help="Use only this many training points, class-balanced: all.")
    ] = None
    validation: Annotated[
        float, Parameter(group=DATA, help="Fraction of the training set held out, to watch accuracy on.")
    ] = 0.0

    def __post_init__(self) -> None:
        if self.label is not None:
            object.__setattr__(self, "label", as_text(self.label))


@Parameter(name="*")
@dataclass(frozen=True)
class SetOptions:
    """What a set is made of, however it is made."""

    size: Annotated[
        int | None,
        COUNT,
        Parameter(group=LEARNING, show_default=lambda _: "10, or one a class", help="Points in the distilled set."),
    ] = None
    kernel: Annotated[
        str,
        Parameter(
            group=LEARNING,
            help="rbf, linear, fc1, conv2, convnet3, myrtle10, …; options after colons (fc2:nngp, rbf:gamma=0.5); "
            "a family is fc1+conv2.",
        ),
    ] = "rbf"
    ridge: Annotated[
        float, NOT_NEGATIVE, Parameter(group=LEARNING, help="λ, in units of the mean of K's diagonal.")
    ] = 1e-6
    plain_ridge: Annotated[
        bool,
        Parameter(group=LEARNING, negative="", show_default=False, help="Take λ as it is, not scaled by K's diagonal."),
    ] = False
    corruption: Annotated[
        float, Parameter(group=LEARNING, help="ρ: this fraction of each point's coordinates is noise and stays so.")
    ] = 0.0
    fill: Annotated[Literal["noise", "zeros"], Parameter(group=LEARNING, help="What corrupted coordinates hold.")] = (
        "noise"
    )
    by_pixel: Annotated[
        bool,
        Parameter(
            group=LEARNING, negative="", show_default=False, help="Corrupt whole pixels, all channels of one together."
        ),
    ] = False


@Parameter(name="*")
@dataclass(frozen=True)
class LearnOptions:
    """How Kernel Inducing Points learns."""

    purpose: Annotated[
        Literal["kernels", "networks"],
        Parameter(
            name=PURPOSE,
            group=LEARNING,
            help="What the set is to train; networks presets kernels FC1-3 and Conv1-2, fixed labels, small batches.",
        ),
    ] = "kernels"
    labels: Annotated[
        Literal["auto", "fixed", "learned", "solved"],
        Parameter(group=LEARNING, help="How labels are had; auto solves them where a batch has five targets a point."),
    ] = "auto"
    learn_kernel: Annotated[
        bool,
        Parameter(
            group=LEARNING, negative="", show_default=False, help="Learn the kernel's hyper-parameters too (rbf's γ)."
        ),
    ] = False
    init: Annotated[
        Literal["image", "noise"], Parameter(group=OPTIMISATION, help="Start from training points, or from noise.")
    ] = "image"
    steps: Annotated[int | None, COUNT, AUTO, Parameter(group=OPTIMISATION, help="Steps of the optimiser, Adam.")] = (
        None
    )
    learning_rate: Annotated[float | None, POSITIVE, AUTO, Parameter(group=OPTIMISATION, help="Adam's rate.")] = None
    schedule: Annotated[
        Literal["cosine", "constant"], Parameter(group=OPTIMISATION, help="What becomes of the rate.")
    ] = "cosine"
    batch: Annotated[int | None, COUNT, AUTO, Parameter(group=OPTIMISATION, help="Targets a step.")] = None
    support_batch: Annotated[
        int | None, COUNT, Parameter(group=OPTIMISATION, help="Points of the distilled set a step: all.")
    ] = None
    augment: Annotated[
        str | None,
        AUTO,
        Parameter(
            group=OPTIMISATION,
            metavar="NAME",
            help="Augment the targets: digits (shift, rotate), photos (and flip), flips, none; alone, by the data. "
            "digits:0.05 shifts less.",
        ),
    ] = None
    damping: Annotated[float, NOT_NEGATIVE, Parameter(group=OPTIMISATION, help="μ: keeps solved labels small.")] = 1e-9
    patience: Annotated[
        int | None, COUNT, Parameter(group=OPTIMISATION, help="Stop after so many judgements without progress: never.")
    ] = None
    judge_every: Annotated[
        int | None,
        COUNT,
        Parameter(group=OPTIMISATION, help="Steps between judgements on the training set: a twentieth."),
    ] = None
    judge_targets: Annotated[
        int | None, COUNT, AUTO, Parameter(group=OPTIMISATION, help="Training points to judge by, the same each time.")
    ] = None


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """Where and how a run runs."""

    seed: Annotated[int, NOT_NEGATIVE, Parameter(group=RUNNING, help="Every random choice follows from it.")] = 0
    seeds: Annotated[
        int, COUNT, Parameter(group=RUNNING, help="Repeat with so many seeds; gives mean and deviation.")
    ] = 1
    out: Annotated[
        Path | None,
        Parameter(
            group=RUNNING, show_default=lambda _: "runs/DATA-KERNEL-SIZE-sSEED", help="Folder to write the run to."
        ),
    ] = None
    draws: Annotated[
        int | None,
        NOT_NEGATIVE,
        Parameter(
            group=RUNNING,
            show_default=lambda _: "20, fewer where slow",
            help="Random subsets to compare with; 0 compares with nothing.",
        ),
    ] = None
    full: Annotated[
        bool,
        Parameter(
            group=RUNNING,
            negative="",
            show_default=False,
            help="Compare with the full training set however long that takes.",
        ),
    ] = False
    engine: Annotated[
        Literal["jax", "numba"] | None, Parameter(group=RUNNING, help="What computes kernels: by the device.")
    ] = None
    device: Annotated[str | None, Parameter(group=RUNNING, help="JAX device, such as cpu or gpu:1.")] = None
    dtype: Annotated[
        Literal["float32", "float64"], Parameter(group=RUNNING, help="Precision of the points and of K_ts.")
    ] = "float32"
    cache: Annotated[Path | None, Parameter(group=RUNNING, help=CACHE_HELP)] = None
    config: Annotated[Path | None, Parameter(group=RUNNING, help=CONFIG_HELP)] = None


USUAL_DATA, USUAL_SET, USUAL_LEARNING, USUAL_RUN = DataOptions(), SetOptions(), LearnOptions(), RunOptions()
"""The groups where nothing was said."""

_NOT_KEPT = ("out", "seeds", "cache", "config", "resume", "again")
"""Options that say where a run goes, not what it is."""


def kept(*groups: Any) -> dict[str, Any]:
    """The options that make a run what it is, as `config.json` keeps them."""
    merged: dict[str, Any] = {}
    for group in groups:
        merged |= {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return {name: value for name, value in merged.items() if name not in _NOT_KEPT}


_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def seconds(text: str) -> float:
    """A duration such as 90s, 10m, 1h or 1h30m, in seconds.

    >>> seconds("1h30m")
    5400.0
    """
    match = _DURATION.fullmatch(text.strip().lower().replace(" ", ""))
    parts = [float(part or 0) for part in match.groups()] if match and text.strip() else []
    total = sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=True)) if parts else 0
    if total <= 0:
        raise ValueError(f"`--time-budget` must be a duration such as 90s, 10m or 1h30m; got {text!r}")
    return total


def with_augment_named(tokens: Sequence[str]) -> list[str]:
    """The tokens with a bare `--augment` made `--augment auto`: it may be given alone or with a name."""
    named: list[str] = []
    for token, following in zip(tokens, [*tokens[1:], "--"], strict=True):
        named.append("--augment=auto" if token == "--augment" and following.startswith("-") else token)
    return named


def value_of(option: str, tokens: Sequence[str]) -> Path | None:
    """The path that `option` names among the tokens, before they are parsed."""
    for token, following in zip(tokens, [*tokens[1:], ""], strict=True):
        if token == option and following:
            return Path(following)
        if token.startswith(f"{option}="):
            return Path(token.partition("=")[2])
    return None


def preset(tokens: Sequence[str], table: dict[str, Any]) -> dict[str, Any]:
    """What `--for networks`, on the command line or in a file, presets beside what `kip.defaults` does: kernels."""
    said = [following for token, following in zip(tokens, [*tokens[1:], ""], strict=True) if token in PURPOSE]
    said += [token.partition("=")[2] for token in tokens if token.partition("=")[0] in PURPOSE and "=" in token]
    wanted = said[-1] if said else table.get("for", table.get("purpose"))
    return {"kernel": defaults.NETWORK_FAMILY} if wanted == "networks" else {}


def read_config(path: Path, commands: Sequence[str]) -> dict[str, Any]:
    """What a configuration file says of a command: its table in TOML, or the whole of a run's config.json."""
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"`--config` {path} does not exist; give a TOML file or a run's config.json")
    if path.suffix == ".json":
        return _of_run(path, commands)
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`--config` {path} is not readable TOML: {error}") from None
    for command in commands:
        table = table.get(command, {})
        if not isinstance(table, dict):
            raise ValueError(f"`--config` {path}: {command} must be a table, [{'.'.join(commands)}]")
    return {name: value for name, value in table.items() if not isinstance(value, dict)}


def _of_run(path: Path, commands: Sequence[str]) -> dict[str, Any]:
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"`--config` {path} is not a run's config.json")
    command = config.pop("command", None)
    if command is not None and [command] != list(commands):
        raise ValueError(f"`--config` {path} is of `kip {command}`; use it with that command")
    config.pop("version", None)
    return {name: value for name, value in config.items() if value is not None}
