"""The sentences under the table: when they are said, and that what they advise is an option and not already given."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kip import conjugate_gradients
from kip.cli import cautions, main

USUAL = 600


def said(
    *,
    accuracy: float = 0.9,
    baselines: dict[str, dict[str, Any]] | None = None,
    learned: bool = True,
    steps: int = USUAL,
    largest_label: float = 1.0,
    idle_points: int = 0,
    **config: Any,
) -> list[str]:
    metrics = {
        "test_accuracy": accuracy,
        "baselines": baselines or {},
        "size": 30,
        "largest_label": largest_label,
        "idle_points": idle_points,
        "steps": steps,
    }
    used = {"labels": "solved", "damping": 1e-9, "learning_rate": 0.2, **config}
    return cautions.of_run(metrics, used, USUAL if learned else None)


def test_a_good_run_needs_no_word() -> None:
    assert said(baselines={"kmeans": {"test_accuracy": 0.9}}) == []


def test_the_best_baseline_that_does_better_is_named_with_what_to_try() -> None:
    baselines = {
        "random_subset": {"test_accuracy": 0.8, "draws": 20},
        "kmeans": {"test_accuracy": 0.9204},
        "full": {"test_accuracy": 0.99},
    }
    assert said(accuracy=0.8496, baselines=baselines) == [
        "k-means centroids of the same size do better (92.0 % against 85.0 %); "
        "try --damping 0.0001, --labels fixed or a smaller --learning-rate (now 0.2)"
    ]


def test_a_mean_over_draws_is_said_to_be_one() -> None:
    (sentence,) = said(accuracy=0.85, baselines={"label_solve": {"test_accuracy": 0.94, "draws": 20}})
    assert "random subsets with solved labels of the same size do better (94.0 % on average over 20 draws" in sentence


def test_a_short_run_that_is_beaten_is_told_to_go_on_longer() -> None:
    (sentence,) = said(accuracy=0.5, baselines={"kmeans": {"test_accuracy": 0.9}}, steps=20)
    assert sentence.endswith("try more --steps (this run made 20; the default is 600)")


def test_solved_labels_of_natural_points_are_not_compared_with_other_draws_of_the_same() -> None:
    others = {"label_solve": {"test_accuracy": 0.95}, "kmeans": {"test_accuracy": 0.8}}
    assert said(baselines=others, learned=False) == []
    (sentence,) = said(baselines={"kmeans": {"test_accuracy": 0.95}}, learned=False)
    assert "`kip distill`, which learns the points too" in sentence


def test_labels_far_beyond_one_are_named() -> None:
    (sentence,) = said(largest_label=185.7)
    assert sentence.startswith("labels reach 186 in magnitude where a one-hot label is 1")
    assert sentence.endswith("try --damping 0.0001 or --labels fixed")
    assert said(largest_label=cautions.LARGE) == []
    assert said(largest_label=185.7, labels="fixed") == []  # they are those of the data


def test_idle_points_are_counted_by_label_and_by_coefficient() -> None:
    y = np.ones((5, 2))
    alpha = np.ones((5, 2))
    assert cautions.idle_points(y, [alpha]) == 0
    y[0], alpha[1] = 1e-4, 0.0
    assert cautions.idle_points(y, [alpha]) == 2
    assert cautions.idle_points(y, [alpha, np.ones((5, 2))]) == 1  # the second kernel of a family still uses point 1


def test_idle_points_are_named_with_what_to_try() -> None:
    (sentence,) = said(idle_points=9, learning_rate=1.0)
    assert sentence.startswith("9 of 30 support points no longer take part")
    assert sentence.endswith("try a smaller --learning-rate (now 1), --damping 0.0001 or --labels fixed")
    (sentence,) = said(idle_points=9, learned=False)
    assert "--size 21" in sentence


@pytest.mark.parametrize("labels", ["fixed", "learned", "solved"])
@pytest.mark.parametrize("damping", [1e-9, 1e-2])
def test_what_is_already_given_is_not_advised(labels: str, damping: float) -> None:
    text = " ".join(
        said(
            accuracy=0.1,
            baselines={"kmeans": {"test_accuracy": 0.9}},
            largest_label=99.0,
            idle_points=3,
            labels=labels,
            damping=damping,
        )
    )
    assert ("--labels fixed" in text) == (labels != "fixed")
    assert ("--damping" in text) == (labels == "solved" and damping < cautions.DAMPING)


def test_a_full_model_that_did_not_converge_is_named() -> None:
    assert said(baselines={"full": {"test_accuracy": 0.9}}) == []
    (sentence,) = said(baselines={"full": {"test_accuracy": 0.9, "converged": False, "residual": 0.0213}})
    assert sentence == (
        "the model on the full training set did not converge (residual 2.1e-02): ε is relative to that model; "
        "try a larger --ridge, or --dtype float64"
    )


@pytest.mark.parametrize("iterations", [1, 500])
def test_a_run_says_whether_its_full_model_converged(
    iterations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit = functools.partial(conjugate_gradients.fit, most_iterations=iterations, rank=20)
    for place in ("kip.cli.measure", "kip.conjugate_gradients"):  # the first imports from the second, unpatched
        monkeypatch.setattr(f"{place}.DIRECT_LIMIT", 100)
    monkeypatch.setattr(conjugate_gradients, "fit", fit)
    command = ["distill", "--targets", "200", "--ridge", "1e-2", "--steps", "1", "--draws", "1", "--full"]
    assert main([*command, "--out", str(tmp_path / "run")]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    full, notes = metrics["baselines"]["full"], [note for note in metrics["warnings"] if "did not converge" in note]
    assert metrics["epsilon_weak"] is not None
    if iterations > 1:
        assert set(full) == {"test_accuracy"}
        assert notes == []
        return
    assert full["converged"] is False
    assert full["residual"] > conjugate_gradients.DEFAULT_TOLERANCE
    assert f"(residual {full['residual']:.1e})" in notes[0]
    assert f"note: {notes[0]}" in capsys.readouterr().out


def test_every_option_that_is_advised_exists(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(
        sentence
        for learned in (True, False)
        for steps in (1, USUAL)
        for sentence in said(
            accuracy=0.1,
            baselines={"kmeans": {"test_accuracy": 0.9}, "full": {"test_accuracy": 0.9, "residual": 0.1}},
            largest_label=99.0,
            idle_points=3,
            learned=learned,
            steps=steps,
        )
    )
    assert main(["distill", "--help"]) == 0
    known = capsys.readouterr().out
    assert all(option in known for option in re.findall(r"--[a-z-]+", text))
