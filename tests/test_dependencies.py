"""Every third-party module that the package imports is declared in pyproject.toml, and every declared one is used."""

import ast
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {"pillow": "PIL", "scikit-learn": "sklearn"}
"""Distributions whose module has another name."""


def imported(folder):
    """The top-level modules that files below `folder` import, wherever in them; those used by strings not included."""
    found = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.partition(".")[0])
    return found


def modules(requirements):
    names = (re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower() for requirement in requirements)
    return {MODULES.get(name, name) for name in names}


def test_imports_and_declared_dependencies_are_the_same():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    needed = imported(ROOT / "src" / "kip") - set(sys.stdlib_module_names) - {"kip"}
    required = modules(project["dependencies"])
    optional = modules(requirement for name, extra in extras.items() if name != "dev" for requirement in extra)
    assert needed - required - optional == set(), "imported, not declared"
    assert (required | optional) - needed == set(), "declared, not imported"


def test_what_the_tests_need_of_the_extras_is_declared_for_development():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for name, extra in extras.items():
        assert name == "dev" or modules(extra) <= modules(extras["dev"])
