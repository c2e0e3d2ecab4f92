"""Claims put to the test: mean accuracies of trials, held against rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kip.paper.running.base import Result, most_cores
from kip.paper.works import Comparison, Rule

RELATIONS = ("above", "alike", "share")


def run(work: Comparison, results: Mapping[str, Result]) -> Result:
    """The verdict on a claim, with the accuracies of every trial."""
    rules = [
        {
            "statement": rule.statement,
            "holds": _holds(rule, _mean(results, rule.left), _mean(results, rule.right)),
            "clear": is_clear(results[rule.left].accuracies, results[rule.right].accuracies),
        }
        for rule in work.rules
    ]
    trials = {
        name: {"mean": result.mean, "deviation": result.deviation, "accuracies": [100 * a for a in result.accuracies]}
        for name, result in results.items()
    }
    deviations = tuple(dict.fromkeys(word for result in results.values() for word in result.deviations))
    details = {"verdict": verdict([bool(rule["holds"]) for rule in rules]), "rules": rules, "trials": trials}
    cores = most_cores({"cores": result.cores} for result in results.values())
    return Result((), sum(result.seconds for result in results.values()), deviations, details, cores)


def verdict(holds: list[bool]) -> str:
    """What the rules come to together.

    >>> verdict([True, False])
    'holds in part'
    """
    return "holds" if all(holds) else "holds in part" if any(holds) else "does not hold"


def is_clear(left: Sequence[float], right: Sequence[float]) -> bool | None:
    """Whether two means differ by more than two standard errors; None where a trial has a single run.

    >>> is_clear([0.90, 0.91, 0.92], [0.80, 0.81, 0.82]), is_clear([0.90, 0.94], [0.91, 0.92]), is_clear([0.9], [0.8])
    (True, False, None)
    """
    if min(len(left), len(right)) < 2:
        return None
    error = np.sqrt(np.var(left, ddof=1) / len(left) + np.var(right, ddof=1) / len(right))
    return bool(abs(np.mean(left) - np.mean(right)) > 2 * error)


def _mean(results: Mapping[str, Result], name: str) -> float:
    mean = results[name].mean
    assert mean is not None
    return mean


def _holds(rule: Rule, left: float, right: float) -> bool:
    if rule.relation == "above":
        return left > right + rule.slack
    if rule.relation == "alike":
        return abs(left - right) <= rule.slack
    return left >= rule.slack / 100 * right
