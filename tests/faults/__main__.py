"""Kill runs of the real command at random times, resume them, and see that they end as if nothing had happened.

    python -m tests.faults --kills 100

A quarter of the kills strike while a checkpoint is being written. What was done is added to results/faults.json.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.faults.kills import CASES, Attack, Tally
from tests.faults.record import RESULTS, record

from kip.data import available


def shares(kills: int, cases: int) -> list[int]:
    """So many kills for each case, as equal as can be."""
    return [kills // cases + (n < kills % cases) for n in range(cases)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to record what was done in")
    options = parser.parse_args()
    if not available("mnist"):
        parser.error("mnist is not in the cache: run `kip data fetch mnist`")
    rng, total, by_case = np.random.default_rng(options.seed), Tally(), {}
    start = time.monotonic()
    for (name, arguments), kills in zip(CASES.items(), shares(options.kills, len(CASES)), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            tally = Attack(arguments, Path(folder), rng).kill(kills, inside=-(-kills // 4))
        print(f"{name}: {tally.total} kills, {tally.compared} runs ended identical {dict(tally.kills)}", flush=True)
        total.add(tally)
        by_case[name] = tally.total
    record(
        options.results,
        "kills",
        {
            "command": f"python -m tests.faults --kills {options.kills} --seed {options.seed}",
            "kills": total.total,
            "struck": dict(total.kills),
            "by_case": by_case,
            "runs_compared": total.compared,
            "runs_identical": total.compared,  # the first that differs ends the command with an error
            "minutes": round((time.monotonic() - start) / 60, 1),
        },
    )


if __name__ == "__main__":
    main()
