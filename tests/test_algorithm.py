"""Algorithm 1 on scikit-learn's digits: label modes, the interpolation trap, corruption, resumption, stopping."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.linalg
from sklearn.datasets import load_digits
from tests.tolerances import assert_close

import kip
from kip import algorithm
from kip.algorithm import (
    Batch,
    Checkpoint,
    Config,
    DivergedError,
    Info,
    Problem,
    State,
    adam,
    choose_labels,
    draw,
    evaluate,
    evaluation_set,
    init,
    publish,
    run,
    step,
)
from kip.corruption import Corruption, certify
from kip.execution import Execution
from kip.gradients import gradients
from kip.krr import KernelRidge, Ridge, RidgeError, accuracy, mean_square_loss
from kip.label_solver import solve_labels
from kip.sets import LabelledSet, one_hot

RBF = (kip.kernel("rbf"),)
TRAIN = 1200


@cache
def digits() -> tuple[np.ndarray, np.ndarray]:
    stored = load_digits()
    x = stored.data.astype(np.float32)
    order = np.random.default_rng(0).permutation(len(x))
    return ((x - x.mean()) / x.std())[order], stored.target[order]


def problem(n: int = TRAIN, dtype: Any = np.float32) -> Problem:
    x, codes = digits()
    return Problem(LabelledSet(x[:n].astype(dtype), one_hot(codes[:n], 10, dtype)), codes[:n], 10)


@cache
def optimiser(steps: int = 40) -> optax.GradientTransformation:
    return adam(0.1, steps)  # one object, so one compilation


def config(targets: int = TRAIN, **changes: Any) -> Config:
    """A short run; the label mode is what "auto" chooses for so many `targets`, unless it is given."""
    given = {"kernels": RBF, "size": 10, "steps": 40, "optimiser": optimiser(), "evaluate_every": 20, **changes}
    if "labels" not in given:
        given["labels"] = choose_labels("auto", size=given["size"], batch=given.get("batch"), targets=targets)
    return Config(**given)


def next_step(state: State, of: Problem, config: Config) -> tuple[State, Info]:
    return step(state, draw(state, of, config), config)


def trained(config: Config, of: Problem | None = None, key: int = 0) -> State:
    of = of or problem()
    return run(of, config, init(of, config, key=key))


def held_out(support: LabelledSet, kernel: kip.kernels.Kernel = RBF[0]) -> tuple[float, float]:
    """Loss and accuracy on digits that no test trains on."""
    x, codes = digits()
    prediction = KernelRidge([kernel], support).predict(x[TRAIN:])
    return mean_square_loss(prediction, one_hot(codes[TRAIN:], 10)), accuracy(prediction, codes[TRAIN:])


def assert_identical(left: Any, right: Any) -> None:
    """Two pytrees, states included, are the same to the bit."""
    if dataclasses.is_dataclass(left):
        for field in dataclasses.fields(left):
            assert_identical(getattr(left, field.name), getattr(right, field.name))
        return
    if isinstance(left, tuple) and left and isinstance(left[0], Checkpoint):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            assert_identical(a, b)
        return
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert np.asarray(a).dtype == np.asarray(b).dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# Learning


def test_solved_labels_beat_learned_ones_and_those_beat_fixed_ones() -> None:
    """10 images, equal steps, evaluated on one subset: the training loss falls from mode to mode."""
    losses = {labels: trained(config(labels=labels)).best[0].loss for labels in ("fixed", "learned", "solved")}
    assert losses["solved"] < losses["learned"] < losses["fixed"]


def test_ten_learned_images_beat_ten_natural_ones_by_far() -> None:
    settings = config()
    start = init(problem(), settings, key=0)
    _, natural = held_out(LabelledSet(start.x, start.y))
    _, learned = held_out(publish(trained(settings).best[0], problem(), settings))
    assert settings.labels == "solved"
    assert natural < 0.8
    assert learned > 0.93


def test_interpolation_is_a_trap_that_auto_avoids() -> None:
    """With about as many targets as support points, solved labels fit the targets and nothing else."""
    few = problem(110)
    solved, auto = config(size=100, labels="solved"), config(110, size=100)
    assert auto.labels == "learned"
    assert config(499, size=100).labels == "learned"
    assert config(500, size=100).labels == "solved"
    trapped, avoided = (publish(trained(c, few).best[0], few, c) for c in (solved, auto))
    fit_trapped, fit_avoided = (training_loss(s, few) for s in (trapped, avoided))
    assert fit_trapped < 0.5 * fit_avoided  # better where it does not matter
    assert held_out(trapped)[0] > 1.1 * held_out(avoided)[0]  # and worse where it does


def training_loss(support: LabelledSet, of: Problem) -> float:
    return KernelRidge(RBF, support).loss(of.train)


def test_a_batch_as_large_as_the_support_set_teaches_nothing() -> None:
    """There r = 0 at the solved labels, whatever X_s: the gradient is nothing beside that of a large batch."""
    norms = {}
    for batch in (50, 500):
        settings = config(size=50, labels="solved", batch=batch)
        _, info = next_step(init(problem(), settings, key=0), problem(), settings)
        norms[batch] = info.gradient_norm / batch, info.loss
    assert norms[50][0] < 5e-2 * norms[500][0]
    assert norms[50][1] < 1e-4 * norms[500][1]


def test_auto_looks_at_the_batch() -> None:
    chosen = {batch: choose_labels("auto", size=10, batch=batch, targets=TRAIN) for batch in (49, 50, None)}
    assert chosen == {49: "learned", 50: "solved", None: "solved"}
    assert choose_labels("fixed", size=10, batch=50, targets=TRAIN) == "fixed"
    with pytest.raises(ValueError, match="`labels` must be one of auto, fixed, learned, solved; got 'solve'"):
        choose_labels("solve", size=10, batch=50, targets=TRAIN)


def test_labels_move_only_where_they_are_learned() -> None:
    for labels, moves in (("fixed", False), ("learned", True)):
        settings = config(labels=labels, steps=2)
        start = init(problem(), settings, key=0)
        assert np.array_equal(start.y, run(problem(), settings, start).y) != moves


def test_published_labels_are_solved_on_the_whole_training_set() -> None:
    settings = config(labels="solved", steps=2, evaluate_every=2, evaluate_targets=100)
    state = trained(settings)
    published = publish(state.best[0], problem(), settings)
    expected = solve_labels(RBF, state.best[0].x, problem().train, settings.ridge)
    assert_close(published.y, expected.y, "rounding", np.float32)
    assert np.array_equal(published.x, state.best[0].x)
    assert not np.allclose(published.y, state.best[0].y)  # which were solved on the evaluation subset


def test_labels_solved_on_all_of_the_training_set_are_published_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = config(labels="solved", steps=2, evaluate_every=2, evaluate_targets=TRAIN)
    state = trained(settings)
    expected = solve_labels(RBF, state.best[0].x, problem().train, settings.ridge)
    monkeypatch.setattr("kip.algorithm.solve_labels", lambda *_, **__: pytest.fail("solved once more"))
    assert_close(publish(state.best[0], problem(), settings).y, expected.y, "rounding", np.float32)


def test_a_family_is_sampled_and_evaluated_on_all_of_its_members() -> None:
    family = kip.family("rbf+fc1:nngp")
    seen: list[str] = []
    settings = config(kernels=family, labels="learned", steps=12, evaluate_every=12)
    of = problem(300)
    state = run(of, settings, init(of, settings, key=0), callback=lambda _, info: seen.append(info.kernel))
    assert set(seen) == {"rbf", "fc1:nngp"}
    support = LabelledSet(state.x, state.y)
    losses = [KernelRidge([kernel], support, settings.ridge).loss(of.train) for kernel in family]
    assert_close(state.evaluated[-1], np.mean(losses), "rounding", np.float32)
    solved = config(kernels=family, labels="solved", steps=2, evaluate_every=2)
    published = publish(trained(solved, of).best[0], of, solved)
    joint = solve_labels(family, published.x, of.train, solved.ridge)
    assert_close(published.y, joint.y, "rounding", np.float32)


def test_kernel_hyper_parameters_can_be_learned() -> None:
    settings = config(
        kernels=(kip.kernel("rbf:gamma=4"),), learn_kernel=True, labels="fixed", steps=30, evaluate_every=30
    )
    still = config(kernels=(kip.kernel("rbf:gamma=4"),), labels="fixed", steps=30, evaluate_every=30)
    learned, fixed = trained(settings), trained(still)
    (kernel,) = algorithm.kernels_of(settings, learned.log_params)
    assert kernel.params["gamma"] < 3  # wider is better on digits
    assert algorithm.kernels_of(still, fixed.log_params)[0].spec == "rbf:gamma=4"
    assert learned.best[0].loss < fixed.best[0].loss


def test_only_the_sampled_kernel_of_a_family_gets_a_gradient() -> None:
    family = kip.family("rbf+fc1:nngp")
    settings = config(kernels=family, learn_kernel=True, labels="fixed", optimiser=optax.sgd(1e-3))
    of = problem(300)
    start = init(of, settings, key=0)
    state, info = next_step(start, of, settings)
    for kernel, before, after in zip(family, start.log_params, state.log_params, strict=True):
        assert (jax.tree.leaves(before) != jax.tree.leaves(after)) == info.kernel.startswith(kernel.spec)


# Initialisation, batches and corruption


def test_image_initialisation_takes_training_points_class_by_class() -> None:
    start = init(problem(), config(size=23), key=3)
    assert np.bincount(np.argmax(start.y, axis=1)).tolist() == [3, 3, 3, 2, 2, 2, 2, 2, 2, 2]
    rows = [np.flatnonzero((problem().train.x == x).all(axis=1))[0] for x in start.x]
    assert np.array_equal(problem().train.y[rows], start.y)
    assert not np.array_equal(start.x, init(problem(), config(size=23), key=4).x)


def test_noise_initialisation_is_uniform_with_the_labels_of_each_class() -> None:
    start = init(problem(), config(size=20, init="noise"), key=0)
    assert start.x.dtype == np.float32
    assert -1 <= start.x.min() < -0.9
    assert 0.9 < start.x.max() <= 1
    assert np.bincount(np.argmax(start.y, axis=1)).tolist() == [2] * 10
    assert_close(start.y, one_hot(np.argmax(start.y, axis=1), 10), "rounding", np.float32)
    settings = config(init="noise")
    assert held_out(publish(trained(settings).best[0], problem(), settings))[1] > 0.9


def test_support_batches_update_their_rows_alone() -> None:
    settings = config(size=20, support_batch=10, labels="learned")
    before = init(problem(), settings, key=0)
    after, _ = next_step(before, problem(), settings)
    for name in ("x", "y"):
        moved = (getattr(after, name) != getattr(before, name)).any(axis=1)
        assert moved.sum() == 10
    codes = np.argmax(before.y, axis=1)
    assert np.bincount(codes[(after.x != before.x).any(axis=1)]).tolist() == [1] * 10
    last = trained(settings)
    assert (last.x != before.x).any(axis=1).all()
    assert last.best[0].loss < evaluate(before, settings, problem().train).loss


def test_target_batches_are_balanced_fresh_and_augmented() -> None:
    seen: list[tuple[np.ndarray, int]] = []

    def augment(rows: np.ndarray, seed: int) -> np.ndarray:
        seen.append((rows, seed))
        return problem().train.x[rows] + np.float32(1)

    of = dataclasses.replace(problem(), augment=augment)
    settings = config(batch=33)
    first, second = (algorithm.draw_targets(of, settings, key=0, step=s) for s in (0, 1))
    assert sorted(np.bincount(first.codes).tolist()) == [3] * 7 + [4] * 3
    assert not np.array_equal(first.x, second.x)
    assert seen[0][1] != seen[1][1]
    assert np.array_equal(first.x - 1, (problem().train.x[seen[0][0]] + np.float32(1)) - 1)
    whole = algorithm.draw_targets(of, config(), key=0, step=0)
    assert len(whole) == TRAIN
    again = algorithm.draw_targets(problem(), settings, key=0, step=0)
    assert np.array_equal(again.y, first.y)


@pytest.mark.parametrize("corruption", [Corruption(0.5), Corruption(0.9, fill="zeros")], ids=["noise", "zeros"])
@pytest.mark.parametrize("labels", ["learned", "solved"])
def test_corrupted_coordinates_never_change(corruption: Corruption, labels: str) -> None:
    settings = config(corruption=corruption, labels=labels, steps=10, evaluate_every=10)
    before = init(problem(), settings, key=5)
    after = run(problem(), settings, before)
    assert before.mask is not None
    assert before.x[before.mask].tobytes() == after.x[before.mask].tobytes()
    assert (before.x[~before.mask] != after.x[~before.mask]).mean() > 0.8
    published = publish(after.best[0], problem(), settings)
    certificate = certify(published.x, before.mask, corruption, key=5)
    assert certificate.holds
    assert certificate.fraction >= corruption.rho
    assert after.best[0].loss < evaluate(before, settings, problem().train).loss


# Resumption and stopping


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": "learned", "batch": 100, "support_batch": 15, "size": 20, "corruption": Corruption(0.3)},
        {"labels": "solved", "batch": 200},
        {"labels": "fixed", "kernels": kip.family("rbf+fc1:nngp"), "learn_kernel": True, "batch": 100},
    ],
    ids=["learned", "solved", "family"],
)
def test_k_steps_and_k_steps_from_the_state_are_2k_steps_to_the_bit(changes: dict[str, Any]) -> None:
    settings = config(steps=10, evaluate_every=4, **changes)
    halves: list[State] = []
    whole = run(problem(), settings, init(problem(), settings, key=1), callback=lambda state, _: halves.append(state))
    for k in (3, 5, 8):
        assert_identical(run(problem(), settings, halves[k - 1]), whole)
    assert_identical(run(problem(), settings, init(problem(), settings, key=1)), whole)


def test_a_state_carried_through_numpy_goes_on_to_the_bit() -> None:
    """As a checkpoint does: every leaf written and read as an array."""
    settings = config(steps=6, evaluate_every=3, labels="learned", batch=100)
    states: list[State] = []
    whole = run(problem(), settings, init(problem(), settings, key=1), callback=lambda s, _: states.append(s))
    half = states[3]
    carried = dataclasses.replace(half, opt_state=jax.tree.map(np.array, half.opt_state), x=half.x.copy())
    assert_identical(run(problem(), settings, carried), whole)


def test_the_callback_sees_every_step() -> None:
    infos: list[Info] = []
    settings = config(steps=7, evaluate_every=3)
    state = run(problem(), settings, init(problem(), settings, key=0), callback=lambda _, info: infos.append(info))
    assert [info.step for info in infos] == list(range(1, 8))
    assert [info.step for info in infos if info.evaluated is not None] == [3, 6, 7]
    assert all(np.isfinite(info.loss) and info.gradient_norm > 0 for info in infos)
    assert [info.evaluated for info in infos if info.evaluated is not None] == list(state.evaluated)


def test_the_lowest_losses_are_kept_and_evaluated_on_one_subset() -> None:
    settings = config(steps=12, evaluate_every=1, keep=5, evaluate_targets=200, labels="learned")
    seen: list[tuple[float, int]] = []

    def callback(state: State, info: Info) -> None:
        assert info.evaluated is not None
        seen.append((info.evaluated, info.step))

    state = run(problem(), settings, init(problem(), settings, key=0), callback=callback)
    assert [(c.loss, c.step) for c in state.best] == sorted(seen)[:5]
    subset = evaluation_set(problem(), settings, key=0)
    assert len(subset) == 200
    assert np.bincount(subset.codes).tolist() == [20] * 10
    assert_identical(subset.x, evaluation_set(problem(), settings, key=0).x)
    best = state.best[0]
    model = KernelRidge(RBF, LabelledSet(best.x, best.y), settings.ridge)
    assert_close(best.loss, mean_square_loss(model.predict(subset.x), subset.y), "rounding", np.float32)


def test_the_evaluation_subset_is_large_enough_to_solve_labels_on() -> None:
    assert len(evaluation_set(problem(), config(size=50, evaluate_targets=10), key=0)) == 500
    assert evaluation_set(problem(), config(evaluate_targets=10_000), key=0).x is not None
    assert len(evaluation_set(problem(), config(evaluate_targets=10_000), key=0)) == TRAIN


def test_stop_ends_the_run_and_evaluates_what_is_there() -> None:
    settings, calls = config(evaluate_every=20), iter([False, False, True])
    state = run(problem(), settings, init(problem(), settings, key=0), stop=lambda: next(calls))
    assert state.step == 3
    assert [c.step for c in state.best] == [3]


def test_a_plateau_ends_the_run() -> None:
    """A learning rate of nothing: the loss cannot fall, so `patience` evaluations later the run is over."""
    settings = config(steps=100, evaluate_every=2, patience=3, optimiser=optax.sgd(0.0), labels="fixed")
    assert trained(settings, problem(300)).step == 8
    falling = config(steps=16, evaluate_every=2, patience=3, labels="fixed")
    assert trained(falling, problem(300)).step == 16


@pytest.mark.parametrize("rate", [1e30, 1e39])
@pytest.mark.parametrize("labels", ["learned", "solved"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_divergence_keeps_the_last_finite_state(labels: str, rate: float) -> None:
    settings = config(optimiser=optax.sgd(rate), labels=labels)
    with pytest.raises(DivergedError, match=r"not finite at step .* lower the learning rate") as caught:
        trained(settings, problem(300))
    state = caught.value.state
    assert np.isfinite(state.x).all()
    assert np.isfinite(state.y).all()
    assert state.step < settings.steps


def test_float64_runs_in_float64() -> None:
    settings = config(steps=2, evaluate_every=2, labels="learned")
    state = trained(settings, problem(300, np.float64))
    assert state.x.dtype == state.y.dtype == np.float64
    assert not jax.config.jax_enable_x64


def test_tile_size_does_not_change_the_run() -> None:
    states = [
        trained(config(steps=4, evaluate_every=4, execution=how), problem(300, np.float64))
        for how in (Execution(), Execution(tile=64))
    ]
    assert_close(states[0].x, states[1].x, "finite difference")


def test_schedules_and_optimisers_are_optax_ones() -> None:
    for chosen in (optax.sgd(1e-3), optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2))):
        settings = config(optimiser=chosen, labels="fixed", steps=5, evaluate_every=5)
        start = init(problem(300), settings, key=0)
        assert run(problem(300), settings, start).best[0].loss < evaluate(start, settings, problem(300).train).loss
    held, decayed = (adam(0.1, 10, decay=decay) for decay in (False, True))
    assert_close(last_update(held), -0.1, "single", np.float32)
    assert_close(last_update(decayed), -0.1 * (1 + np.cos(0.9 * np.pi)) / 2, "single", np.float32)


def last_update(chosen: optax.GradientTransformation) -> float:
    """The tenth update under a constant gradient."""
    state, update = chosen.init(np.float32(0)), np.float32(0)
    for _ in range(10):
        update, state = chosen.update(np.float32(1), state)
    return float(update)


def test_a_step_takes_the_batch_that_it_is_given() -> None:
    """A kernel of the family, targets and rows of the support set of one's own choice; the state is not touched."""
    family, of = kip.family("rbf+fc1:nngp"), problem(300)
    settings = config(kernels=family, labels="learned", size=20, optimiser=optax.sgd(1e-2))
    start, rows, targets = init(of, settings, key=0), np.array([3, 5]), of.train.take(np.arange(7, 90))
    before = jax.tree.map(np.copy, start)
    after, info = step(start, Batch(1, targets, rows), settings)
    assert_identical(start, before)
    assert info.kernel == "fc1:nngp"
    assert info.step == after.step == 1
    support = LabelledSet(start.x[rows], start.y[rows])
    found = gradients(family[1], support, targets, settings.ridge)
    assert_close(info.loss, KernelRidge([family[1]], support, settings.ridge).loss(targets), "stream", np.float32)
    assert_close(after.x[rows], start.x[rows] - 1e-2 * found.x, "single", np.float32)
    assert_close(after.y[rows], start.y[rows] - 1e-2 * found.y, "single", np.float32)
    still = np.setdiff1d(np.arange(20), rows)
    assert np.array_equal(after.x[still], start.x[still])
    assert_identical(step(start, Batch(1, targets, rows), settings)[0], after)


def test_a_batch_is_drawn_from_the_key_and_the_step_alone() -> None:
    settings = config(kernels=kip.family("rbf+fc1:nngp"), labels="learned", size=20, support_batch=10, batch=50)
    start = init(problem(), settings, key=0)
    moved, _ = next_step(start, problem(), settings)
    first, again = draw(start, problem(), settings), draw(dataclasses.replace(moved, step=0), problem(), settings)
    assert first.kernel == again.kernel
    assert np.array_equal(first.targets.x, again.targets.x)
    assert first.support_rows is not None
    assert np.array_equal(first.support_rows, again.support_rows)
    assert len(first.support_rows) == 10
    later = draw(moved, problem(), settings)
    assert not np.array_equal(later.targets.x, first.targets.x)
    whole = draw(start, problem(), config())
    assert whole.support_rows is None
    assert whole.targets is problem().train or len(whole.targets) == TRAIN


def test_a_state_is_a_pytree() -> None:
    settings = config(steps=4, evaluate_every=2, labels="learned", corruption=Corruption(0.3), batch=100)
    state = trained(settings)
    leaves, tree = jax.tree.flatten(state)
    again = jax.tree.unflatten(tree, leaves)
    assert isinstance(again, State)
    assert [type(checkpoint) for checkpoint in again.best] == [Checkpoint] * 2
    assert_identical(again, state)
    doubled = jax.tree.map(
        lambda leaf: 2 * leaf if isinstance(leaf, np.ndarray) and leaf.dtype.kind == "f" else leaf, state
    )
    assert np.array_equal(doubled.x, 2 * state.x)
    assert np.array_equal(doubled.best[0].y, 2 * state.best[0].y)
    assert doubled.step == state.step
    longer = dataclasses.replace(settings, steps=6)
    assert_identical(run(problem(), longer, again), run(problem(), longer, state))


@pytest.mark.parametrize("spec", ["linear", "rbf"])
@pytest.mark.parametrize("labels", ["solved", "learned"])
def test_what_is_evaluated_is_what_is_published(spec: str, labels: str) -> None:
    """Also where minimum-norm labels are so large that the rounding of float32 shows: a linear kernel on 100 images."""
    settings = config(kernels=(kip.kernel(spec),), size=100, labels=labels, steps=1, evaluate_every=1)
    of = problem(600)
    state = init(of, settings, key=0)
    checkpoint = evaluate(state, settings, of.train)
    published = publish(checkpoint, of, settings)
    model = KernelRidge(settings.kernels, published, settings.ridge)
    assert model.needs_float64 == (spec == "linear")
    assert_close(checkpoint.loss, model.loss(of.train), "stream", np.float32)


def test_kernel_of_ones_own_is_learned_with() -> None:
    def wide(x1: jax.Array, x2: jax.Array) -> jax.Array:
        squares = jnp.sum(x1**2, 1)[:, None] + jnp.sum(x2**2, 1) - 2 * x1 @ x2.T
        return jnp.exp(-squares / x1.shape[1])

    own, builtin = (config(kernels=kip.family(k), labels="solved", steps=10, evaluate_every=10) for k in (wide, "rbf"))
    mine, theirs = trained(own, problem(300)), trained(builtin, problem(300))
    start = evaluate(init(problem(300), own, key=0), own, problem(300).train)
    assert mine.best[0].loss < 0.7 * start.loss
    assert_close(mine.best[0].loss, theirs.best[0].loss, "single", np.float32, scale=10 * theirs.best[0].loss)
    assert held_out(publish(mine.best[0], problem(300), own), kip.kernel(wide))[1] > 0.8


# Bad input


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 0}, "`size` must be at least 1; got 0"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"batch": 0}, "`batch` must be at least 1, or None; got 0"),
        ({"support_batch": 0}, "`support_batch` must be at least 1"),
        ({"patience": 0}, "`patience` must be at least 1"),
        ({"keep": 0}, "`keep` must be at least 1"),
        ({"labels": "solve"}, "`labels` must be one of fixed, learned, solved; got 'solve'"),
        ({"init": "random"}, "`init` must be one of image, noise; got 'random'"),
        ({"damping": -1.0}, "`damping` must be zero or positive"),
        ({"damping": float("nan")}, "`damping` must be zero or positive"),
        ({"kernels": ()}, "`kernels` is empty"),
        ({"kernels": (kip.kernel("linear"),), "learn_kernel": True}, "`learn_kernel` needs a kernel with hyper-param"),
        ({"kernels": (kip.kernel("linear&linear"),), "learn_kernel": True}, "`learn_kernel` needs a kernel"),
    ],
)
def test_bad_configurations_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ridge": Ridge(0.0)}, "`ridge` must be positive for KIP"),
        ({"size": 9}, "`size` must be at least the 10 classes; got 9. Use size=10"),
        ({"size": 1201}, "`size` must be at most the 1200 training points"),
        ({"batch": 1201}, "`batch` must be at most the 1200 training points"),
        ({"support_batch": 11}, "`support_batch` must be at most `size` = 10"),
    ],
)
def test_what_does_not_fit_the_data_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init(problem(), config(**changes), key=0)


def spoilt(**changes: Any) -> Problem:
    of = problem(20)
    train = LabelledSet(changes.pop("x", of.train.x), changes.pop("y", of.train.y))
    return dataclasses.replace(of, train=train, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.full((20, 64), np.nan, np.float32)}, "`train.x` holds NaN or infinity"),
        ({"x": np.zeros(20, np.float32)}, "`train.x` must be images"),
        ({"y": np.full((20, 10), np.inf, np.float32)}, "`train.y` holds NaN"),
        ({"y": np.zeros(20, np.float32)}, "`train.y` must be a float matrix"),
        ({"codes": np.zeros(19, int)}, "`codes` must be 20 integers"),
        ({"codes": np.zeros(20)}, "`codes` must be 20 integers"),
        ({"codes": np.full(20, 10)}, "`codes` must lie in 0 … 9"),
        ({"codes": np.full(20, -1)}, "`codes` must lie in 0 … 9"),
    ],
)
def test_bad_problems_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        init(spoilt(**changes), config(), key=0)


def test_an_empty_problem_is_named() -> None:
    empty = Problem(LabelledSet(np.zeros((0, 4), np.float32), np.zeros((0, 2), np.float32)), np.zeros(0, int), 2)
    with pytest.raises(ValueError, match=r"`train\.x` is empty"):
        init(empty, config(), key=0)


def test_points_that_can_no_longer_be_inverted_are_a_divergence_but_not_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: object) -> None:
        raise RidgeError("not positive definite")

    of, settings = problem(300), config()
    fresh = init(of, settings, key=0)
    moved, _ = next_step(fresh, of, settings)
    monkeypatch.setattr(algorithm, "_gradients", fails)
    with pytest.raises(RidgeError):
        next_step(fresh, of, settings)
    with pytest.raises(DivergedError, match="can no longer be inverted at step 1; lower") as caught:
        next_step(moved, of, settings)
    assert caught.value.state is moved


@pytest.mark.parametrize("labels", ["fixed", "learned", "solved"])
def test_a_factorisation_that_fails_is_a_divergence_but_not_at_the_start(
    labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise np.linalg.LinAlgError("the leading minor is not positive definite")

    of, settings = problem(300), config(labels=labels)
    fresh = init(of, settings, key=0)
    moved, _ = next_step(fresh, of, settings)
    monkeypatch.setattr(scipy.linalg, "cholesky", fails)
    with pytest.raises(RidgeError, match="not positive definite"):
        next_step(fresh, of, settings)
    with pytest.raises(DivergedError, match="can no longer be inverted at step 1; lower") as caught:
        next_step(moved, of, settings)
    assert caught.value.state is moved


@pytest.mark.parametrize("labels", ["fixed", "solved"])
def test_a_divergence_that_the_evaluation_meets_keeps_the_state_before(
    labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RidgeError("not positive definite")

    of, settings = problem(300), config(labels=labels, steps=4, evaluate_every=2)
    states = [init(of, settings, key=0)]
    states += [state for state, _ in algorithm.iterate(of, settings, states[0])]
    monkeypatch.setattr(algorithm, "solve_labels" if labels == "solved" else "KernelRidge", fails)
    with pytest.raises(DivergedError, match="can no longer be inverted at step 3; lower") as caught:
        list(algorithm.iterate(of, settings, states[3]))
    assert_identical(caught.value.state, states[3])
    with pytest.raises(RidgeError):
        evaluate(states[0], settings, of.train)
