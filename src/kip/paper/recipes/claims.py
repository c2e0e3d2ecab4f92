"""Claims in the text, each put to the test by a few short runs; the verdict is what its rules come to."""

from __future__ import annotations

import dataclasses

from kip.paper.recipes import Cell, Recipe
from kip.paper.recipes.figures import TRAINED, tested_with_others
from kip.paper.recipes.networks import AUGMENTATIONS
from kip.paper.works import Comparison, Kip, Network, Part, Rule, Solved, Trial

THREE = (0, 1, 2)


def recipe() -> Recipe:
    """All claims."""
    tests = {
        "image-init": _image_init(),
        "subsets-do-worse": _subsets_do_worse(),
        "hundred-steps": _hundred_steps(),
        "target-batches": _target_batches(),
        "learned-gamma": _learned_gamma(),
        "nngp-like-ntk": _nngp_like_ntk(),
        "learned-labels-harm-networks": _learned_labels_harm_networks(),
        "all-kernels-transfer": _all_kernels_transfer(),
    }
    cells = tuple(Cell(id=f"claims/{name}", work=work, deviations=_short(work)) for name, work in tests.items())
    return Recipe(id="claims", title="Claims in the text", cells=cells)


def _short(claim: Comparison) -> tuple[str, ...]:
    counts = sorted({len(trial.work.seeds) for trial in claim.trials})
    return (f"short runs, {' to '.join(map(str, counts))} a trial",)


def _mnist(size: int = 100, **more: object) -> Kip:
    """A short run in the paper's setting."""
    work = Kip(
        data="mnist",
        kernel="rbf",
        size=size,
        labels="fixed",
        augment="none",
        steps=500,
        batch=6_000,
        learning_rate=0.01,
        schedule="constant",
        evaluate_every=50,
        seeds=THREE,
    )
    return dataclasses.replace(work, **more)  # type: ignore[arg-type]


def _cifar10(size: int = 100, **more: object) -> Kip:
    given: dict[str, object] = {"data": "cifar10", "learning_rate": 0.04, "steps": 200, "seeds": (0,), **more}
    return _mnist(size, **given)


def _above(better: str, worse: str, statement: str) -> Rule:
    return Rule(statement=statement, left=better, relation="above", right=worse)


def _image_init() -> Comparison:
    trials = [Trial(name=f"{init}, MNIST {n}", work=_mnist(n, init=init)) for n in (10, 100) for init in INITS]
    trials += [Trial(name=f"{init}, CIFAR-10 100", work=_cifar10(init=init)) for init in INITS]
    places = ("MNIST 10", "MNIST 100", "CIFAR-10 100")
    rules = [_above(f"image, {at}", f"noise, {at}", f"images do better than noise as a start: {at}") for at in places]
    return Comparison(trials=tuple(trials), rules=tuple(rules))


INITS = ("image", "noise")


def _subsets_do_worse() -> Comparison:
    whole = _mnist(100)
    trials = (
        Trial(name="10 learned", work=_mnist(10)),
        Trial(name="10 of 100 learned", work=Part(of=dataclasses.replace(whole, seeds=(0,)), size=10)),
        Trial(name="100 learned whole", work=whole),
        Trial(name="100 learned through subsets of 10", work=_mnist(100, support_batch=10)),
    )
    rules = (
        _above("10 learned", "10 of 100 learned", "a subset does worse than a set learned at its size"),
        _above("100 learned whole", "100 learned through subsets of 10", "learning through subsets does worse"),
    )
    return Comparison(trials=trials, rules=rules)


def _hundred_steps() -> Comparison:
    runs = {
        "MNIST 10, RBF": _mnist(10, steps=2_000),
        "MNIST 100, RBF": _mnist(100, steps=2_000),
        "MNIST 100, RBF, ρ = 0.9": _mnist(100, steps=2_000, corruption=0.9),
        "MNIST 100, FC1": _mnist(100, steps=2_000, kernel="fc1"),
        "CIFAR-10 100, RBF": _cifar10(100, steps=1_000),
    }
    trials, rules = [], []
    for name, work in runs.items():
        early = dataclasses.replace(work, steps=100, seeds=(0,))
        full = dataclasses.replace(work, seeds=(0,))
        trials += [Trial(name=f"{name}: 100 steps", work=early), Trial(name=f"{name}: {work.steps} steps", work=full)]
        rules.append(
            Rule(
                statement=f"{name}: 100 steps reach 90 % of the accuracy of {work.steps}",
                left=f"{name}: 100 steps",
                relation="share",
                right=f"{name}: {work.steps} steps",
                slack=90.0,
            )
        )
    return Comparison(trials=tuple(trials), rules=tuple(rules))


def _target_batches() -> Comparison:
    batches = {"200": 200, "6,000": 6_000}
    trials, rules = [], []
    for other in ("linear", "fc1"):
        for name, batch in batches.items():
            work = _mnist(100, batch=batch)
            trials.append(
                Trial(name=f"batch {name}, tested with {other}", work=dataclasses.replace(work, tested=(other,)))
            )
        statement = f"batches of 200 transfer better from RBF to {other}"
        rules.append(_above(f"batch 200, tested with {other}", f"batch 6,000, tested with {other}", statement))
    trials += [Trial(name=f"batch {name}, same kernel", work=_mnist(100, batch=n)) for name, n in batches.items()]
    same = _above(
        "batch 6,000, same kernel", "batch 200, same kernel", "batches of 6,000 do better with the same kernel"
    )
    return Comparison(trials=tuple(trials), rules=(same, *rules))


def _learned_gamma() -> Comparison:
    pairs = {
        "MNIST 100": _mnist(100),
        "CIFAR-10 10": _cifar10(10, seeds=THREE),
        "CIFAR-10 500": _cifar10(500),
    }
    trials = []
    for name, work in pairs.items():
        trials.append(Trial(name=f"{name}, γ fixed", work=work))
        trials.append(Trial(name=f"{name}, γ learned", work=dataclasses.replace(work, learn_kernel=True)))
    rules = (
        _above("MNIST 100, γ learned", "MNIST 100, γ fixed", "a slight gain on MNIST"),
        _above("CIFAR-10 10, γ learned", "CIFAR-10 10, γ fixed", "a small gain on CIFAR-10 for a small set"),
        _above("CIFAR-10 500, γ fixed", "CIFAR-10 500, γ learned", "a loss on CIFAR-10 for a large set"),
    )
    return Comparison(trials=tuple(trials), rules=rules)


def _nngp_like_ntk() -> Comparison:
    places = {
        "FC1, MNIST 100": ("mnist", "fc1", 100),
        "FC1, MNIST 500": ("mnist", "fc1", 500),
        "FC1, CIFAR-10 500": ("cifar10", "fc1", 500),
        "Myrtle-5, MNIST 10": ("mnist", "myrtle5", 10),
    }
    trials, rules = [], []
    for at, (data, kernel, size) in places.items():
        for kind, spec in (("NTK", kernel), ("NNGP", f"{kernel}:nngp")):
            trials.append(Trial(name=f"{at}, {kind}", work=Solved(data=data, kernel=spec, size=size)))
        if kernel == "fc1":
            statement, relation, slack = f"NNGP and NTK are within a point: {at}", "alike", 1.0
        else:
            statement, relation, slack = f"NNGP does better than NTK: {at}", "above", 0.0
        rules.append(Rule(statement=statement, left=f"{at}, NNGP", relation=relation, right=f"{at}, NTK", slack=slack))
    return Comparison(trials=tuple(trials), rules=tuple(rules))


def _learned_labels_harm_networks() -> Comparison:
    def network(support: Kip) -> Network:
        return Network(
            data=support.data,
            net="fc1",
            support=support,
            losses=("mse",),
            optimiser="adam",
            learning_rates=(4e-4,),
            steps=500,
            width=1024,
        )

    augmented = {"augment": AUGMENTATIONS["mnist"], "batch": 5_000, "kernel": "fc1", "seeds": (0,)}
    colour = {**augmented, "augment": AUGMENTATIONS["cifar10"]}
    trials = (
        Trial(name="MNIST 100, labels fixed", work=network(_mnist(100, **augmented))),
        Trial(name="MNIST 100, labels learned", work=network(_mnist(100, labels="learned", **augmented))),
        Trial(name="CIFAR-10 100, labels fixed", work=network(_cifar10(100, **colour))),
        Trial(name="CIFAR-10 100, labels learned", work=network(_cifar10(100, labels="learned", **colour))),
    )
    rules = tuple(
        _above(f"{at}, labels fixed", f"{at}, labels learned", f"learned labels harm an FC1 network: {at}")
        for at in ("MNIST 100", "CIFAR-10 100")
    )
    return Comparison(trials=trials, rules=rules)


def _all_kernels_transfer() -> Comparison:
    """The runs are those of Figure A1."""
    trials, rules = [], []
    for size in (10, 100):
        trials += [Trial(name=f"{name}, {size} images", work=tested_with_others(name, size)) for name in TRAINED]
        rules += [
            _above(
                f"all, {size} images",
                f"{name}, {size} images",
                f"{size} images learned with all six kernels do better under twelve, on average, than with {name}",
            )
            for name in TRAINED
            if name != "all"
        ]
    return Comparison(trials=tuple(trials), rules=tuple(rules))
