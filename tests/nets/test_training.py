"""Training: that it follows the kernel where networks are wide, its protocol, and what labels become."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import kip
from kip.kernels.network import named
from kip.krr import Factor, Ridge
from kip.nets import training
from kip.nets.batches import Batches, targets
from kip.nets.models import BatchNorm, Factory, Layers
from kip.nets.training import Settings, train
from kip.sets import LabelledSet, one_hot

RNG = np.random.default_rng(0)


def blobs(points: int, seed: int = 0, classes: int = 3, width: int = 6) -> LabelledSet:
    rng = np.random.default_rng(seed)
    codes = np.arange(points) % classes
    x = rng.normal(size=(points, width)) + 2 * np.eye(classes, width)[codes]
    return LabelledSet(x.astype(np.float32), one_hot(codes, classes))


class Centred(nnx.Module):
    """A wide network less itself at the start, so that its prediction is the kernel's, without the random offset."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int, *, rngs: nnx.Rngs) -> None:
        network, key = named("fc1"), rngs.params()
        assert network is not None
        self.net, self.start = (
            Layers(network, shape, classes, width=width, parameterisation="ntk", rngs=nnx.Rngs(key)) for _ in range(2)
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.net(x) - jax.lax.stop_gradient(self.start(x))


def test_a_wide_network_trained_to_convergence_predicts_as_its_kernel() -> None:
    """The gap to the NTK's KRR prediction shrinks with the width, and is below 5 % at 4096."""
    support, test = blobs(12), blobs(30, seed=1)
    kernel = kip.kernel("fc1")
    x_s, x_t = support.x.astype(np.float64), test.x.astype(np.float64)
    expected = np.asarray(kernel.gram(x_t, x_s)) @ Factor(np.asarray(kernel.gram(x_s)), Ridge(1e-12)).solve(support.y)
    settings = Settings(loss="mse", optimiser="momentum", learning_rate=0.3, steps=1500)
    gaps = []
    for width in (256, 1024, 4096):

        def wide(shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs, width: int = width) -> nnx.Module:
            return Centred(shape, classes, width, rngs=rngs)

        found = train(wide, support, settings, seeds=range(3), watch_every=500)
        fitted = np.abs(found.predict(support.x) - support.y).max()
        assert fitted < 1e-3, "not trained to convergence"
        gap = np.linalg.norm(found.predict(test.x) - expected, axis=(1, 2)) / np.linalg.norm(expected)
        gaps.append(float(gap.mean()))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.05


def test_a_network_trained_on_noise_scores_chance() -> None:
    """Over many draws of noise the mean accuracy is one over the number of classes, within four standard errors."""
    test = blobs(300, seed=5)
    means = []
    for draw in range(12):
        x = np.random.default_rng(draw).uniform(-1, 1, (30, 6)).astype(np.float32)
        noise = LabelledSet(x, one_hot(np.arange(30) % 3, 3))
        means.append(train("fc1:32", noise, Settings(steps=40, learning_rate=1e-2), seeds=range(2), test=test).mean)
    error = np.std(means, ddof=1) / np.sqrt(len(means))
    assert abs(np.mean(means) - 1 / 3) < 4 * error
    learned = train("fc1:32", blobs(30), Settings(steps=40, learning_rate=1e-2), seeds=range(2), test=test)
    assert learned.mean > 0.7


@pytest.mark.parametrize("loss", ["mse", "xent"])
@pytest.mark.parametrize("optimiser", ["adam", "momentum"])
def test_seeds_together_are_seeds_in_turn(loss: str, optimiser: str) -> None:
    support, test = blobs(20), blobs(50, seed=1)
    settings = Settings(loss, optimiser, 0.01, l2=1e-3, schedule="cosine", steps=12, batch=8)
    together, turn = (train("fc1:16", support, settings, seeds=(3, 4), together=flag) for flag in (True, False))
    alone = train("fc1:16", support, settings, seeds=(4,))
    np.testing.assert_allclose(together.predict(test.x), turn.predict(test.x), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(turn.predict(test.x)[1:], alone.predict(test.x), rtol=2e-4, atol=2e-5)


def test_a_step_of_momentum_is_that_of_the_formula() -> None:
    support = blobs(9)
    settings = Settings("mse", "momentum", 0.1, l2=0.5, steps=1, read_out="drawn")
    before = nnx.state(training.build("fc1:4", (6,), 3, seed=0), nnx.Param)
    graph = nnx.split(training.build("fc1:4", (6,), 3, seed=0))[0]

    def loss(params: nnx.State) -> jax.Array:
        out = nnx.merge(graph, params)(jnp.asarray(support.x))
        decay = sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))
        return 0.5 * jnp.sum((out - support.y) ** 2) / 9 + 0.25 * decay

    after = jax.tree.map(lambda p, g: p - 0.1 * g, before, jax.grad(loss)(before))
    expected = nnx.merge(graph, after)(jnp.asarray(support.x))
    found = train("fc1:4", support, settings, seeds=[0])
    np.testing.assert_allclose(found.predict(support.x)[0], expected, rtol=1e-4, atol=1e-5)


def test_under_mean_square_loss_a_network_starts_at_zero_and_few_points_teach_it_more() -> None:
    support, test = blobs(12), blobs(300, seed=1)
    assert [Settings(loss=loss).silent for loss in training.LOSSES] == [True, False]
    assert Settings(read_out="zero").silent
    found = {}
    for read_out in ("auto", "zero", "drawn"):
        settings = Settings("mse", "adam", 1e-2, steps=100, read_out=read_out)
        found[read_out] = train("fc1:256", support, settings, seeds=range(5), test=test).mean
    assert found["auto"] == found["zero"] > found["drawn"]


def test_a_read_out_of_zeros_needs_a_layer_of_that_name() -> None:
    def own(shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
        return nnx.Linear(shape[0], classes, rngs=rngs)

    assert train(own, blobs(12), Settings("mse", steps=1), seeds=[0]).chosen_step == 1
    with pytest.raises(ValueError, match="no layer of that name"):
        train(own, blobs(12), Settings("mse", steps=1, read_out="zero"), seeds=[0])


class Remembering(nnx.Module):
    """One's own network with variables that are not learned: running averages, and dropout's random numbers."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> None:
        self.norm = nnx.BatchNorm(shape[0], momentum=0.5, rngs=rngs)
        self.dense, self.read_out = (nnx.Linear(*sizes, rngs=rngs) for sizes in ((shape[0], 32), (32, classes)))
        self.dropout = nnx.Dropout(0.3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.read_out(self.dropout(nnx.relu(self.dense(self.norm(x)))))


@pytest.mark.parametrize("together", [True, False])
def test_ones_own_network_may_have_variables_that_are_not_learned(together: bool) -> None:
    """Outputs come from the running averages, without dropout: a point's do not depend on its company, nor vary."""
    test = blobs(60, seed=1)
    settings = Settings(learning_rate=1e-2, steps=60)
    found = train(Remembering, blobs(30), settings, seeds=range(2), watch=test, test=test, together=together)
    assert found.mean > 0.6
    whole = found.predict(test.x)
    np.testing.assert_allclose(found.predict(test.x[:7]), whole[:, :7], rtol=1e-4, atol=1e-5)
    again = train(Remembering, blobs(30), settings, seeds=range(2), watch=test, test=test, together=together)
    np.testing.assert_array_equal(again.predict(test.x), whole)
    assert found._networks is not None
    assert any(float(jnp.abs(leaf).max()) > 0.05 for leaf in averages(found._networks.parts[0].rest))


def averages(rest: nnx.State) -> list[jax.Array]:
    """The running means, which start at zero."""
    return jax.tree.leaves(rest["norm"]["mean"])


def fives(shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Linear(5, classes, rngs=rngs)


def scalar(shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Linear(shape[0], 1, rngs=rngs)


def for_images(shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> nnx.Module:
    return nnx.Linear(shape[2], classes, rngs=rngs)


def without_rngs(shape: tuple[int, ...], classes: int) -> nnx.Module:
    return nnx.Linear(shape[0], classes, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    ("own", "message"),
    [
        (fives, r"network 'fives' fails on points of shape \(2, 6\): .*"),
        (scalar, r"network 'scalar' must map points of shape \(2, 6\) to \(2, 3\); it gives \(2, 1\)"),
        (for_images, r"network 'for_images' cannot be built with \(shape=\(6,\), classes=3, rngs=…\): tuple index"),
        (without_rngs, r"network 'without_rngs' cannot be built with .* unexpected keyword argument 'rngs'"),
    ],
)
def test_ones_own_network_is_tried_before_it_is_trained(own: Factory, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        train(own, blobs(12), Settings(steps=1), seeds=[0])
    assert "\n" not in str(caught.value)


def test_the_step_is_chosen_on_validation_and_the_test_set_is_scored_there() -> None:
    support, watch, test = blobs(20), blobs(60, seed=1), blobs(60, seed=2)
    seen: list[tuple[int, float | None]] = []
    settings = Settings(learning_rate=0.02, steps=25)
    found = train(
        "fc1:16", support, settings, seeds=range(2), watch=watch, watch_every=10, test=test,
        progress=lambda step, accuracy: seen.append((step, accuracy)),
    )  # fmt: skip
    assert [step for step, _ in seen] == [10, 20, 25] == [step for step, _ in found.watch]
    means = {step: np.mean(each) for step, each in found.watch}
    assert found.chosen_step == max(means, key=lambda step: means[step])
    assert found.validation_accuracy == max(means.values())
    again = np.argmax(found.predict(test.x), axis=2) == test.codes
    assert found.test_accuracies == tuple(again.mean(axis=1).tolist())
    assert found.mean == np.mean(found.test_accuracies)
    assert found.std == np.std(found.test_accuracies, ddof=1)
    last = train("fc1:16", support, settings, seeds=range(2), test=test)
    assert last.chosen_step == 25
    assert np.isnan(last.validation_accuracy)


def test_training_stops_when_asked_and_when_it_has_diverged() -> None:
    support = blobs(20)
    asked = iter([False, True])
    found = train("fc1:8", support, Settings(steps=100), seeds=[0], watch_every=10, stop=lambda: next(asked))
    assert found.chosen_step == 20
    wild = Settings("mse", "momentum", learning_rate=1e6, steps=100)
    seen: list[int] = []
    train("fc1:8", support, wild, seeds=[0], watch_every=10, progress=lambda step, _: seen.append(step))
    assert seen[-1] < 100


def test_one_compilation_for_all_seeds_rates_and_penalties() -> None:
    support = blobs(21)
    train("fc2:7", support, Settings(steps=3), seeds=range(2))
    before = training._step._cache_size()
    for rate in (1e-3, 1e-2):
        for l2 in (0.0, 1e-2):
            train("fc2:7", blobs(21, seed=4), Settings(learning_rate=rate, l2=l2, steps=3), seeds=range(5))
    assert training._step._cache_size() == before


def test_prediction_by_tiles_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = train("fc1:8", blobs(12), Settings(steps=2), seeds=range(2))
    points = blobs(23, seed=1).x
    whole = found.predict(points)
    monkeypatch.setattr(training, "PREDICTION_BYTES", 4 * 8 * 10)
    np.testing.assert_allclose(found.predict(points), whole, rtol=1e-5, atol=1e-6)
    assert whole.shape == (2, 23, 3)


class Normed(nnx.Module):
    """A network whose outputs depend on the company a point is in: batch norm without a memory."""

    def __init__(self, shape: tuple[int, ...], classes: int, *, rngs: nnx.Rngs) -> None:
        self.norm, self.read_out = BatchNorm(shape[0]), nnx.Linear(shape[0], classes, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.read_out(self.norm(x))


def test_points_sorted_by_class_are_predicted_as_shuffled_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 20 points would each hold one class, at whose own mean batch norm would take what tells it away."""
    found = train(Normed, blobs(60), Settings(steps=100, learning_rate=3e-2), seeds=[0])
    shuffled = blobs(300, seed=1)
    by_class = shuffled.take(np.argsort(shuffled.codes, kind="stable"))
    whole = np.mean(np.argmax(found.predict(shuffled.x), axis=2) == shuffled.codes)
    assert whole > 0.7
    monkeypatch.setattr(training, "PREDICTION_BYTES", 4 * 6 * 20)
    for points in (shuffled, by_class):
        assert np.mean(np.argmax(found.predict(points.x), axis=2) == points.codes) > whole - 0.05


def test_each_seed_may_have_its_own_set() -> None:
    sets, test = [blobs(12, seed=s) for s in range(2)], blobs(10, seed=9)
    settings = Settings(steps=4)
    both = train("fc1:8", sets, settings, seeds=range(2))
    second = train("fc1:8", sets[1], settings, seeds=[1])
    np.testing.assert_allclose(both.predict(test.x)[1], second.predict(test.x)[0], rtol=1e-4, atol=1e-6)
    with pytest.raises(ValueError, match="2 sets for 3 seeds"):
        train("fc1:8", sets, settings, seeds=range(3))
    with pytest.raises(ValueError, match="one shape"):
        train("fc1:8", [blobs(12), blobs(13)], settings, seeds=range(2))


def test_what_labels_become() -> None:
    hard = one_hot(np.array([0, 2, 1]), 3)
    soft = hard * np.float32(0.5) + np.float32([0.1, 0.0, -0.1])
    np.testing.assert_array_equal(targets(soft, "mse"), soft)
    for kind in ("argmax", "clip", "softmax"):
        np.testing.assert_allclose(targets(hard, "xent", kind), np.eye(3)[[0, 2, 1]], atol=1e-6)
    np.testing.assert_allclose(targets(soft, "xent"), np.eye(3)[[0, 2, 1]], atol=1e-6)
    for kind in ("clip", "softmax"):
        found = targets(soft, "xent", kind)
        np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)
        assert (found > 0).all()
        assert found.max() < 0.95
    np.testing.assert_allclose(targets(-np.ones((1, 3), np.float32), "xent", "clip"), [[1, 0, 0]], atol=1e-6)


def test_batches_pass_over_all_points_and_are_augmented() -> None:
    from kip.data.augment import Augment

    images = LabelledSet(RNG.normal(size=(10, 6, 6, 1)).astype(np.float32), one_hot(np.arange(10) % 2, 2))
    batches = Batches([images], (0, 1), 5, None, stacked=False)
    seen = np.concatenate([batches.of(0, step)[0] for step in (0, 1)])
    np.testing.assert_array_equal(np.sort(seen.reshape(10, -1)[:, 0]), np.sort(images.x.reshape(10, -1)[:, 0]))
    assert not np.array_equal(batches.of(0, 0)[0], batches.of(1, 0)[0])
    augmented = Batches([images], (0, 1), None, Augment.flips(), stacked=True)
    x, y = augmented.of(0, 3)
    assert x.shape == (2, 10, 6, 6, 1)
    np.testing.assert_array_equal(y[1], images.y)
    flipped = (x[0] == images.x[:, :, ::-1]).all(axis=(1, 2, 3))
    same = (x[0] == images.x).all(axis=(1, 2, 3))
    assert (flipped ^ same).all()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": "hinge"}, "`loss` must be one of mse, xent"),
        ({"optimiser": "sgd"}, "`optimiser` must be one of"),
        ({"schedule": "linear"}, "`schedule` must be one of"),
        ({"soft_labels": "hard"}, "`soft_labels` must be one of"),
        ({"read_out": "small"}, "`read_out` must be one of auto, zero, drawn"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"l2": -1.0}, "`l2` must be zero or positive"),
        ({"steps": 0}, "`steps` and `batch`"),
        ({"augment": "flip"}, "flips"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**wrong)
