"""How long `kip --help` takes, and which share of `kip distill` with no option is importing and compiling.

    python benchmarks/startup.py [--runs 5]

`kip --help` is timed by hyperfine where that is installed. A no-option run is made twice in one fresh process: what the
second does not need again was importing and compiling. Processes before the first may have left compiled code on the
disk, as they do for a user from the second run on; `--cold` gives the process an empty cache instead.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

TWICE = """
import sys, time
start = time.perf_counter()
from kip.cli import main
for folder in ("first", "second"):
    assert main(["distill", "--out", folder]) == 0
    now = time.perf_counter()
    print("SECONDS", now - start, file=sys.stderr)
    start = now
"""


def help_seconds(runs: int) -> float:
    """Mean seconds of `kip --help`, by hyperfine."""
    command = f"{Path(sys.executable).with_name('kip')} --help"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "times.json"
        hyperfine = ["hyperfine", "--warmup", "2", "--runs", str(2 * runs), "--export-json", str(out), command]
        subprocess.run(hyperfine, check=True, capture_output=True)
        return json.loads(out.read_text())["results"][0]["mean"]


def twice(cold: bool) -> tuple[float, float]:
    """Seconds of the first and of the second no-option run of one process."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, **({"KIP_CACHE": str(Path(folder) / "cache")} if cold else {})}
        done = subprocess.run(
            [sys.executable, "-c", TWICE], cwd=folder, env=environment, check=True, capture_output=True, text=True
        )
    first, second = (float(line.split()[1]) for line in done.stderr.splitlines() if line.startswith("SECONDS"))
    return first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--cold", action="store_true", help="with no compiled code from earlier processes")
    options = parser.parse_args()
    if shutil.which("hyperfine"):
        print(f"kip --help: {help_seconds(options.runs):.3f} s", flush=True)
    found = [twice(options.cold) for _ in range(options.runs)]
    first, second = (statistics.median(column) for column in zip(*found, strict=True))
    print(
        f"kip distill: {first:.2f} s, the second of a process {second:.2f} s: importing and compiling take "
        f"{first - second:.2f} s, {1 - second / first:.0%} of the first (medians of {options.runs})"
    )


if __name__ == "__main__":
    main()
