"""The figures' experiments, of which the paper prints curves and no numbers: Label Solve, and transfer of kernels."""

from __future__ import annotations

from kip.paper.recipes import Cell, Recipe
from kip.paper.works import Kip, Solved

TARGETS = (500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000)
SIZES_OF_LABELS = (10, 100, 500)
SIZES_OF_TRANSFER = (10, 100, 200)
TRAINED = {f"fc{m}": f"fc{m}:standard=1024" for m in (1, 2, 3)} | {
    f"conv{m}": f"conv{m}:standard=128" for m in (1, 2, 3)
}
TRAINED["all"] = "+".join(TRAINED.values())
TESTED = tuple(
    f"{name}:{kind}standard={width}"
    for kind in ("", "nngp:")
    for name, width in (("fc1", 128), ("fc2", 128), ("fc3", 128), ("conv1", 1024), ("conv2", 1024), ("conv3", 1024))
)
"""FC1-3 and Conv1-3, NTK and NNGP, with the widths of FC and Conv swapped."""

OF_LABELS = {"mnist": "fc1", "fashion-mnist": "fc1", "cifar10": "fc1:nngp"}


def recipes() -> list[Recipe]:
    """Figures 2, A1 and A2."""
    return [_label_solve(), _kernel_transfer(), _label_transfer()]


def _label_solve() -> Recipe:
    """Figure 2 for FC1; its Myrtle curves end in the Label Solve rows of Tables 1 and 2."""
    cells = [
        Cell(
            id=f"label-solve/{data}-fc1-{size}-of-{targets}",
            work=Solved(data=data, kernel=kernel, size=size, targets=targets),
        )
        for data, kernel in OF_LABELS.items()
        for size in SIZES_OF_LABELS
        for targets in TARGETS
        if targets >= size
    ]
    return Recipe(id="label-solve", title="Label Solve over the number of targets (Figure 2)", cells=tuple(cells))


def _kernel_transfer() -> Recipe:
    cells = [
        Cell(
            id=f"kernel-transfer/{name}-{size}",
            work=tested_with_others(name, size),
            deviations=("500 steps of 500 targets (the paper gives neither number)", "one initialisation"),
        )
        for name in TRAINED
        for size in SIZES_OF_TRANSFER
    ]
    return Recipe(id="kernel-transfer", title="Transfer between kernels (Figure A1)", cells=tuple(cells))


def tested_with_others(trained: str, size: int) -> Kip:
    """Images of CIFAR-10 learned with one of `TRAINED`, tested with twelve kernels."""
    return Kip(
        data="cifar10",
        kernel=TRAINED[trained],
        size=size,
        labels="fixed",
        augment="none",
        steps=500,
        batch=500,
        learning_rate=0.04,
        schedule="constant",
        evaluate_every=100,
        tested=TESTED,
        seconds=1800.0,
    )


def _label_transfer() -> Recipe:
    """Each kernel sees the images as the paper has it: Myrtle-10 whitened, FC1 standardised."""
    kernels = {"fc1": "fc1:nngp", "myrtle10": "myrtle10:nngp"}
    seen = {"fc1": "standard", "myrtle10": "zca"}
    cells = []
    for labels, tested in (("fc1", "myrtle10"), ("myrtle10", "fc1")):
        for natural in (False, True):
            name = f"{'natural' if natural else labels}-labels-{tested}-10"
            work = Solved(
                data="cifar10",
                kernel=kernels[labels],
                size=10,
                preprocess=seen[labels],
                targets=5_000,
                tested=kernels[tested],
                natural=natural,
                tested_preprocess=seen[tested],
            )
            cells.append(Cell(id=f"label-transfer/{name}", work=work, deviations=("5,000 targets, 10 images",)))
    return Recipe(id="label-transfer", title="Solved labels exchanged between kernels (Figure A2)", cells=tuple(cells))
