"""Peak resident memory of a KIP step at 10,000 and at 50,000 targets of 3,072 floats: it grows with the data alone.

    python benchmarks/memory.py            # labels fixed and solved, 100 support points
    python benchmarks/memory.py --quick    # 2,000 and 10,000 targets, labels solved

Each step runs in a process of its own. The number printed is the difference of the two peaks over the difference of the
two data sets; 1 means that a step takes no memory that grows with the targets.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys

import numpy as np

WIDTH, SUPPORT, CLASSES = 3072, 100, 10


def peak(targets: int, labels: str, kernel: str) -> None:
    """Take two steps on so many targets, then print the bytes of the data and the peak resident memory."""
    import kip
    from kip import algorithm
    from kip.algorithm import Config, Problem, adam
    from kip.sets import LabelledSet, one_hot

    x = np.empty((targets, WIDTH), np.float32)
    rng = np.random.default_rng(0)
    for start in range(0, targets, 1000):  # drawn in pieces, so that the drawing does not set the peak
        x[start : start + 1000] = rng.standard_normal((min(1000, targets - start), WIDTH), np.float32)
    codes = np.arange(targets) % CLASSES
    problem = Problem(LabelledSet(x, one_hot(codes, CLASSES)), codes, CLASSES)
    config = Config((kip.kernel(kernel),), SUPPORT, 10, adam(0.01, 10), labels=labels)
    state = algorithm.init(problem, config, key=0)
    for _ in range(2):
        state, _ = algorithm.step(state, algorithm.draw(state, problem, config), config)
    unit = 1 if sys.platform == "darwin" else 1024
    print(x.nbytes + problem.train.y.nbytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def measure(targets: int, labels: str, kernel: str) -> tuple[int, int]:
    """The bytes of the data and the peak of a process that takes steps on it."""
    command = [sys.executable, __file__, "--targets", str(targets), "--labels", labels, "--kernel", kernel]
    data, most = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return int(data), int(most)


def report(few: int, many: int, labels: str, kernel: str) -> None:
    (data_few, peak_few), (data_many, peak_many) = (measure(n, labels, kernel) for n in (few, many))
    ratio = (peak_many - peak_few) / (data_many - data_few)
    mib = 2**20
    print(
        f"{kernel}, labels {labels}: {ratio:.3f}  (peak {peak_few / mib:.0f} MiB at {few} targets, "
        f"{peak_many / mib:.0f} MiB at {many}; the data {data_few / mib:.0f} and {data_many / mib:.0f} MiB)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="2,000 and 10,000 targets, labels solved")
    parser.add_argument("--kernel", default="rbf")
    parser.add_argument("--targets", type=int, help="measure this process at so many targets, and print two numbers")
    parser.add_argument("--labels", choices=["fixed", "solved"])
    options = parser.parse_args()
    if options.targets is not None:
        peak(options.targets, options.labels or "fixed", options.kernel)
        return
    print("growth of a step's peak resident memory over growth of the data (1 is the least; at most 1.1 is wanted)")
    sizes = (2_000, 10_000) if options.quick else (10_000, 50_000)
    chosen = [options.labels] if options.labels else ["solved"] if options.quick else ["fixed", "solved"]
    for labels in chosen:
        report(*sizes, labels, options.kernel)


if __name__ == "__main__":
    main()
