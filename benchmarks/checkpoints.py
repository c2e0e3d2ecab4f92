"""The share of a run's time that checkpoints take, small ones and large ones: at most 2 % is wanted.

    python benchmarks/checkpoints.py            # two runs of a minute each

The numbers are those that every run writes into its metrics.json: seconds spent saving over seconds spent learning.
They are printed and written to results/checkpoints.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from kip import machine
from kip._version import __version__
from kip.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "checkpoints.json"
RUNS = {
    "100 points of MNIST": "--data mnist --size 100 --steps 100000 --draws 0",
    "1,000 points of CIFAR-10": "--data cifar10 --size 1000 --labels learned --augment none --steps 100000 --draws 0",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="how long each run learns")
    options = parser.parse_args()
    rows = []
    for name, arguments in RUNS.items():
        with tempfile.TemporaryDirectory(dir=".") as folder:  # on the disk that runs go to
            budget = ["--time-budget", f"{options.seconds}s", "--out", f"{folder}/run"]
            command = [sys.executable, "-m", "kip.cli", "distill", *arguments.split(), *budget]
            subprocess.run(command, check=True, capture_output=True)
            metrics = json.loads(Path(folder, "run", "metrics.json").read_text())
        saved = metrics["checkpoints"]
        print(
            f"{name}: {saved['share']:.2%} ({saved['saves']} checkpoints in {saved['seconds']:.2f} of "
            f"{metrics['seconds']:.0f} s)",
            flush=True,
        )
        rows.append({"options": arguments, "learning_seconds": metrics["seconds"], **saved, "kip": __version__})
        write_json(RESULTS, {"machine": machine.identity(), "rows": rows})


if __name__ == "__main__":
    main()
