"""What a package index and a type checker are told about the distribution."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_distribution_is_kip_distill_and_the_command_is_kip(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["name"] == "kip-distill"
    assert pyproject["project"]["scripts"] == {"kip": "kip.cli:main"}
    assert pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/kip"]


def test_no_text_advises_to_install_the_other_project_called_kip() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    extra = "kip" + "["
    wrong = [
        path
        for path in pages
        if any(words in path.read_text(encoding="utf-8") for words in (f"install {extra}", f"install '{extra}"))
    ]
    assert wrong == []


def test_the_metadata_name_home_licence_and_python_versions(pyproject: dict[str, Any]) -> None:
    project = pyproject["project"]
    assert project["license"] == "Apache-2.0"
    assert all((ROOT / name).is_file() for name in project["license-files"])
    assert {"Homepage", "Repository"} <= set(project["urls"])
    assert all(url.startswith("https://") for url in project["urls"].values())
    named = {words.rpartition(" ")[2] for words in project["classifiers"] if "Python :: 3." in words}
    assert named == {"3.11", "3.12", "3.13"}
    assert all(version in SpecifierSet(project["requires-python"]) for version in named)
    for requirement in project["dependencies"]:
        assert Requirement(requirement).url is None  # a package index refuses direct references


def test_the_package_says_that_it_is_typed(pyproject: dict[str, Any]) -> None:
    assert "Typing :: Typed" in pyproject["project"]["classifiers"]
    assert files("kip").joinpath("py.typed").is_file()


def test_the_release_is_tried_by_ci() -> None:
    assert ".ci/release" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert (ROOT / ".ci" / "release").stat().st_mode & 0o111
