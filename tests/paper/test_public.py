"""The recipes are a client of the package's public names: nothing private, and nothing of what kernels are made of."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kip.paper

FOLDER = Path(kip.paper.__file__).parent
MODULES = sorted(FOLDER.rglob("*.py"))
INTERNAL = ("kip.cli", "kip.kernels.inner", "kip.kernels.planes", "kip.kernels.lanes", "kip.execution.device")
"""What a name must not begin with: the command line, and modules that other modules are made of."""


def imported(path: Path) -> Iterator[str]:
    """Every name of the package that a module imports, at whatever depth, in full."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_recipes_import_public_names_only(path: Path) -> None:
    for name in imported(path):
        if name.startswith("kip.") and name != "kip._version.__version__":  # which every module writes down
            assert not any(part.startswith("_") for part in name.split(".")), name
            assert not name.startswith(INTERNAL), name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_recipes_read_no_private_attribute_of_others(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            assert isinstance(node.value, ast.Name), ast.unparse(node)
            assert node.value.id == "self", ast.unparse(node)


def test_there_is_one_loop() -> None:
    """Steps are taken by `kip.learning`, here too."""
    for path in MODULES:
        assert "algorithm.run(" not in path.read_text(encoding="utf-8"), path
