"""What a measured number comes to beside the published one, and the records it is taken from."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from kip.paper import recipes, status, store, works
from kip.paper.running import Result


def measured(name: str, mean: float, recipe: str = "mnist-baselines") -> store.Record:
    cell = recipes.cells(recipe, [name])[0]
    return store.record(cell, Result((mean / 100,), 3.0, ("fewer steps",)), today=datetime.date(2026, 1, 2))


@pytest.mark.parametrize(
    ("mean", "published", "deviation", "expected"),
    [
        (96.72, 97.31, 0.09, "matches"),  # exactly the deviation and half a point below
        (96.71, 97.31, 0.09, "falls short"),
        (99.9, 97.31, 0.09, "matches"),
        (98.1, 98.6, None, "matches"),
        (98.0, 98.6, None, "falls short"),
    ],
)
def test_arithmetic(mean: float, published: float, deviation: float | None, expected: str) -> None:
    assert status.of_means(mean, published, deviation) == expected


def test_a_record_holds_what_was_asked_for_and_what_came() -> None:
    record = measured("rbf-kip-100", 97.0)
    assert record["published"] == {"mean": 97.31, "deviation": 0.09}
    assert record["measured"] == {"mean": 97.0, "deviation": None}
    assert record["accuracies"] == [97.0]
    assert record["deviates"] == ["one initialisation instead of five", "fewer steps"]
    assert record["command"] == "kip reproduce mnist-baselines --cells rbf-kip-100"
    assert record["date"] == "2026-01-02"
    assert record["work"]["kind"] == "kip"
    assert record["cores"] >= 1
    assert json.loads(json.dumps(record)) == record


def test_records_are_appended_and_the_newest_counts(tmp_path: Path) -> None:
    store.append(tmp_path, [measured("rbf-kip-100", 90.0)])
    store.append(tmp_path, [measured("rbf-kip-100", 97.0), measured("fc1-base", 98.6, "mnist-classification")])
    assert [record["measured"]["mean"] for record in store.read(tmp_path, "mnist-baselines")] == [90.0, 97.0]
    assert store.newest(tmp_path, "mnist-baselines")["mnist-baselines/rbf-kip-100"]["measured"]["mean"] == 97.0
    assert len(store.read(tmp_path, "mnist-classification")) == 1
    assert store.read(tmp_path, "claims") == []


def test_a_record_is_of_its_cell_until_the_recipe_changes() -> None:
    before, after = recipes.cells("mnist-sweep-mse", ["natural-1000-rho0", "natural-1000-rho90"])
    record = store.record(before, Result((0.9,), 3.0))
    assert store.is_of(record, before)
    assert not store.is_of(record, after)
    assert not store.is_of(None, before)
    assert "patience" not in record["work"]  # as in records from before there was one


def test_a_record_with_a_settings_first_name_is_of_its_cell(tmp_path: Path) -> None:
    (cell,) = recipes.cells("mnist-baselines", ["rbf-kip-100"])
    record = measured("rbf-kip-100", 97.0)
    assert record["work"]["evaluate_every"] == 50
    record["details"] = {"options": {"judge_every": 50, "judge_targets": 10_000}}
    record["work"]["judge_every"] = record["work"].pop("evaluate_every")
    assert not store.is_of(record, cell)
    (tmp_path / "mnist-baselines.json").write_text(json.dumps([record]))
    (found,) = store.read(tmp_path, "mnist-baselines")
    assert store.is_of(found, cell)
    assert found["details"]["options"] == {"evaluate_every": 50, "evaluate_targets": 10_000}


def test_a_nested_setting_is_renamed_too() -> None:
    (cell,) = recipes.cells("claims", ["image-init"])
    assert isinstance(cell.work, works.Comparison)
    older = json.loads(json.dumps(works.plain(cell.work)).replace('"evaluate_every"', '"judge_every"'))
    assert older != works.plain(cell.work) == works.renamed(older)


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "claims.json").write_text("{}")
    with pytest.raises(ValueError, match=r"claims\.json is not a list of measured cells"):
        store.read(tmp_path, "claims")


def test_status_of_cells_run_and_not_run(tmp_path: Path) -> None:
    store.append(tmp_path, [measured("rbf-kip-100", 97.0), measured("rbf-kip-10", 80.0)])
    recipe = recipes.recipe("mnist-baselines")
    rates = {"pair myrtle5:nngp mnist": 1e-3, "flop": 1e-11}
    found = status.of_recipe(recipe, tmp_path, rates)
    assert found["mnist-baselines/rbf-kip-100"] == "matches"
    assert found["mnist-baselines/rbf-kip-10"] == "falls short"
    assert found["mnist-baselines/rbf-kip-500"] == "not run"
    assert found["mnist-baselines/myrtle5-nngp-ls-10"] == "not run"  # 35 minutes at that rate
    assert found["mnist-baselines/myrtle5-nngp-ls-10000"] == "out of reach"
    assert found["mnist-baselines/myrtle5-ls-10000"] == "not run"  # nothing is known of its rate
    counts = status.counted(found, recipe.cells, "paper")
    assert (counts["matches"], counts["falls short"]) == (1, 1)
    assert status.counted(found, recipe.cells, "ours") == {"not run": 10}
