"""Kill runs of the real command at random times, resume them, and see that they end as if nothing had happened.

    python -m tests.faults --kills 100

A quarter of the kills strike while a checkpoint is being written. What was done is put down, case by case, in
results/faults.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.faults.kills import CASES, INSIDE, Attack
from tests.faults.record import RESULTS, record, recorded

from kip.data import available


def shares(kills: int, cases: int) -> list[int]:
    """So many kills for each case, as equal as can be."""
    return [kills // cases + (n < kills % cases) for n in range(cases)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="in all, over the cases")
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of the cases: all of them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to record what was done in")
    options = parser.parse_args()
    if not available("mnist"):
        parser.error("mnist is not in the cache: run `kip data fetch mnist`")
    names = [name for n, name in enumerate(CASES) if options.cases is None or n in options.cases]
    for name, kills in zip(names, shares(options.kills, len(names)), strict=True):
        rng, start = np.random.default_rng([options.seed, *name.encode()]), time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            tally = Attack(CASES[name], Path(folder), rng).kill(kills, inside=-(-kills // 4))
        print(f"{name}: {tally.total} kills, {tally.compared} runs ended identical {dict(tally.kills)}", flush=True)
        # The first run that differs ends the command with an error, so what is recorded here ended identical.
        cases = recorded(options.results, "kills").get("by_case", {})
        cases[name] = {
            "command": f"python -m tests.faults --kills {options.kills} --seed {options.seed}",
            "options": " ".join(CASES[name]),
            "kills": tally.total,
            "struck": dict(tally.kills),
            "runs_identical": tally.compared,
            "minutes": round((time.monotonic() - start) / 60, 1),
        }
        total = {
            "kills": sum(case["kills"] for case in cases.values()),
            INSIDE: sum(case["struck"].get(INSIDE, 0) for case in cases.values()),
            "runs_identical": sum(case["runs_identical"] for case in cases.values()),
        }
        record(options.results, "kills", {**total, "by_case": cases})


if __name__ == "__main__":
    main()
