"""Predicted over measured peak memory, for a handful of real runs of `kip distill`.

    python benchmarks/plan.py                 # all of them: some minutes
    python benchmarks/plan.py --only 0-4      # some of them; the others' rows stay as they are

Each run has a process and a folder of its own, with few steps. A ratio between 1 and 1.5 is wanted: below 1 a run may
die that was let start, far above 1 one is refused that would have fitted. The rows are written to results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kip import machine
from kip.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "plan.json"

CONFIGURATIONS = [
    "--data digits",
    "--data digits --size 100 --steps 20",
    "--data mnist --size 10 --steps 60",
    "--data mnist --size 100 --steps 30 --draws 2",
    "--data mnist --size 500 --steps 8 --draws 0",
    "--data mnist --size 100 --kernel fc1 --steps 10 --draws 0",
    "--data mnist --targets 5000 --steps 10 --draws 1",
    "--data mnist --size 5000 --labels learned --batch 6000 --steps 2 --draws 0",
    "--data cifar10 --size 100 --labels solved --augment photos --steps 10 --draws 2",
    "--data cifar10 --preprocess zca --steps 10 --draws 0",
    "--data mnist --kernel conv2 --targets 10000 --steps 10 --draws 0",
    "--data cifar10 --kernel conv2 --size 50 --targets 5000 --steps 4 --draws 0",
    "--data mnist --kernel convnet3 --targets 2000 --steps 4 --draws 0",
    "--data cifar10 --kernel convnet3 --targets 1000 --batch 240 --steps 4 --draws 0",
]


def compared(options: str) -> dict[str, Any]:
    """Run one configuration; give the predicted and the measured peak."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kip.cli", "distill", *options.split(), "--out", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True)
        peak = json.loads(Path(folder, "run", "metrics.json").read_text())["planned"]["peak_memory"]
    return {"options": options, **peak, "ratio": round(peak["predicted"] / peak["actual"], 3)}


def chosen(text: str | None) -> list[str]:
    if text is None:
        return CONFIGURATIONS
    first, _, last = text.partition("-")
    return CONFIGURATIONS[int(first) : int(last or first) + 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="number or range of configurations, such as 3 or 0-4")
    options = parser.parse_args()
    rows = {row["options"]: row for row in json.loads(RESULTS.read_text())["rows"]} if RESULTS.is_file() else {}
    for configuration in chosen(options.only):
        row = rows[configuration] = compared(configuration)
        predicted, actual = (row[name] / 2**20 for name in ("predicted", "actual"))
        print(f"{row['ratio']:.2f}  ({predicted:5.0f} over {actual:5.0f} MB)  {configuration}", flush=True)
        kept = [rows[name] for name in CONFIGURATIONS if name in rows]
        write_json(RESULTS, {"command": "python benchmarks/plan.py", "machine": machine.identity(), "rows": kept})


if __name__ == "__main__":
    main()
