"""The examples in docstrings run and give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import kip

ROOT = Path(kip.__file__).parents[1]
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.joinpath("kip").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_say(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted
    assert not found.failed


def test_every_function_at_the_root_has_an_example() -> None:
    functions = [each for each in (getattr(kip, name) for name in kip.__all__) if callable(each)]
    assert [each.__name__ for each in functions if ">>> " not in (each.__doc__ or "")] == []
