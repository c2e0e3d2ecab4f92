"""The paper's kernel-transfer experiment on CIFAR-10: images learned with one kernel or with all, tested under twelve.

    python benchmarks/kernel_transfer.py [--sizes 10,100] [--steps 500] [--runs runs/kernels] [--out results/transfer]

Runs `kip distill` for each of FC1-3 and Conv1-3 (standard parameterisation, widths 1024 and 128) and for all six,
sampled per step, with labels fixed and small target batches, then `kip evaluate` under the six as NTK and as NNGP. A
run that exists is not repeated. Writes every accuracy, and the mean over the twelve of each set.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from kip import __version__
from kip.cli import main as kip

KERNELS = [*(f"fc{depth}:standard=1024" for depth in (1, 2, 3)), *(f"conv{depth}:standard=128" for depth in (1, 2, 3))]


def distilled(folder: Path, kernel: str, size: int, steps: int) -> list[str]:
    """The command of one set; run, unless it was."""
    command = ["distill", "--data", "cifar10", "--size", str(size), "--kernel", kernel, "--for", "networks"]
    command += ["--steps", str(steps), "--draws", "0", "--validation", "0.1", "--out", str(folder)]
    if not (folder / "metrics.json").exists() and kip(command):
        raise SystemExit(f"kip {' '.join(command)} failed")
    return command


def experiment(size: int, steps: int, runs: Path) -> dict:
    families = {**{kernel.partition(":")[0]: kernel for kernel in KERNELS}, "all": "+".join(KERNELS)}
    commands = {name: distilled(runs / f"{size}-{name}", kernel, size, steps) for name, kernel in families.items()}
    folders = [runs / f"{size}-{name}" for name in families]
    if kip(["evaluate", *map(str, folders), "--kernels", ",".join(KERNELS), "--picture", str(runs / f"{size}.png")]):
        raise SystemExit("kip evaluate failed")
    found = {}
    for name, folder in zip(families, folders, strict=True):
        accuracies = json.loads((folder / "evaluate.json").read_text())["test_accuracy"]
        config = json.loads((folder / "config.json").read_text())
        found[name] = {
            "mean": float(np.mean(list(accuracies.values()))),
            "test_accuracy": accuracies,
            "command": "kip " + " ".join(commands[name]),
            "batch": config["batch"],
            "seed": config["seed"],
        }
    singles = [found[name]["mean"] for name in families if name != "all"]
    return {"steps": steps, "all_beats_every_single": found["all"]["mean"] > max(singles), "sets": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="10,100")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--runs", type=Path, default=Path("runs/kernels"))
    parser.add_argument("--out", type=Path, default=Path("results/transfer"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for size in map(int, arguments.sizes.split(",")):
        results = {"kip": __version__, "size": size, **experiment(size, arguments.steps, arguments.runs)}
        (arguments.out / f"kernels-cifar10-{size}.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
