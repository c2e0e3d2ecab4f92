"""Which distilled images train networks best: what `kip distill --for networks` should do, chosen on validation.

    python benchmarks/networks.py [--data mnist,cifar10] [--sizes 100,10] [--runs runs/networks]
    python benchmarks/networks.py --data cifar10 --sizes 100 --only zca --losses mse    # with and without pooling

Images are distilled for networks with labels fixed, learned and solved, and by a deeper kernel with pooling; then
networks are trained on them with either loss. A tenth of the training set is held out from both; only accuracy on it
is looked at. What has been measured is not measured again.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from kip._version import __version__
from kip.files import write_json

VARIANTS = {
    (100, "labels fixed"): "--labels fixed",
    (100, "labels learned"): "--labels learned",
    (100, "labels solved"): "--labels solved",
    (10, "labels fixed"): "--labels fixed",
    (10, "labels solved"): "--labels solved",
    (10, "convnet3, labels fixed"): "--kernel convnet3:standard=128 --labels fixed --batch 240 --steps 100",
    (10, "convnet3, labels solved"): "--kernel convnet3:standard=128 --labels solved --batch 240 --steps 100",
}
"""Options by number of images and name; what is not said is the default for networks."""

WHITENED = "--labels fixed --preprocess zca-scaled:0.1"
TWO_POOLS = "--kernel conv-relu-pool-conv-relu-pool-conv-relu-flatten:nngp --targets 20000 --evaluate-every 40"
OF_PHOTOS = {
    (100, "zca, labels fixed"): WHITENED,
    (100, "two pools, zca, labels fixed"): f"{WHITENED} {TWO_POOLS} --learning-rate 0.08 --batch 500 --steps 80",
}
"""The same for CIFAR-10 alone: the family and a kernel with pooling, both on whitened images."""

COLOURED = "cifar10"
NETWORKS = {"mnist": ("fc1", "lenet"), "cifar10": ("fc3", "lenet")}
TRAINING = "--steps 150 --learning-rate 1e-3 --seeds 2 --validation-size 1000"


def variants(data: str) -> dict[tuple[int, str], str]:
    """What is compared on a data set."""
    return VARIANTS | OF_PHOTOS if data == COLOURED else VARIANTS


def kip(*tokens: str) -> None:
    subprocess.run([sys.executable, "-m", "kip.cli", *tokens], check=True, stdout=subprocess.DEVNULL)


def distilled(data: str, size: int, name: str, runs: Path) -> Path:
    """The folder of a variant's run, made where it is missing."""
    folder = runs / f"{data}-{size}-{name.replace(',', '').replace(' ', '-')}"
    if not (folder / "metrics.json").exists():
        options = f"--data {data} --size {size} --for networks --validation 0.1 --draws 0 {variants(data)[size, name]}"
        kip("distill", *options.split(), "--out", str(folder))
    return folder


def trained(run: Path, net: str, loss: str) -> dict[str, float]:
    """Validation accuracy of a network on the distilled and on natural images."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "transfer.json"
        kip("transfer", str(run), "--net", net, "--loss", loss, *TRAINING.split(), "--out", str(out))
        chosen = json.loads(out.read_text())["networks"][net]["chosen"]
    return {arm: found["validation_accuracy"] for arm, found in chosen.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist,cifar10")
    parser.add_argument("--sizes", default="100,10")
    parser.add_argument("--losses", default="mse,xent")
    parser.add_argument("--only", help="of the variants, those whose name holds this")
    parser.add_argument("--runs", type=Path, default=Path("runs/networks"))
    parser.add_argument("--out", type=Path, default=Path("results/networks.json"))
    options = parser.parse_args()
    rows = json.loads(options.out.read_text()) if options.out.exists() else []
    done = {(row["data"], row["size"], row["variant"], row["net"], row["loss"]) for row in rows}
    for data, size in itertools.product(options.data.split(","), map(int, options.sizes.split(","))):
        names = [name for wanted, name in variants(data) if wanted == size and (options.only or "") in name]
        for name, net, loss in itertools.product(names, NETWORKS[data], options.losses.split(",")):
            if (data, size, name, net, loss) in done:
                continue
            found = trained(distilled(data, size, name, options.runs), net, loss)
            row = {"data": data, "size": size, "variant": name, "net": net, "loss": loss}
            rows.append(
                {**row, "validation_accuracy": found, "options": variants(data)[size, name], "kip": __version__}
            )
            write_json(options.out, rows)
            accuracies = ", ".join(f"{arm} {100 * value:.2f} %" for arm, value in found.items())
            print(f"{data} {size}, {name}; {net}, {loss}: {accuracies}", flush=True)


if __name__ == "__main__":
    main()
