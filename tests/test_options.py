"""The schema of options: complete, checked in one line, and the signature of the library's functions."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kip
from kip import choices
from kip.options import (
    DataOptions,
    Options,
    RunOptions,
    SetOptions,
    checked,
    declared,
    documented,
    given,
    renamed,
    unknown,
)

SCHEMAS = (DataOptions, Options, RunOptions)
EVERY = [(schema, name, option) for schema in SCHEMAS for name, _, option in declared(schema)]


@pytest.mark.parametrize(("schema", "name", "option"), EVERY, ids=[name for _, name, _ in EVERY])
def test_every_option_has_help_a_group_and_a_default_that_is_said(schema, name, option) -> None:
    assert re.fullmatch(r"\S.*\.", option.help), "a sentence"
    assert option.group in choices.GROUPS
    default = {field.name: field.default for field in dataclasses.fields(schema)}[name]
    assert (option.none is not None) == (default is None), "what None stands for is said where None is the default"


def test_names_are_unique_and_the_defaults_are_valid() -> None:
    names = [name for _, name, _ in EVERY]
    assert len(names) == len(set(names))
    for schema in (*SCHEMAS, SetOptions):
        assert checked(schema()) == schema()


BAD = [
    ("size", 0, "at least 1"),
    ("size", 2.0, "a whole number"),
    ("size", "ten", "a whole number"),
    ("size", True, "a whole number"),
    ("steps", 0, "at least 1"),
    ("seed", -1, "at least 0"),
    ("seed", None, "a whole number"),
    ("ridge", -1e-9, "at least 0"),
    ("ridge", float("nan"), "a finite number"),
    ("ridge", "1", "a finite number"),
    ("ridge", True, "a finite number"),
    ("learning_rate", 0.0, "positive"),
    ("learning_rate", float("inf"), "a finite number"),
    ("corruption", 1.0, "at least 0 and below 1"),
    ("validation", -0.1, "at least 0 and below 1"),
    ("labels", "solve", "one of auto, fixed, learned, solved"),
    ("engine", "cuda", "one of jax, numba"),
    ("kind", 3, "one of digits, photos, images, vectors"),
    ("kernel", 3, "a string"),
    ("start", Path("run"), "a string"),
    ("learn_kernel", 1, "true or false"),
    ("evaluate_every", 0, "at least 1"),
]


@pytest.mark.parametrize(("name", "value", "needed"), BAD)
def test_a_bad_value_is_one_line_that_names_the_option(name: str, value: object, needed: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"`{name}` must be {needed}; got {value!r}")) as caught:
        checked(Options(**{name: value}))
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=f"^`--{name}` must be"):
        checked(Options(**{name: value}), spell=lambda name: f"--{name}")


def test_every_number_has_a_bound() -> None:
    unbounded = []
    for schema in SCHEMAS:
        for name, kind, option in declared(schema):
            if kind in (int, float, int | None, float | None):
                try:
                    checked(schema(**{name: -1}))
                    unbounded.append(name)
                except ValueError:
                    assert option.bounds(-1)
    assert unbounded == []


def test_numpy_numbers_are_taken_as_plain_ones(tmp_path: Path) -> None:
    options = checked(
        Options(size=np.int64(3), steps=np.uint8(2), ridge=np.float32(0.5), learning_rate=np.float64(0.1))
    )
    assert json.loads(json.dumps(dataclasses.asdict(options)))["size"] == 3
    for name, kind in {"size": int, "steps": int, "ridge": float, "learning_rate": float}.items():
        assert type(getattr(options, name)) is kind
    x, y = np.random.default_rng(0).normal(size=(30, 4)), np.arange(30) % 3
    small = kip.distill(x, y, size=np.int64(3), steps=np.int32(2), seed=np.uint8(1))
    assert kip.load(small.save(tmp_path / "set")) == small == kip.distill(x, y, size=3, steps=2, seed=1)


def test_an_unknown_option_suggests_the_nearest_and_a_renamed_one_says_its_new_name() -> None:
    assert unknown("learning_rat", Options) == "did you mean 'learning_rate'?"
    assert unknown("zzzz", SetOptions).startswith("the options are size, kernel, ridge")
    assert renamed(Options) == {"judge_every": "evaluate_every", "judge_targets": "evaluate_targets"}
    x, y = np.eye(4), [0, 0, 1, 1]
    for wrong, words in {
        "sise": "did you mean 'size'",
        "judge_every": "'judge_every' is now called 'evaluate_every'",
    }.items():
        with pytest.raises(TypeError, match=rf"^distill\(\) got an unexpected argument '{wrong}'; {words}"):
            kip.distill(x, y, **{wrong: 2})
    with pytest.raises(TypeError, match=r"^label_solve\(\) got an unexpected argument 'seeds'; did you mean 'seed'"):
        kip.label_solve(x, y, size=2, seeds=2)
    assert given(Options, {"size": 5}, "distill") == Options(size=5)


@pytest.mark.parametrize(("function", "schema"), [(kip.distill, Options), (kip.label_solve, SetOptions)])
def test_the_signature_has_every_option_with_its_default(function, schema) -> None:
    parameters = inspect.signature(function).parameters
    assert not [each for each in parameters.values() if each.kind is inspect.Parameter.VAR_KEYWORD]
    for field in dataclasses.fields(schema):
        assert parameters[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[field.name].default == field.default, field.name
    assert list(parameters)[:2] == ["x", "y"]


@pytest.mark.parametrize(("function", "schema"), [(kip.distill, Options), (kip.label_solve, SetOptions)])
def test_help_holds_every_option(function, schema) -> None:
    said = inspect.getdoc(function)
    assert documented(schema) in said
    for name, _, option in declared(schema):
        assert f"  {name}: {option.help} (default: " in said


def test_the_schema_imports_nothing_that_computes() -> None:
    code = 'import sys, kip.options; assert not {"jax", "numpy", "scipy", "numba"} & set(sys.modules)'
    subprocess.run([sys.executable, "-c", code], check=True)
