"""Choose the defaults of `kip.defaults` on a validation split, and write down what was measured.

    python benchmarks/defaults.py [--data mnist,cifar10] [--sizes 10,100] [--seeds 2] [--out results/defaults.json]

A tenth of the training set is held out; the test set is never opened. Every setting of the grid is distilled with RBF
and scored on the held-out part; results are appended as they come, and settings already there are not run again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from kip import __version__, api
from kip import kip as algorithm
from kip.data import load
from kip.krr import accuracy
from kip.stream import coefficients, predict

GRID = {
    "mnist": [
        {"steps": 300, "learning_rate": 0.1, "batch": 6000},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000},
        {"steps": 600, "learning_rate": 0.05, "batch": 6000},
        {"steps": 600, "learning_rate": 0.2, "batch": 6000},
        {"steps": 1000, "learning_rate": 0.2, "batch": 6000},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "augment": "digits"},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "labels": "learned"},
        {"steps": 600, "learning_rate": 0.1, "batch": 6000, "labels": "fixed"},
    ],
    "cifar10": [
        {"steps": 300, "learning_rate": 0.1, "batch": 6000},
        {"steps": 300, "learning_rate": 0.1, "batch": 20000},
        {"steps": 300, "learning_rate": 0.2, "batch": 20000},
        {"steps": 600, "learning_rate": 0.1, "batch": 10000},
        {"steps": 600, "learning_rate": 0.1, "batch": 10000, "augment": "flips"},
        {"steps": 600, "learning_rate": 0.1, "batch": 10000, "labels": "learned"},
    ],
}


def measure(data: str, size: int, setting: dict, seed: int) -> dict:
    dataset = load(data)
    options = api.Options(size=size, seed=seed, validation=0.1, **setting)
    task = api.prepare(dataset.x_train, dataset.y_train, options, kind=dataset.kind)
    start = time.perf_counter()
    state = algorithm.run(task.problem, task.config, algorithm.init(task.problem, task.config, key=seed))
    seconds = time.perf_counter() - start
    small = api.assemble(task, state.best[0])
    (kernel,) = small.kernels
    alpha = coefficients(kernel, small.x, small.y, small.ridge)
    scores = predict(kernel, small.x, alpha, task.validation.x)
    return {
        "data": data,
        "size": size,
        "seed": seed,
        "setting": setting,
        "validation_accuracy": accuracy(scores, np.argmax(task.validation.y, axis=1)),
        "judged_loss": state.best[0].loss,
        "best_step": state.best[0].step,
        "seconds": round(seconds, 1),
        "kip": __version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist,cifar10")
    parser.add_argument("--sizes", default="10,100")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/defaults.json"))
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    done = {(r["data"], r["size"], r["seed"], json.dumps(r["setting"], sort_keys=True)) for r in rows}
    for data in arguments.data.split(","):
        for size in map(int, arguments.sizes.split(",")):
            for setting in GRID[data]:
                for seed in range(arguments.seeds):
                    if (data, size, seed, json.dumps(setting, sort_keys=True)) in done:
                        continue
                    row = measure(data, size, setting, seed)
                    rows.append(row)
                    arguments.out.parent.mkdir(parents=True, exist_ok=True)
                    arguments.out.write_text(json.dumps(rows, indent=1) + "\n")
                    print(
                        f"{data} {size} {setting} seed {seed}: {row['validation_accuracy']:.4f} in {row['seconds']} s"
                    )


if __name__ == "__main__":
    main()
