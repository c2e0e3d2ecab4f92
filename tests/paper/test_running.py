"""Cells run from beginning to end on a small slice of the digits; a killed one goes on to the same numbers."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kip import algorithm, conjugate_gradients
from kip.data import Dataset, load
from kip.data.preprocess import fit
from kip.kernels import from_products, kernel
from kip.krr import KernelRidge, accuracy
from kip.paper import running, works
from kip.paper.recipes import Cell
from kip.paper.running import Context, StoppedError, solving
from kip.paper.running.subsets import order
from kip.sets import LabelledSet, one_hot


@functools.cache
def digits() -> Dataset:
    whole = load("digits")
    return dataclasses.replace(
        whole,
        x_train=whole.x_train[:400],
        y_train=whole.y_train[:400],
        x_test=whole.x_test[:100],
        y_test=whole.y_test[:100],
    )


def context(folder: Path, stop=lambda: False) -> Context:
    return Context(folder, lambda _: digits(), lambda _: None, stop)


KIP = works.Kip(
    data="digits",
    kernel="rbf",
    size=10,
    labels="fixed",
    augment="none",
    steps=30,
    batch=100,
    learning_rate=0.05,
    schedule="constant",
    evaluate_every=5,
    checkpoints=3,
)


def test_subsets_of_a_draw_equal_kernel_ridge_regression_one_by_one(tmp_path: Path) -> None:
    cells = [
        Cell(id=f"x/{spec}-{size}", work=works.Subset(data="digits", kernel=spec, size=size, seeds=(0, 1)))
        for spec in ("linear", "rbf", "fc1:standard=1024")
        for size in (10, 60, 100)  # digits have 64 pixels: fewer points than pixels, and more
    ]
    found = {cell.work: result for cell, result in running.measure(cells, context(tmp_path))}
    data = digits()
    fitted = fit("standard", data.x_train, dtype=np.dtype(np.float64))
    x_test = fitted.apply(data.x_test)
    for work, result in found.items():
        assert isinstance(work, works.Subset)
        for draw, reached in zip(work.seeds, result.accuracies, strict=True):
            rows = order(data.y_train, work.size, balanced=True, draw=draw)
            x, y = fitted.apply(data.x_train[rows]), one_hot(data.y_train[rows], 10, np.float64)
            spec = kernel(work.kernel)
            (alpha,) = KernelRidge([spec], LabelledSet(x, y)).coefficients
            assert reached == accuracy(spec.gram(x_test, x) @ alpha, data.y_test)


def test_kernels_share_inner_products() -> None:
    rng = np.random.default_rng(0)
    x1, x2 = rng.normal(size=(5, 7)), rng.normal(size=(4, 7))
    for dtype, tolerance in ((np.float64, 1e-13), (np.float32, 1e-5)):
        a, b = x1.astype(dtype), x2.astype(dtype)
        for spec in ("linear", "rbf:gamma=0.5", "fc2:nngp", "fc1:standard=64"):
            each = kernel(spec)
            found = from_products(each, a @ b.T, np.vecdot(a, a), np.vecdot(b, b), 7)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, each.gram(a, b), rtol=tolerance)
    with pytest.raises(ValueError, match=r"function of inner products .* got 'rbf&fc1'"):
        from_products(kernel("rbf&fc1"), np.eye(2), np.ones(2), np.ones(2), 2)


def test_every_prefix_of_a_balanced_order_is_balanced() -> None:
    codes = digits().y_train
    rows = order(codes, 200, balanced=True, draw=3)
    assert len(set(rows.tolist())) == 200
    for size in (10, 20, 40, 160, 200):
        assert set(np.bincount(codes[rows[:size]], minlength=10)) == {size // 10}
    free = order(codes, 200, balanced=False, draw=3)
    assert len(set(free.tolist())) == 200
    with pytest.raises(ValueError, match="at most"):
        order(codes, 400, balanced=True, draw=0)


def test_a_subset_measured_before_is_not_measured_again(tmp_path: Path) -> None:
    work = works.Subset(data="digits", kernel="rbf", size=20, seeds=(0, 1, 2))
    first = running.run(work, context(tmp_path))
    no_data = Context(tmp_path, lambda _: pytest.fail("data were read again"), lambda _: None)
    assert running.run(work, no_data) == first


def test_a_killed_cell_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    unbroken = running.run(KIP, context(tmp_path / "a"))
    calls = iter(range(1000))

    def soon() -> bool:
        return next(calls) > 12

    with pytest.raises(StoppedError):
        running.run(KIP, context(tmp_path / "b", soon))
    assert list((tmp_path / "b").rglob("checkpoint-*.safetensors"))
    assert not list((tmp_path / "b").rglob("learned.json"))
    resumed = running.run(KIP, context(tmp_path / "b"))
    assert resumed.accuracies == unbroken.accuracies
    assert resumed.details == unbroken.details
    assert len(resumed.accuracies) == KIP.checkpoints
    assert resumed.deviations == ()


def test_a_learning_that_diverges_keeps_what_was_evaluated_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = algorithm.step

    def diverging(state: algorithm.State, *rest: Any) -> Any:
        if state.step == 12:
            raise algorithm.DivergedError(state)
        return step(state, *rest)

    monkeypatch.setattr(algorithm, "step", diverging)
    said: list[str] = []
    result = running.run(KIP, dataclasses.replace(context(tmp_path), say=said.append))
    assert len(result.accuracies) == 2  # evaluated at steps 5 and 10
    assert result.details["steps"] == [12]
    assert result.deviations == ("learning that then diverged, before all 30 steps were done",)
    assert "at step 12; lower the learning rate" in said[-1]
    with pytest.raises(algorithm.DivergedError):
        running.run(dataclasses.replace(KIP, evaluate_every=20), context(tmp_path))


def test_a_run_out_of_time_says_how_many_steps_it_took(tmp_path: Path) -> None:
    short = dataclasses.replace(KIP, steps=1_000_000, seconds=0.5, evaluate_every=1_000_000)
    result = running.run(short, context(tmp_path))
    (deviation,) = result.deviations
    assert deviation == "0 minutes of learning, before all 1,000,000 steps were done"
    assert result.details["steps"][0] < 1_000_000
    assert running.run(short, context(tmp_path)) == result  # evaluated once, off schedule, and kept


def test_a_learned_set_is_scored_with_other_kernels_and_in_parts(tmp_path: Path) -> None:
    once = dataclasses.replace(KIP, checkpoints=1)
    same = running.run(once, context(tmp_path))
    other = running.run(dataclasses.replace(once, tested=("fc1", "linear")), context(tmp_path))
    assert set(other.details["by_kernel"]) == {"fc1", "linear"}
    assert other.mean == pytest.approx(np.mean(list(other.details["by_kernel"].values())))
    assert len(list(tmp_path.rglob("learned.json"))) == 1  # both scored one learning
    part = running.run(works.Part(of=once, size=10, seeds=(0,)), context(tmp_path))
    assert part.accuracies == same.accuracies  # all ten of ten


def test_labels_are_solved_and_the_whole_training_set_fits(tmp_path: Path) -> None:
    solved = works.Solved(data="digits", kernel="fc1", size=20, seeds=(0, 1))
    result = running.run(solved, context(tmp_path))
    plain = running.run(dataclasses.replace(solved, natural=True), context(tmp_path))
    assert result.mean is not None
    assert plain.mean is not None
    assert result.mean > plain.mean
    whole = running.run(works.Whole(data="digits", kernel="fc1"), context(tmp_path))
    assert whole.mean is not None
    assert whole.mean > result.mean
    assert whole.details == {"solver": "Cholesky"}


def test_the_kernel_that_is_tested_sees_the_images_its_own_way(tmp_path: Path) -> None:
    work = works.Solved(data="digits", kernel="fc1", size=20, tested="rbf", natural=True, seeds=(0,))
    as_fc1 = running.run(work, context(tmp_path))
    whitened = running.run(dataclasses.replace(work, tested_preprocess="zca"), context(tmp_path))
    expected = works.Solved(data="digits", kernel="rbf", size=20, preprocess="zca", natural=True, seeds=(0,))
    assert whitened.accuracies == running.run(expected, context(tmp_path)).accuracies != as_fc1.accuracies


def test_a_killed_fit_of_the_whole_training_set_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conjugate_gradients, "DIRECT_LIMIT", 100)
    fewer = functools.partial(conjugate_gradients.fit, rank=100)  # landmarks than points
    monkeypatch.setattr(conjugate_gradients, "fit", fewer)
    monkeypatch.setattr(solving, "SAVE_EVERY", 0.0)
    work = works.Whole(data="digits", kernel="fc1")
    unbroken = running.run(work, context(tmp_path / "a"))
    calls = iter(range(1000))
    with pytest.raises(StoppedError):
        running.run(work, context(tmp_path / "b", lambda: next(calls) > 2))
    (saved,) = (tmp_path / "b").rglob(solving.COEFFICIENTS)
    resumed = running.run(work, context(tmp_path / "b"))
    assert resumed.details["iterations"] < unbroken.details["iterations"]
    assert resumed.details["residual"] <= resumed.details["tolerance"]
    assert resumed.accuracies == unbroken.accuracies
    assert not saved.exists()


def test_a_kernel_that_takes_long_keeps_its_tiles(tmp_path: Path) -> None:
    work = works.Solved(data="digits", kernel="conv1:nngp", size=10, targets=100, seeds=(0,))
    first = running.run(work, context(tmp_path))
    tiles = sorted((tmp_path / "grams").iterdir())
    assert tiles
    (next(tmp_path.glob("solved-*")) / "s0" / "outcome.json").unlink()
    assert running.run(work, context(tmp_path)).accuracies == first.accuracies
    assert sorted((tmp_path / "grams").iterdir()) == tiles


def test_a_comparison_gives_a_verdict_from_its_trials(tmp_path: Path) -> None:
    small, large = (works.Subset(data="digits", kernel="rbf", size=n, seeds=(0, 1)) for n in (10, 100))
    trials = (works.Trial(name="small", work=small), works.Trial(name="large", work=large))
    above = works.Rule(statement="more do better", left="large", relation="above", right="small")
    below = works.Rule(statement="fewer do better", left="small", relation="above", right="large")
    share = works.Rule(statement="at least a tenth", left="small", relation="share", right="large", slack=10)
    alike = works.Rule(statement="the same", left="small", relation="alike", right="small", slack=0)

    def verdict(*rules: works.Rule) -> str:
        result = running.run(works.Comparison(trials=trials, rules=rules), context(tmp_path))
        assert result.mean is None
        assert set(result.details["trials"]) == {"small", "large"}
        return str(result.details["verdict"])

    assert verdict(above, share, alike) == "holds"
    assert verdict(above, below) == "holds in part"
    assert verdict(below) == "does not hold"


NETWORK = works.Network(
    data="digits",
    net="fc1",
    support=works.Natural(data="digits", size=50),
    losses=("mse", "xent"),
    optimiser="adam",
    learning_rates=(1e-2,),
    steps=20,
    width=64,
    watch=100,
    watch_every=10,
    seeds=(0, 1),
)


def test_a_network_is_trained_on_natural_and_on_learned_images(tmp_path: Path) -> None:
    pytest.importorskip("kip.nets.training", reason="networks need flax: the extra `nets`")
    plain = running.run(NETWORK, context(tmp_path))
    assert len(plain.accuracies) == 2
    assert plain.mean is not None
    assert plain.mean > 30
    assert plain.details["chosen"]["loss"] in NETWORK.losses
    noisy = dataclasses.replace(NETWORK, support=works.Natural(data="digits", size=50, corruption=0.9))
    assert running.run(noisy, context(tmp_path)).mean < plain.mean
    learned = dataclasses.replace(NETWORK, support=dataclasses.replace(KIP, seconds=None))
    assert len(running.run(learned, context(tmp_path)).accuracies) == 2


def test_each_network_has_a_draw_of_its_own_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = pytest.importorskip("kip.nets.training", reason="networks need flax: the extra `nets`")
    seen, train = [], training.train
    monkeypatch.setattr(training, "train", lambda *a, **k: seen.append((a, k)) or train(*a, **k))
    support = works.Natural(data="digits", size=50, corruption=0.5, redrawn=True)
    work = dataclasses.replace(NETWORK, support=support, losses=("xent",), read_outs=("drawn", "zero"))
    result = running.run(work, context(tmp_path))
    assert len(result.accuracies) == len(result.details["chosen"]["step"]) == 2
    assert result.details["chosen"]["read_out"] in work.read_outs
    tried, networks = seen[:2], seen[2:]
    assert [arguments[2].read_out for arguments, _ in tried] == ["drawn", "zero"]
    assert [options["seeds"] for _, options in networks] == [(0,), (1,)]
    first, second = (arguments[1].x for arguments, _ in networks)
    assert first.shape == second.shape
    assert (first != second).reshape(50, -1).any(axis=1).all()


def test_a_network_that_no_longer_improves_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = pytest.importorskip("kip.nets.training", reason="networks need flax: the extra `nets`")
    network = dataclasses.replace(NETWORK, losses=("xent",), steps=2_000, width=16, patience=50, seeds=(0,))
    trained, train = [], training.train
    monkeypatch.setattr(training, "train", lambda *a, **k: trained.append(train(*a, **k)) or trained[-1])
    running.run(network, context(tmp_path))
    (found,) = trained
    assert found.watch[-1][0] == found.chosen_step + 50 < 2_000
