"""The one schema of options: every setting with its type, default, bounds, help and group, declared once.

The command line, the signatures of `kip.distill` and `kip.label_solve`, `config.json`, `--resume` and the checks follow
from the fields below. To add an option, add a field here and use it where it takes effect. Nothing here imports NumPy
or JAX: help must answer at once.
"""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import math
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from kip.choices import DATA, LEARNING, OPTIMISATION, RUNNING, Kind, LabelMode, Option
from kip.files import as_text

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data, and how they are read."""

    data: Annotated[
        str,
        Option(
            "digits, mnist, fashion-mnist, cifar10, or a path: .npz, .csv, a folder of class folders of images.", DATA
        ),
    ] = "digits"
    label: Annotated[
        str | None, Option("Column of a .csv that holds the classes, by name or number.", DATA, none="the last")
    ] = None
    resize: Annotated[
        int | None,
        Option(
            "Resize the images of a folder to this height and width, in pixels.", DATA, none="as they are", at_least=1
        ),
    ] = None
    layout: Annotated[
        Literal["channels-last", "channels-first"] | None,
        Option(
            "Axes of images in an .npz: channels-last is (n, h, w, channels), channels-first (n, channels, h, w).",
            DATA,
            none="channels-last",
        ),
    ] = None
    fit: Annotated[
        Literal["crop", "pad", "stretch"],
        Option(
            "How --resize brings an image to the size: crop fills it and cuts the centre out, pad fits inside and "
            "centres on black, stretch ignores its proportions.",
            DATA,
        ),
    ] = "crop"
    skip_unreadable: Annotated[bool, Option("Leave out images that cannot be decoded.", DATA)] = False
    source: Annotated[
        Literal["official", "registry"] | None,
        Option("Where to fetch a named data set from.", DATA, none="whichever answers"),
    ] = None

    def __post_init__(self) -> None:
        if self.label is not None:
            object.__setattr__(self, "label", as_text(self.label))


@dataclass(frozen=True, kw_only=True)
class SetOptions:
    """What a distilled set is made of, however it is made."""

    size: Annotated[
        int | None, Option("Points in the distilled set.", LEARNING, none="10, or one per class", at_least=1)
    ] = None
    kernel: Annotated[
        str | None,
        Option(
            "rbf, linear, fc1, conv2, convnet3, myrtle10, …; options after colons (fc2:nngp, rbf:gamma=0.5); a family "
            "is fc1+conv2.",
            LEARNING,
            none="rbf; for networks FC1-3, for images with Conv1-2",
        ),
    ] = None
    ridge: Annotated[float, Option("λ, in units of the mean of K's diagonal.", LEARNING, at_least=0)] = 1e-6
    plain_ridge: Annotated[bool, Option("Use λ itself, not scaled by K's diagonal.", LEARNING)] = False
    corruption: Annotated[
        float,
        Option(
            "ρ: fraction of each point's coordinates that is replaced by noise and not learned.",
            LEARNING,
            at_least=0,
            below=1,
        ),
    ] = 0.0
    fill: Annotated[Literal["noise", "zeros"], Option("Values of corrupted coordinates.", LEARNING)] = "noise"
    by_pixel: Annotated[bool, Option("Corrupt whole pixels, all channels together.", LEARNING)] = False
    kind: Annotated[
        Kind | None,
        Option(
            "Kind of data; the default steps, learning rate and augmentation depend on it.",
            DATA,
            none="that of a named data set, else by shape and channels",
        ),
    ] = None
    preprocess: Annotated[
        str,
        Option("Preprocessing of raw points: standard, zca, zca-scaled:0.1 (strength), none.", DATA),
    ] = "standard"
    targets: Annotated[
        int | None, Option("Use only this many training points, class-balanced.", DATA, none="all", at_least=1)
    ] = None
    validation: Annotated[
        float,
        Option(
            "Fraction of the training set held out; accuracy on it is shown during the run.", DATA, at_least=0, below=1
        ),
    ] = 0.0
    engine: Annotated[
        Literal["jax", "numba"] | None, Option("Engine for convolutional kernels.", RUNNING, none="by the device")
    ] = None
    dtype: Annotated[Literal["float32", "float64"], Option("Precision of the points and of K_ts.", RUNNING)] = "float32"
    seed: Annotated[int, Option("Random seed.", RUNNING, at_least=0)] = 0


@dataclass(frozen=True, kw_only=True)
class Options(SetOptions):
    """Every setting of a distillation by Kernel Inducing Points, as plain values: this is what `config.json` holds.

    None means that `kip.defaults` chooses.
    """

    purpose: Annotated[
        Literal["kernels", "networks"],
        Option(
            "What the set will train. networks selects the kernels FC1-3 and Conv1-2, fixed labels and small batches.",
            LEARNING,
            names=("--for", "--purpose"),
        ),
    ] = "kernels"
    labels: Annotated[
        LabelMode,
        Option(
            "How support labels are set. auto solves for them in closed form when a batch has at least five targets "
            "per support point, and learns them otherwise.",
            LEARNING,
        ),
    ] = "auto"
    start: Annotated[
        str | None,
        Option(
            "Start from the distilled set of a run: to learn with another kernel, on more data, or a larger size. New "
            "points are drawn from the training set, class-balanced.",
            LEARNING,
            none="points drawn from the training set",
            metavar="RUN",
        ),
    ] = None
    learn_kernel: Annotated[bool, Option("Learn the kernel's hyper-parameters too (γ of rbf).", LEARNING)] = False
    init: Annotated[Literal["image", "noise"], Option("Start from training points, or from noise.", OPTIMISATION)] = (
        "image"
    )
    steps: Annotated[
        int | None, Option("Steps of the optimiser, Adam.", OPTIMISATION, none="chosen by kind and size", at_least=1)
    ] = None
    learning_rate: Annotated[
        float | None, Option("Learning rate of Adam.", OPTIMISATION, none="chosen by kind and size", above=0)
    ] = None
    optimiser: Annotated[str, Option("adam; from Python any optax transformation.", OPTIMISATION, python=True)] = "adam"
    schedule: Annotated[Literal["cosine", "constant"], Option("Schedule of the learning rate.", OPTIMISATION)] = (
        "cosine"
    )
    batch: Annotated[
        int | None, Option("Targets per step.", OPTIMISATION, none="chosen by kind and size", at_least=1)
    ] = None
    support_batch: Annotated[
        int | None, Option("Points of the distilled set per step.", OPTIMISATION, none="all", at_least=1)
    ] = None
    augment: Annotated[
        str | None,
        Option(
            "Augment the targets: digits (shift, rotate), photos (and flip), flips, none; given alone, by the data. "
            "digits:0.05 shifts less.",
            OPTIMISATION,
            none="chosen by kind and size",
            metavar="NAME",
        ),
    ] = None
    # Enough to keep solved labels finite where float32 no longer tells support points apart, and no more.
    damping: Annotated[
        float, Option("μ, the damping of solved labels; larger values give smaller labels.", OPTIMISATION, at_least=0)
    ] = 1e-9
    patience: Annotated[
        int | None,
        Option("Stop after this many evaluations without improvement.", OPTIMISATION, none="never", at_least=1),
    ] = None
    evaluate_every: Annotated[
        int | None,
        Option(
            "Steps between evaluations on the training set.",
            OPTIMISATION,
            none="a twentieth of the steps",
            at_least=1,
            renamed="judge_every",
        ),
    ] = None
    evaluate_targets: Annotated[
        int | None,
        Option(
            "Training points to evaluate on, the same every time.",
            OPTIMISATION,
            none="chosen by kind and size",
            at_least=1,
            renamed="judge_targets",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Where a run is written, and what it is compared with."""

    seeds: Annotated[int, Option("Repeat with this many seeds; gives mean and deviation.", RUNNING, at_least=1)] = 1
    out: Annotated[Path | None, Option("Folder to write the run to.", RUNNING, none="runs/DATA-KERNEL-SIZE-sSEED")] = (
        None
    )
    draws: Annotated[
        int | None,
        Option(
            "Random subsets to compare with; 0 compares with nothing.",
            RUNNING,
            none="20, fewer where slow",
            at_least=0,
            free=True,
        ),
    ] = None
    full: Annotated[bool, Option("Compare with the full training set however long that takes.", RUNNING, free=True)] = (
        False
    )
    device: Annotated[
        str | None, Option("JAX device, such as cpu or gpu:1.", RUNNING, none="JAX's own choice", free=True)
    ] = None
    cache: Annotated[
        Path | None,
        Option(
            "Folder that caches values of expensive kernels for later runs.",
            RUNNING,
            none="in the run, until it ends",
        ),
    ] = None
    config: Annotated[
        Path | None,
        Option(
            "TOML with one table per command, or the config.json of a run; the command line wins.",
            RUNNING,
            none="no file",
        ),
    ] = None


BUDGET = Option(
    "Time limit, such as 90s, 10m or 1h30m: chooses --steps to fit, and stops when it has passed. With --steps it only "
    "stops.",
    RUNNING,
    none="no limit",
    free=True,
)

RESUME = Option("Continue the run in --out where it was left.", RUNNING)

NOT_KEPT = ("out", "seeds", "cache", "config", "resume")
"""Options that say where a run goes, not what it is: `config.json` leaves them out."""


def declared(schema: type) -> Iterator[tuple[str, Any, Option]]:
    """The options of a schema: name, type, and declaration."""
    hints = typing.get_type_hints(schema, include_extras=True)
    for field in dataclasses.fields(schema):
        kind, option = typing.get_args(hints[field.name])[:2]
        yield field.name, kind, option


def checked(options: Any, *, spell: Callable[[str], str] = str) -> Any:
    """`options` as plain values, if each is of its type and within its bounds; else a ValueError that names the option.

    NumPy's numbers become Python's, since options are stored as JSON. `spell` turns a name into what the user wrote,
    such as "--learning-rate".
    """
    plain: dict[str, Any] = {}
    for name, kind, option in declared(type(options)):
        value = getattr(options, name)
        complaint = _complaint(value, kind, option)
        if complaint:
            raise ValueError(f"`{spell(name)}` must be {complaint}; got {value!r}")
        if value is not None and (number := _wanted(kind)) in (int, float):
            plain[name] = number(value)
    return dataclasses.replace(options, **plain)


def _complaint(value: Any, kind: Any, option: Option) -> str | None:
    """What `value` should be, where it is not."""
    if value is None and type(None) in typing.get_args(kind):
        return None
    wanted = _wanted(kind)
    if choices := typing.get_args(wanted):
        return None if value in choices else f"one of {', '.join(choices)}"
    if wanted is int and not _is_whole(value):
        return "a whole number"
    if wanted is float and (isinstance(value, bool | str) or not _is_finite(value)):
        return "a finite number"
    if wanted in (str, bool) and not isinstance(value, wanted):
        return {str: "a string", bool: "true or false"}[wanted]
    return option.bounds(value)


def _wanted(kind: Any) -> Any:
    """The type of an option without None: a plain type, or a Literal."""
    kinds = () if typing.get_origin(kind) is Literal else typing.get_args(kind)
    return next((each for each in kinds if each is not type(None)), kind)


def _is_whole(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and value.__index__() == value
    except (AttributeError, TypeError):
        return False


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except TypeError:
        return False


def renamed(schema: type) -> dict[str, str]:
    """Options that had another name, by that name."""
    return {option.renamed: name for name, _, option in declared(schema) if option.renamed}


def unknown(name: str, schema: type) -> str:
    """What to say of an option that the schema does not have."""
    now = renamed(schema).get(name)
    if now:
        return f"{name!r} is now called {now!r}"
    names = [known for known, _, _ in declared(schema)]
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(names)}"


def takes(schema: type) -> Callable[[F], F]:
    """Give a function that ends with `**options` the options of `schema` as its explicit keyword arguments.

    They are in its signature and, with their help, in its documentation; a misspelt one is a TypeError that suggests
    the right one.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)
        own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
        taken = {parameter.name for parameter in own}
        added = [each for each in _parameters(schema) if each.name not in taken]
        function.__signature__ = signature.replace(parameters=_ordered([*own, *added]))  # type: ignore[attr-defined]
        function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{documented(schema)}"
        return function

    return decorate


def _parameters(schema: type) -> Iterator[inspect.Parameter]:
    defaults = {field.name: field.default for field in dataclasses.fields(schema)}
    for name, kind, _ in declared(schema):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind)


def _ordered(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return sorted(parameters, key=lambda parameter: parameter.kind)


def documented(schema: type) -> str:
    """The options of a schema as text: name, meaning, default."""
    lines = ["Options:"]
    defaults = {field.name: field.default for field in dataclasses.fields(schema)}
    for name, _, option in declared(schema):
        lines.append(f"  {name}: {option.help} (default: {option.none or defaults[name]})")
    return "\n".join(lines)


def given(schema: type, options: Mapping[str, Any], function: str) -> Any:
    """The keyword arguments of a call as the schema has them, checked, as plain Python values."""
    names = {name for name, _, _ in declared(schema)}
    for name in options:
        if name not in names:
            raise TypeError(f"{function}() got an unexpected argument {name!r}; {unknown(name, schema)}")
    return checked(schema(**options))
