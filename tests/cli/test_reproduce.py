"""`kip reproduce`: lists, runs a cell and writes it down, says where it stands, refuses what is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from kip.cli import main, progress
from kip.cli.progress import duration
from kip.files import read_json, write_json
from kip.paper import costs, recipes, store, works

TINY = recipes.Recipe(
    id="tiny",
    title="Tiny",
    cells=(
        recipes.Cell(id="tiny/rbf-10", work=works.Subset(data="digits", kernel="rbf", size=10, seeds=(0, 1))),
        recipes.Cell(id="tiny/kip-10", work=works.Kip(data="digits", kernel="rbf", size=10, steps=5), setting="ours"),
    ),
)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    real = recipes.recipes()
    monkeypatch.setattr(recipes, "recipes", lambda: (*real, TINY))


def run(folder: Path, *tokens: str) -> int:
    return main(["reproduce", *tokens, "--results", str(folder / "results"), "--work", str(folder / "work")])


def test_without_a_name_the_recipes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    out = capsys.readouterr().out
    assert all(each.id in out for each in recipes.recipes())


@pytest.mark.usefixtures("tiny")
def test_a_cell_is_run_written_down_and_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "tiny", "--cells", "rbf-10") == 0
    assert "tiny/rbf-10 (paper): " in capsys.readouterr().out
    (record,) = store.read(tmp_path / "results", "tiny")
    assert record["seeds"] == [0, 1]
    assert len(record["accuracies"]) == 2
    assert record["measured"]["mean"] == pytest.approx(sum(record["accuracies"]) / 2, abs=1e-3)
    assert (tmp_path / "results" / "README.md").is_file()
    assert run(tmp_path, "tiny", "--setting", "paper") == 0
    assert "1 of 1 cells have a result" in capsys.readouterr().out
    for outcome in (tmp_path / "work").rglob("outcome.json"):
        write_json(outcome, {**read_json(outcome), "accuracy": 0.0})
    assert run(tmp_path, "tiny", "--setting", "paper", "--again") == 0
    _, anew = store.read(tmp_path / "results", "tiny")
    assert anew["accuracies"] == record["accuracies"]  # measured, not read


@pytest.mark.usefixtures("tiny")
def test_a_cell_measured_with_other_settings_is_measured_again(tmp_path: Path) -> None:
    assert run(tmp_path, "tiny", "--cells", "rbf-10") == 0
    (record,) = store.read(tmp_path / "results", "tiny")
    record["work"]["kernel"] = "fc1"  # as an older recipe may have had it
    write_json(tmp_path / "results" / "tiny.json", [record])
    assert run(tmp_path, "tiny", "--cells", "rbf-10") == 0
    assert [each["work"]["kernel"] for each in store.read(tmp_path / "results", "tiny")] == ["fc1", "rbf"]


def test_the_status_of_a_recipe_runs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    assert run(tmp_path, "mnist-baselines", "--status") == 0
    out = capsys.readouterr().out
    assert "mnist-baselines" in out
    assert "mnist-subsets" not in out
    assert not (tmp_path / "work").exists()


@pytest.mark.usefixtures("tiny")
def test_a_learning_cell_from_beginning_to_end(tmp_path: Path) -> None:
    assert run(tmp_path, "tiny", "--setting", "ours", "--time-budget", "5m") == 0
    (record,) = store.read(tmp_path / "results", "tiny")
    assert record["details"]["steps"] == [5]
    assert record["details"]["options"]["labels"] == "solved"  # what "auto" chose
    assert 10 < record["measured"]["mean"] <= 100


@pytest.mark.usefixtures("tiny")
def test_the_cells_of_a_recipe_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str], wide: None) -> None:
    assert run(tmp_path, "tiny", "--list") == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if "digits" in line]
    assert len(rows) == 2
    assert all(word in rows[0] for word in ("rbf-10", "paper", "KRR on 10 natural images of digits, rbf"))
    assert all(word in rows[1] for word in ("kip-10", "ours", "KIP, 10 images of digits, rbf"))
    assert "no rates" in out
    assert list(tmp_path.iterdir()) == []  # nothing is measured or written


def test_listed_cells_have_published_numbers_and_predicted_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    (cell,) = recipes.cells("mnist-baselines", ["rbf-kip-100"])
    costs.write(tmp_path / "results", dict.fromkeys(costs.needed(cell.work), 1e-9))
    assert run(tmp_path, "mnist-baselines", "--list", "--setting", "paper") == 0
    out = capsys.readouterr().out
    (row,) = (line for line in out.splitlines() if " rbf-kip-100 " in line)
    assert "97.31±0.09" in row
    assert duration(costs.predicted(cell.work, costs.read(tmp_path / "results")) or 0) in row
    assert " ours " not in out


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.console, "_width", 160)


def test_every_cell_of_every_recipe_can_be_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wide: None
) -> None:
    assert run(tmp_path, "all", "--list") == 0
    out = capsys.readouterr().out
    assert all(cell.id in out for cell in recipes.cells("all"))


def test_status_without_a_results_folder_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--status") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "--results" in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tokens", [["--status"], ["mnist-baselines", "--cells", "rbf-kip-10"]])
def test_a_readme_of_ones_own_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: list
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "README.md").write_text("# My results\n")
    assert run(tmp_path, *tokens) == 2
    assert "README.md" in capsys.readouterr().err
    assert (tmp_path / "results" / "README.md").read_text() == "# My results\n"


def test_status_counts_and_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "results").mkdir()
    assert run(tmp_path, "--status") == 0
    out = capsys.readouterr().out
    assert str(sum(len(each.cells) for each in recipes.recipes())) in out  # all of them, not run
    assert "not run" in out
    assert (tmp_path / "results" / "README.md").is_file()


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (["mnist-baseline"], "try mnist-baselines"),
        (["mnist-baselines", "--cells", "rbf-kip-11"], "try rbf-kip-10"),
        (["--cells", "rbf-kip-10"], "needs the recipe"),
        (["--time-budget", "2h"], "needs the recipe"),
        (["--list"], "needs the recipe"),
        (["mnist-baselines", "--setting", "theirs"], "paper, ours or variant"),
        (["all", "--time-budget", "soon"], "--time-budget"),
    ],
)
def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], tokens: list, words: str) -> None:
    assert run(tmp_path, *tokens) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert words in error
