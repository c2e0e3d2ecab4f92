"""Predicted over measured, time and peak memory, for a dozen real configurations of `kip distill`.

    python benchmarks/plan.py                 # all of them: some minutes on an idle machine
    python benchmarks/plan.py --only 0-4      # some of them; the others' numbers stay as they are

Each is planned and then run, in processes of their own, with few steps. The machine should do nothing else meanwhile:
the prediction is of an idle one. The table is also written to results/plan.json.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kip import machine
from kip._version import __version__
from kip.files import write_json

RESULTS = Path(__file__).parents[1] / "results" / "plan.json"
TIME_FACTOR, MEMORY_FACTOR = 1.5, 1.25

CONFIGURATIONS = [
    "--data mnist --kernel rbf --size 10 --steps 150",
    "--data mnist --kernel rbf --size 100 --steps 60 --draws 3",
    "--data mnist --kernel rbf --size 500 --steps 15 --draws 0",
    "--data mnist --kernel rbf --size 5000 --labels learned --batch 6000 --steps 2 --draws 0",
    "--data mnist --kernel fc1 --size 100 --steps 40 --draws 0",
    "--data mnist --kernel fc1 --size 1000 --labels learned --steps 5 --draws 0",
    "--data cifar10 --kernel rbf --size 100 --steps 20 --draws 2",
    "--data cifar10 --kernel fc1 --size 10 --steps 40 --augment none --draws 0",
    "--data cifar10 --kernel rbf --size 1000 --labels learned --augment none --steps 5 --draws 0",
    "--data mnist --kernel conv2 --size 10 --targets 20000 --steps 40 --draws 0",
    "--data cifar10 --kernel conv2 --size 50 --targets 5000 --steps 10 --draws 0",
    "--data mnist --kernel convnet3 --size 10 --targets 4000 --steps 10 --draws 0",
    "--data cifar10 --kernel convnet3 --size 10 --targets 2000 --batch 240 --steps 10 --draws 0",
]


def compared(options: str) -> dict[str, Any]:
    """Plan and run one configuration; give both predictions beside what they came to."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "kip.cli"]
        for more in (["plan", *options.split(), "--again"], ["distill", *options.split(), "--out", f"{folder}/run"]):
            subprocess.run([*command, *more], check=True, capture_output=True, env=dict(os.environ))
        planned = json.loads(Path(folder, "run", "metrics.json").read_text())["planned"]
    seconds, memory = planned["seconds"], planned["peak_memory"]
    return {
        "options": options,
        **planned,
        "time_ratio": round(seconds["total"]["predicted"] / seconds["total"]["actual"], 3),
        "learning_ratio": round(seconds["learning"]["predicted"] / seconds["learning"]["actual"], 3),
        "memory_ratio": round(memory["predicted"] / memory["actual"], 3),
    }


def show(row: dict[str, Any]) -> None:
    seconds, memory = row["seconds"]["total"], row["peak_memory"]
    print(
        f"{row['options']}\n"
        f"    time {row['time_ratio']:.2f} ({seconds['predicted']:.1f} over {seconds['actual']:.1f} s; "
        f"learning {row['learning_ratio']:.2f})   memory {row['memory_ratio']:.2f} "
        f"({memory['predicted'] / 2**20:.0f} over {memory['actual'] / 2**20:.0f} MB)",
        flush=True,
    )


def within(rows: list[dict[str, Any]], name: str, factor: float) -> int:
    return sum(abs(math.log(row[name])) <= math.log(factor) for row in rows)


def chosen(text: str | None) -> list[int]:
    if text is None:
        return list(range(len(CONFIGURATIONS)))
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="number or range of configurations, such as 3 or 0-4")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    known = json.loads(options.results.read_text())["rows"] if options.results.is_file() else []
    rows = {row["options"]: row for row in known if row["options"] in CONFIGURATIONS}
    for number in chosen(options.only):
        row = rows[CONFIGURATIONS[number]] = compared(CONFIGURATIONS[number])
        show(row)
        write(options.results, [rows[name] for name in CONFIGURATIONS if name in rows])


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write the table, and how much of it lies within the factors aimed at."""
    summary = {
        "time": f"{within(rows, 'time_ratio', TIME_FACTOR)} of {len(rows)} within a factor {TIME_FACTOR}",
        "memory": f"{within(rows, 'memory_ratio', MEMORY_FACTOR)} of {len(rows)} within a factor {MEMORY_FACTOR}",
    }
    about = {key: value for key, value in machine.identity().items() if key != "kip"}
    command = "python benchmarks/plan.py"
    write_json(path, {"command": command, "kip": __version__, "machine": about, **summary, "rows": rows})
    print(f"predicted over measured: time {summary['time']}, memory {summary['memory']}", flush=True)


if __name__ == "__main__":
    main()
