"""Every published number has a cell or a reason; cells are plain, named, and as the paper sets them."""

from __future__ import annotations

import dataclasses
import json

import pytest

from kip.kernels import family
from kip.paper import costs, published, recipes, works
from kip.paper.recipes import baselines


def all_cells() -> list[recipes.Cell]:
    return [cell for each in recipes.recipes() for cell in each.cells]


def test_every_published_number_has_a_cell_in_the_papers_setting_or_a_reason() -> None:
    measured = {cell.published for cell in all_cells() if cell.setting == "paper"}
    for number in published.cells():
        reason = recipes.unmeasured(number)
        assert (number.id in measured) == (reason is None), number.id


def test_every_claim_of_the_paper_is_put_to_the_test() -> None:
    assert [cell.name for cell in recipes.recipe("claims").cells] == [claim.id for claim in published.claims()]
    for cell in recipes.recipe("claims").cells:
        assert isinstance(cell.work, works.Comparison)
        names = {trial.name for trial in cell.work.trials}
        assert len(names) == len(cell.work.trials)
        assert {rule.left for rule in cell.work.rules} | {rule.right for rule in cell.work.rules} <= names


def test_ours_stands_beside_each_learned_label_row() -> None:
    ours = {cell.published for cell in all_cells() if cell.setting == "ours"}
    for table in baselines.TABLES:
        wanted = {n.id for n in published.cells(table) if n.variant == "a + l" and n.given}
        assert wanted <= ours


@pytest.mark.parametrize("each", recipes.recipes(), ids=lambda each: each.id)
def test_cells_are_of_their_recipe_and_their_kernels_exist(each: recipes.Recipe) -> None:
    assert each.cells
    for cell in each.cells:
        assert cell.recipe == each.id
        assert cell.setting in recipes.SETTINGS
        for part in works.parts(cell.work):
            for spec in (getattr(part, "kernel", None), getattr(part, "tested", None)):
                for one in spec if isinstance(spec, tuple) else (spec,):
                    assert one is None or family(one)


def test_a_cell_agrees_with_the_published_cell_it_stands_beside() -> None:
    for cell in all_cells():
        number = cell.number
        if number is None:
            continue
        work = cell.work
        assert work.data == number.dataset
        size = work.support.size if isinstance(work, works.Network) else getattr(work, "size", number.support)
        assert size == number.support
        if isinstance(work, works.Network):
            assert work.support.corruption == number.rho
            assert number.loss == "tuned" or work.losses == (number.loss,)


def test_the_papers_settings() -> None:
    kip = recipes.cells("mnist-baselines", ["rbf-kip-100"])[0].work
    assert isinstance(kip, works.Kip)
    assert (kip.learning_rate, kip.schedule, kip.batch, kip.labels, kip.augment) == (
        0.01,
        "constant",
        6000,
        "fixed",
        "none",
    )
    colour = recipes.cells("cifar10-baselines", ["fc1-kip-al-500"])[0].work
    assert isinstance(colour, works.Kip)
    assert (colour.kernel, colour.learning_rate, colour.labels) == ("fc1", 0.04, "learned")
    assert colour.augment == "photos:0.032"
    zca = recipes.cells("cifar10-baselines", ["myrtle10-nngp-ls-zca-10"])[0].work
    assert zca == works.Solved(data="cifar10", kernel="myrtle10:nngp", size=10, preprocess="zca", seeds=(0,))
    sweep = recipes.cells("cifar10-sweep-mse", ["kip-al-1000-rho90"])[0].work
    assert isinstance(sweep, works.Network)
    assert (sweep.width, sweep.learning_rates, sweep.optimiser, sweep.losses) == (4096, (4e-4,), "adam", ("mse",))
    ours = recipes.cells("mnist-baselines", ["rbf-ours-100"])[0].work
    assert isinstance(ours, works.Kip)
    assert (ours.labels, ours.steps, ours.learning_rate, ours.seeds) == ("auto", None, None, (0, 1, 2))


def test_names_that_are_not_there_are_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"`NAME` 'mnist-baseline' is not one of .* try mnist-baselines"):
        recipes.cells("mnist-baseline")
    with pytest.raises(ValueError, match=r"`--cells` 'rbf-kip-11' .* try rbf-kip-1"):
        recipes.cells("mnist-baselines", ["rbf-kip-11"])
    assert recipes.cells("all", ["mnist-subsets/rbf-10"])[0].id == "mnist-subsets/rbf-10"


def test_different_works_have_different_names_and_the_same_learning_one() -> None:
    kip = works.Kip(data="mnist", kernel="fc1:nngp", size=10)
    assert works.name(kip) == works.name(dataclasses.replace(kip, seeds=(0, 1), checkpoints=5, tested=("rbf",)))
    assert works.name(kip) != works.name(dataclasses.replace(kip, steps=10))
    distinct = {json.dumps(works.plain(cell.work), sort_keys=True) for cell in all_cells()}
    assert json.loads(next(iter(distinct)))["kind"]
    assert works.name(kip).startswith("kip-mnist-fc1-nngp-10-")


def test_folders_keep_the_names_of_finished_runs() -> None:
    """A name is a promise: runs of hours lie in these folders."""
    kip = works.Kip(data="mnist", kernel="fc1:nngp", size=10, evaluate_every=50)
    network = works.Network(
        data="mnist", net="fc1", support=kip, losses=("mse",), optimiser="adam", learning_rates=(1e-3,), steps=500
    )
    assert works.name(kip) == "kip-mnist-fc1-nngp-10-ea2307a258"
    assert works.name(network) == "network-mnist-fc1-ac6839f3ef"


def test_a_prediction_needs_its_rates_and_grows_with_the_work() -> None:
    work = works.Solved(data="mnist", kernel="myrtle5:nngp", size=100)
    assert costs.predicted(work, {}) is None
    names = costs.needed(work)
    assert names == {"pair myrtle5:nngp mnist", "flop"}
    rates = {"pair myrtle5:nngp mnist": 1e-3, "flop": 0.0}
    assert costs.predicted(work, rates) == pytest.approx(3 * 100 * (60_000 + 10_000 + 100) * 1e-3)
    assert costs.predicted(dataclasses.replace(work, targets=1000), rates) == pytest.approx(3 * 100 * 11.1)
    kip = works.Kip(data="mnist", kernel="rbf", size=10, steps=100, batch=90, seconds=1.0)
    assert costs.predicted(kip, {"gradient rbf mnist": 1.0, "flop": 0.0}) == 1.0  # no longer than its budget


def test_cheap_published_cells_come_first() -> None:
    def cell(name: str, size: int, beside: str | None) -> recipes.Cell:
        return recipes.Cell(id=f"x/{name}", work=works.Subset(data="mnist", kernel="rbf", size=size), published=beside)

    cells = [cell("large", 1000, "p"), cell("free", 10, None), cell("small", 20, "p")]
    unknown = recipes.Cell(id="x/unknown", work=works.Solved(data="mnist", kernel="fc1", size=10), published="p")
    order = costs.cheap_first([unknown, *cells], {"flop": 1e-10})
    assert [each.name for each in order] == ["small", "large", "free", "unknown"]


def test_rates_are_measured_and_kept(tmp_path) -> None:
    assert costs.read(tmp_path) == {}
    found = costs.measure({"flop", "pair rbf digits", "gradient rbf digits"}, seconds=0.01, say=lambda _: None)
    assert all(0 < value < 1 for value in found.values())
    costs.write(tmp_path, found)
    assert costs.read(tmp_path) == found
