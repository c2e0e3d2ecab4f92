"""The schema of options on the command line, and `--config` files.

What an option is called, means and may be is declared in `kip.options`; here it becomes a parameter of cyclopts.
Nothing here imports NumPy or JAX: help must answer at once.
"""

from __future__ import annotations

import dataclasses
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter, Token
from cyclopts.validators import Number

from kip import choices
from kip.choices import Option
from kip.files import read_json
from kip.options import BUDGET as BUDGET_OPTION
from kip.options import NOT_KEPT, DataOptions, Options, RunOptions, SetOptions, checked, declared, renamed
from kip.options import RESUME as RESUME_OPTION

GROUPS = {name: Group(name, sort_key=rank) for rank, name in enumerate(choices.GROUPS, start=1)}
DATA, RUNNING = GROUPS[choices.DATA], GROUPS[choices.RUNNING]

COUNT, POSITIVE = Parameter(validator=Number(gte=1)), Parameter(validator=Number(gt=0))
NOT_NEGATIVE = Parameter(validator=Number(gte=0))


def parameter(option: Option, default: Any = None, **more: Any) -> Parameter:
    """An option as cyclopts takes it, with its default in its help."""
    usual = option.none if default is None else "off" if default is False else default
    usual = f"{usual:g}" if isinstance(usual, float) else usual
    if option.names:
        more["name"] = option.names
    if option.metavar:
        more["metavar"] = option.metavar
    return Parameter(
        group=GROUPS[option.group],
        help=f"{option.help} (default: {usual})",
        show_default=False,
        negative="",
        **more,
    )


def whole(_: type, tokens: Sequence[Token]) -> int:
    """The whole number that a token spells; cyclopts would round 20.5."""
    text = tokens[0].value
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise ValueError(f"a whole number is needed; got {text!r}")
    return int(text) if text.lstrip("+-").isdigit() else int(number)


def on_command_line(schema: type) -> Any:
    """A schema whose fields are parameters of the command line, in groups; an instance is one of the schema."""
    defaults = {field.name: field.default for field in dataclasses.fields(schema)}
    fields: list[Any] = []
    for name, kind, option in declared(schema):
        more: dict[str, Any] = {"parse": False} if option.python else {}
        if kind in (int, int | None):
            more["converter"] = whole
        annotated = Annotated[kind, option, parameter(option, defaults[name], **more)]  # type: ignore[valid-type]
        fields.append((name, annotated, dataclasses.field(default=defaults[name])))
    made = dataclasses.make_dataclass(schema.__name__, fields, bases=(schema,), frozen=True, kw_only=True)
    made.__module__ = __name__  # cyclopts takes a class of the module `types` for one of Python's own
    return Parameter(name="*")(made)


if TYPE_CHECKING:
    DataArguments = DataOptions
    SetArguments = SetOptions
    Arguments = Options
    RunArguments = RunOptions
else:
    DataArguments, SetArguments = on_command_line(DataOptions), on_command_line(SetOptions)
    Arguments, RunArguments = on_command_line(Options), on_command_line(RunOptions)

USUAL_DATA, USUAL_SET, USUAL, USUAL_RUN = DataArguments(), SetArguments(), Arguments(), RunArguments()
"""The groups where nothing was given."""

BUDGET, RESUME = parameter(BUDGET_OPTION), parameter(RESUME_OPTION, False)
_HELP = {name: option.help for schema in (DataOptions, RunOptions) for name, _, option in declared(schema)}
CONFIG_HELP, CACHE_HELP, FIT_HELP, SKIP_UNREADABLE_HELP = (
    _HELP[name] for name in ("config", "cache", "fit", "skip_unreadable")
)


def spelt(name: str) -> str:
    """An option as it is written on the command line."""
    for schema in (DataOptions, Options, RunOptions):
        for known, _, option in declared(schema):
            if known == name and option.names:
                return option.names[0]
    return "--" + name.replace("_", "-")


def check(*groups: Any) -> None:
    """Refuse what is out of bounds, by the name it has on the command line."""
    for group in groups:
        checked(group, spell=spelt)


def kept(*groups: Any) -> dict[str, Any]:
    """The options that make a run what it is, as `config.json` keeps them."""
    merged: dict[str, Any] = {}
    for group in groups:
        merged |= {field.name: getattr(group, field.name) for field in dataclasses.fields(group)}
    return {name: value for name, value in merged.items() if name not in NOT_KEPT}


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


def read_config(path: Path, commands: Sequence[str], *, remedy: str = "rename it there") -> dict[str, Any]:
    """What a configuration file says of a command: its table in TOML, or the whole of a run's config.json.

    `remedy` is what to do about an option that has another name by now.
    """
    if path.is_dir():
        path = path / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"`--config` {path} does not exist; give a TOML file or a run's config.json")
    if path.suffix == ".json":
        return _of_run(path, commands, remedy)
    try:
        table: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"`--config` {path} is not readable TOML: {error}") from None
    for command in commands:
        table = table.get(command, {})
        if not isinstance(table, dict):
            raise ValueError(f"`--config` {path}: {command} must be a table, [{'.'.join(commands)}]")
    return _current({name: value for name, value in table.items() if not isinstance(value, dict)}, path, remedy)


def _current(table: dict[str, Any], path: Path, remedy: str) -> dict[str, Any]:
    """The table, if no option in it has another name by now."""
    for before, now in renamed(Options).items():
        for name, new in ((before, now), (before.replace("_", "-"), now.replace("_", "-"))):
            if name in table:
                raise ValueError(f"{path}: the option {name!r} is now called {new!r}; {remedy}")
    return table


def _of_run(path: Path, commands: Sequence[str], remedy: str) -> dict[str, Any]:
    config = read_json(path)
    if not isinstance(config, dict):
        raise ValueError(f"`--config` {path} is not a run's config.json")
    command = config.pop("command", None)
    if command is not None and [command] != list(commands):
        raise ValueError(f"`--config` {path} is of `kip {command}`; use it with that command")
    config.pop("version", None)
    left_out = {name for name, _, option in declared(Options) if option.python}
    kept = {name: value for name, value in config.items() if value is not None and name not in left_out}
    return _current(kept, path, remedy)
