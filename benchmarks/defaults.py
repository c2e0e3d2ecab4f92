"""Choose the defaults of `kip.defaults` on a validation split, and write down what was measured.

    python benchmarks/defaults.py [--data mnist,cifar10] [--sizes 10,100] [--seeds 1] [--out results/defaults.json]
    python benchmarks/defaults.py --data cifar10-3x100,cifar10-600,cifar10-rates --sizes 10,30 --seeds 3
    python benchmarks/defaults.py --seeds 0        # only the table of what has been measured

A tenth of the training set is held out, a fifth where few points are learned from; the test set is never opened. Every
setting of the grid is distilled, with RBF where it names no kernel, and scored on the held-out part; results are
appended as they come, and settings already there are not run again. The table at the end has the mean over seeds of
every setting, with the support points that no longer take part, and marks the best of each data set and size. The
second command measures the rate of few photographs.
"""

from __future__ import annotations

import argparse
import itertools
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kip import __version__, learning
from kip.cli.cautions import idle_points
from kip.data import Dataset, load
from kip.files import write_json
from kip.options import Options
from kip.sets import LabelledSet
from kip.task import prepare


@dataclass(frozen=True)
class Case:
    """Data to learn from: a data set, or its first classes only, and how many training points are used."""

    source: str
    classes: int | None = None
    targets: int | None = None
    validation: float = 0.1

    def load(self) -> Dataset:
        """The training images of the classes; the test set is left as it is, and not used."""
        dataset = load(self.source)
        if self.classes is None:
            return dataset
        rows = dataset.y_train < self.classes
        return replace(dataset, x_train=dataset.x_train[rows], y_train=dataset.y_train[rows])


CASES = {
    "mnist": Case("mnist"),
    "cifar10": Case("cifar10"),
    "cifar10-3x100": Case("cifar10", classes=3, targets=300, validation=0.2),
    "cifar10-2x100": Case("cifar10", classes=2, targets=200, validation=0.2),
    "cifar10-3x1000": Case("cifar10", classes=3, targets=3_000, validation=0.2),
    "cifar10-600": Case("cifar10", targets=600, validation=0.2),
    "cifar10-rates": Case("cifar10", validation=0.2),
}


def rates(*values: float, **common: int) -> list[dict]:
    """Settings that differ in the learning rate alone."""
    return [{"learning_rate": value, **common, "augment": "flips"} for value in values]


GRID: dict[tuple[str, int], list[dict]] = {
    ("mnist", 10): [
        {"steps": 600, "learning_rate": 0.05, "batch": 6000},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000},
        {"steps": 600, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "augment": "digits"},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "labels": "learned"},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "labels": "fixed"},
    ],
    ("mnist", 100): [
        {"steps": 600, "learning_rate": 0.1, "batch": 6000},
        {"steps": 600, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.4, "batch": 6000},
        {"steps": 1500, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000, "augment": "digits"},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000, "augment": "digits:0.036"},
    ],
    ("mnist", 500): [
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000, "augment": "digits:0.036"},
    ],
    ("cifar10", 10): [
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "augment": "none"},
        {"steps": 600, "learning_rate": 0.3, "batch": 6000, "augment": "none"},
        {"steps": 600, "learning_rate": 0.3, "batch": 6000, "augment": "flips"},
        {"steps": 600, "learning_rate": 0.3, "batch": 6000, "augment": "photos"},
        {"steps": 600, "learning_rate": 1.0, "batch": 6000, "augment": "flips"},
        {"steps": 600, "learning_rate": 3.0, "batch": 6000, "augment": "flips"},
        {"steps": 600, "learning_rate": 1.0, "batch": 6000, "augment": "photos"},
        {"steps": 1200, "learning_rate": 1.0, "batch": 6000, "augment": "flips"},
        {"steps": 600, "learning_rate": 1.0, "batch": 15000, "augment": "flips"},
    ],
    ("cifar10", 100): [
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "augment": "photos"},
        {"steps": 600, "learning_rate": 0.3, "batch": 6000, "augment": "photos"},
        {"steps": 600, "learning_rate": 1.0, "batch": 6000, "augment": "photos"},
        {"steps": 600, "learning_rate": 1.0, "batch": 6000, "augment": "flips"},
        {"steps": 800, "learning_rate": 0.3, "batch": 6000, "augment": "photos:0.032", "kernel": "fc1"},
        {"steps": 800, "learning_rate": 0.3, "batch": 6000, "augment": "photos", "kernel": "fc1"},
        {"steps": 800, "learning_rate": 1.0, "batch": 6000, "augment": "photos", "kernel": "fc1"},
        {"steps": 800, "learning_rate": 3.0, "batch": 6000, "augment": "photos", "kernel": "fc1"},
        {"steps": 800, "learning_rate": 0.1, "batch": 6000, "augment": "photos", "kernel": "fc1"},
    ],
    **{
        (few, size): rates(0.1, 0.2, 0.3, 0.5, 1.0, steps=600)
        for few in ("cifar10-2x100", "cifar10-3x100", "cifar10-600")
        for size in (10, 30)
    },
    ("cifar10-3x1000", 30): rates(0.5, 1.0, steps=200),
    ("cifar10-rates", 10): rates(0.5, 1.0, steps=200, batch=6000),
    ("cifar10-rates", 30): rates(0.5, 1.0, steps=200, batch=6000),
}
"""Settings by data set and size; what is not said is a default, with labels solved. Kernels are not to be compared with
each other, though the table ranks all settings of a size."""


def measure(data: str, size: int, setting: dict, seed: int) -> dict:
    case = CASES[data]
    dataset = case.load()
    options = Options(
        size=size, seed=seed, validation=case.validation, targets=case.targets, kind=dataset.kind, **setting
    )
    task = prepare(dataset.x_train, dataset.y_train, options)
    learned = learning.learn(task, task.initial())
    small = task.published(learned.checkpoint)
    model = task.model(LabelledSet(small.x, small.y), small.kernels)
    return {
        "data": data,
        "size": size,
        "seed": seed,
        "setting": setting,
        "validation_accuracy": model.accuracy(task.validation.x, task.validation.codes),
        "evaluated_loss": learned.checkpoint.loss,
        "best_step": learned.checkpoint.step,
        "idle_points": idle_points(small.y, model.coefficients),
        "seconds": round(learned.seconds, 1),
        "kip": __version__,
    }


def name(row: dict) -> str:
    return ", ".join(f"{key} {value}" for key, value in row["setting"].items())


def table(rows: list[dict]) -> str:
    """The mean over seeds of every setting, best first within a data set and size."""
    lines = []
    for data, size in dict.fromkeys((row["data"], row["size"]) for row in rows):
        by_setting: dict[str, list[dict]] = {}
        for row in rows:
            if (row["data"], row["size"]) == (data, size):
                by_setting.setdefault(name(row), []).append(row)
        means = {key: np.mean([row["validation_accuracy"] for row in found]) for key, found in by_setting.items()}
        for rank, key in enumerate(sorted(means, key=lambda k: -means[k])):
            found = by_setting[key]
            accuracies = [100 * row["validation_accuracy"] for row in found]
            spread = f" ± {np.std(accuracies, ddof=1):.2f}" if len(found) > 1 else ""
            idle = [row["idle_points"] for row in found if "idle_points" in row]
            without = f", {np.mean(idle):.1f} idle points" if idle else ""
            seconds = np.mean([row["seconds"] for row in found])
            about = f"({len(found)} seeds, {seconds:.0f} s{without})"
            mark = "*" if rank == 0 else " "
            lines.append(f"{mark} {data} {size}: {means[key] * 100:.2f}{spread} %  {about}  {key}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist,cifar10")
    parser.add_argument("--sizes", default="10,100")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/defaults.json"))
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    done = {(r["data"], r["size"], r["seed"], json.dumps(r["setting"], sort_keys=True)) for r in rows}
    wanted = [(d, int(s)) for d in arguments.data.split(",") for s in arguments.sizes.split(",")]
    for (data, size), seed in itertools.product(wanted, range(arguments.seeds)):
        for setting in GRID.get((data, size), []):
            if (data, size, seed, json.dumps(setting, sort_keys=True)) in done:
                continue
            row = measure(data, size, setting, seed)
            rows.append(row)
            write_json(arguments.out, rows)
            print(f"{data} {size}, seed {seed}: {row['validation_accuracy']:.4f} in {row['seconds']} s, {name(row)}")
    print(table(rows))


if __name__ == "__main__":
    main()
