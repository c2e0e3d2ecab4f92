"""Attack every reader with damaged files, many more than the tests have time for.

    python -m tests.faults.fuzz --inputs 100000

Nothing but a data set, a state or one line may come of any of them; no memory beyond the limit, nothing written. What
was done is added to results/faults.json.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, seed, settings
from tests.faults.inputs import damaged
from tests.faults.readers import Reader, readers
from tests.faults.record import RESULTS, record


def attack(reader: Reader, inputs: int, chosen: int = 0) -> int:
    """Try so many inputs on a reader; give how many were tried, which is fewer where there are no more."""
    count = 0

    @seed(chosen)
    @settings(max_examples=inputs, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(content=damaged(reader.seeds))
    def tries(content: bytes) -> None:
        nonlocal count
        count += 1
        reader.attack(content)

    tries()
    return count


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000, help="in all, over the readers")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file to record what was done in")
    options = parser.parse_args()
    start, tried = time.monotonic(), {}
    with tempfile.TemporaryDirectory() as folder:
        found = readers(Path(folder))
        before = peak_megabytes()
        for name, reader in found.items():
            tried[name] = attack(reader, -(-options.inputs // len(found)), options.seed)
            print(f"{name}: {tried[name]:,} inputs", flush=True)
    record(
        options.results,
        "fuzz",
        {
            "command": f"python -m tests.faults.fuzz --inputs {options.inputs} --seed {options.seed}",
            "inputs": sum(tried.values()),
            "by_reader": tried,
            "findings": 0,  # the first one ends the command with an error
            "resident_megabytes_added": round(peak_megabytes() - before, 1),
            "minutes": round((time.monotonic() - start) / 60, 1),
        },
    )


if __name__ == "__main__":
    main()
