"""A module imports only from rows above its own, and only some rows touch the disk, the clock or the terminal."""

from __future__ import annotations

import ast
import copy
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import kip
from kip.artefact import DistilledSet

SOURCE = Path(kip.__file__).parent
# From the bottom up; a row may import the rows before it, and a folder its own modules.
ROWS = [
    "_version",
    "files",
    "choices",
    "options",
    "defaults",
    "machine",
    "timing",
    "threads",
    "sets",
    "kernels",
    "execution",
    "gram_cache",
    "krr",
    "gradients",
    "conjugate_gradients",
    "label_solver",
    "sampling",
    "corruption",
    "epsilon",
    "algorithm",
    "data",
    "gallery",
    "artefact",
    "task",
    "plan",
    "learning",
    "api",
    "checkpoint",
    "runs",
    "recording",
    "nets",
    "baselines",
    "paper",
    "report",
    "cli",
]
PURE = [
    "sets",
    "kernels",
    "execution",
    "krr",
    "gradients",
    "conjugate_gradients",
    "label_solver",
    "sampling",
    "corruption",
    "epsilon",
    "algorithm",
    "plan",
]
IMPURE_IMPORTS = {"datetime", "io", "logging", "pathlib", "shutil", "subprocess", "sys", "tempfile", "time"}
IMPURE_CALLS = {"input", "open", "print"}
MODULES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def row(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported_rows(path: Path) -> Iterator[tuple[str, int]]:
    """Rows of the package that a module imports from, at whatever depth, with the line."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            names = [f"{node.module}.{alias.name}" if node.module == "kip" else node.module for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        for name in names:
            parts = str(name).split(".")
            if parts[0] == "kip":
                yield (parts[1] if len(parts) > 1 else "__init__"), node.lineno


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_come_from_rows_above(path: Path) -> None:
    mine = row(path)
    assert mine in ROWS, f"give {mine!r} its row in this test and in the design"
    for other, line in imported_rows(path):
        # the root only forwards names, so importing it would hide what is used
        assert other in ROWS, f"{path.name}:{line} imports kip.{other}, which has no row"
        below = other == mine and path.parent != SOURCE
        assert below or ROWS.index(other) < ROWS.index(mine), f"{mine}:{line} must not import {other}"


def test_kernels_know_only_sets_and_data_only_sets_files_and_the_machine() -> None:
    for name, allowed in (
        ("kernels", {"kernels", "sets", "threads"}),
        ("data", {"data", "sets", "files", "machine", "threads"}),
    ):
        for path in (SOURCE / name).rglob("*.py"):
            assert {other for other, _ in imported_rows(path)} <= allowed, path


@pytest.mark.parametrize("path", [p for p in MODULES if row(p) in PURE], ids=lambda p: str(p.relative_to(SOURCE)))
def test_algorithms_touch_neither_disk_nor_clock_nor_terminal(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            assert not {alias.name.split(".")[0] for alias in node.names} & IMPURE_IMPORTS, f"line {node.lineno}"
        elif isinstance(node, ast.ImportFrom):
            assert str(node.module).split(".")[0] not in IMPURE_IMPORTS, f"line {node.lineno}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in IMPURE_CALLS, f"line {node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_a_module_says_what_lives_in_it(path: Path) -> None:
    assert ast.get_docstring(tree(path)), "the first line says what lives here"


def test_the_inverse_has_one_home() -> None:
    """No module but `krr` inverts, factorises by Cholesky or solves a full linear system."""
    words = {"inv", "pinv", "pinvh", "cholesky", "cho_factor", "cho_solve", "solve"}
    for path in MODULES:
        if row(path) in PURE and row(path) != "krr":
            for node in ast.walk(tree(path)):
                if isinstance(node, ast.Attribute) and node.attr in words:
                    assert "linalg" not in ast.unparse(node), f"{path.name}:{node.lineno} {ast.unparse(node)}"


def test_nothing_switches_jax_to_64_bits_globally() -> None:
    for path in MODULES:
        text = path.read_text(encoding="utf-8")
        assert "jax_enable_x64" not in text, path


def array_holders() -> list[type]:
    """Every dataclass of the package with a field that holds arrays, alone or among others."""
    names = [path.relative_to(SOURCE.parent).with_suffix("").as_posix().replace("/", ".") for path in MODULES]
    modules = [importlib.import_module(name.removesuffix(".__init__")) for name in names if "__main__" not in name]
    owned = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and dataclasses.is_dataclass(value) and value.__module__ == module.__name__
    }
    held = [cls for cls in owned if any("Array" in f or "ndarray" in f for f in annotations(cls).values())]
    return sorted(held, key=lambda cls: (cls.__module__, cls.__name__))


def annotations(cls: type) -> dict[str, str]:
    """The fields' annotations as text, those of functions left out."""
    return {f.name: str(f.type) for f in dataclasses.fields(cls) if not str(f.type).startswith("Callable")}


def filled(cls: type) -> object:
    """An instance with an array in each field that may hold one, past the checks of its constructor."""
    if cls is DistilledSet:
        x, y = np.random.default_rng(0).normal(size=(20, 3)), [0, 1] * 10
        return kip.label_solve(x, y, size=4, corruption=0.5)
    made = object.__new__(cls)
    for name, annotation in annotations(cls).items():
        holds = "Array" in annotation or "ndarray" in annotation
        object.__setattr__(made, name, np.arange(3.0) if holds else None)
    return made


@pytest.mark.parametrize("cls", array_holders(), ids=lambda cls: f"{cls.__module__}.{cls.__name__}")
def test_what_holds_arrays_can_be_compared(cls: type) -> None:
    """Compared as dataclasses are by default, arrays raise: their truth value is ambiguous."""
    one = filled(cls)
    other = copy.deepcopy(one)
    assert (one == other) in (True, False)
    assert one == one
