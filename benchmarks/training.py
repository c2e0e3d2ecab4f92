"""Training of networks: seeds together against one after the other, and FC1 here against the same FC1 in PyTorch.

    python benchmarks/training.py [--torch DIR] [--out results/training.json]

Five seeds of FC1 (width 1024, Adam, 100 images of 28×28) are trained vmapped, in turn by one compiled program, and in
turn by five calls; times are taken in turn in one run, after a round that compiles. For PyTorch (2.13.0, CPU) a virtual
environment is made in DIR, on first use, and a process of it trains the same network on the same images, between
rounds of ours; what is compared is images per second, forward and backward.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

import numpy as np

from kip import __version__
from kip.nets.training import Settings, train
from kip.sets import LabelledSet, one_hot

POINTS, SIDE, WIDTH, SEEDS, ROUNDS = 100, 28, 1024, 5, 5
TORCH = "torch==2.13.0"
TORCH_PROGRAM = """
import json, sys, time
import torch
points, side, width, steps = map(int, sys.argv[1:])
torch.manual_seed(0)
torch.set_num_threads(int(__import__("os").cpu_count()))
x, y = torch.randn(points, side * side), torch.arange(points) % 10
net = torch.nn.Sequential(torch.nn.Linear(side * side, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))
optimiser, loss = torch.optim.Adam(net.parameters(), 1e-3), torch.nn.CrossEntropyLoss()
def run(n):
    for _ in range(n):
        optimiser.zero_grad()
        loss(net(x), y).backward()
        optimiser.step()
run(20)
start = time.perf_counter()
run(steps)
print(json.dumps({"seconds": time.perf_counter() - start, "torch": torch.__version__}))
"""


def images() -> LabelledSet:
    x = np.random.default_rng(0).standard_normal((POINTS, SIDE, SIDE, 1), np.float32)
    return LabelledSet(x, one_hot(np.arange(POINTS) % 10, 10))


def seeds_together(steps: int) -> dict:
    """Seconds of five seeds, each way, and the ratios to five calls."""
    support, settings = images(), Settings(steps=steps)
    ways = {
        "vmapped": lambda: train("fc1", support, settings, seeds=range(SEEDS), watch_every=steps, together=True),
        "in turn": lambda: train("fc1", support, settings, seeds=range(SEEDS), watch_every=steps, together=False),
        "five calls": lambda: [train("fc1", support, settings, seeds=[s], watch_every=steps) for s in range(SEEDS)],
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(ROUNDS + 1):
        for name, way in ways.items():
            found = way()
            spent = sum(one.seconds for one in found) if isinstance(found, list) else found.seconds
            if round_:
                seconds[name].append(spent)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "steps": steps,
        "seeds": SEEDS,
        "seconds": {name: round(value, 3) for name, value in middle.items()},
        "speed_up_over_five_calls": {n: round(middle["five calls"] / v, 3) for n, v in middle.items()},
    }


def python_with_torch(folder: Path) -> Path:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", TORCH, "numpy"], check=True)
    return python


def against_torch(python: Path, steps: int) -> dict:
    """Images per second here and there, the median of rounds taken in turn."""
    support, settings = images(), Settings(steps=steps, width=WIDTH)
    train("fc1", support, settings, seeds=[0], watch_every=steps)
    ours, theirs, version = [], [], ""
    for _ in range(ROUNDS):
        ours.append(POINTS * steps / train("fc1", support, settings, seeds=[0], watch_every=steps).seconds)
        command = [str(python), "-c", TORCH_PROGRAM, *map(str, (POINTS, SIDE, WIDTH, steps))]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        said = json.loads(subprocess.run(command, check=True, capture_output=True, env=environment).stdout)
        theirs.append(POINTS * steps / said["seconds"])
        version = said["torch"]
    here, there = statistics.median(ours), statistics.median(theirs)
    return {
        "torch": version,
        "images_a_second": {"kip": round(here), "torch": round(there)},
        "ratio": round(here / there, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torch", type=Path, default=Path(tempfile.gettempdir()) / "kip-torch")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("results/training.json"))
    arguments = parser.parse_args()
    results = {
        "kip": __version__,
        "python": sys.version.split()[0],
        "cores": os.cpu_count(),
        "network": f"FC1, width {WIDTH}, {POINTS} images of {SIDE}×{SIDE}, Adam, cross-entropy",
        "seeds_together": seeds_together(arguments.steps),
        "against_torch": against_torch(python_with_torch(arguments.torch), arguments.steps),
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
    print(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
