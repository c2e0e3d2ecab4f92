import numpy as np
import optax
import pytest

import kip
from kip import baselines, defaults
from kip.options import Options
from kip.task import prepare


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1, 2], [60, 40, 20])
    return rng.normal(size=(120, 5)) + 3 * np.eye(3, 5)[y], y


def test_distillation_beats_a_random_subset(data):
    x, y = data
    task = prepare(x, y, Options(size=3))
    natural = baselines.random_subset(task, x, y, draws=10)
    small = kip.distill(x, y, size=3, steps=60)
    assert small.score(x, y) > natural.mean
    assert natural.std > 0


def test_the_same_seed_gives_the_same_set(data):
    one, two, other = (kip.distill(*data, size=3, steps=5, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.x, two.x)
    np.testing.assert_array_equal(one.y, two.y)
    assert not np.array_equal(one.x, other.x)


def test_soft_targets_are_taken_as_they_are(data):
    x, y = data
    soft = np.eye(3)[y] * 0.8 + 0.1
    small = kip.distill(x, soft, size=3, steps=5)
    assert small.classes == (0, 1, 2)
    assert small.score(x, y) > 0.8


def test_label_solve_takes_a_size_or_rows(data):
    x, y = data
    by_size = kip.label_solve(x, y, size=6)
    assert len(by_size) == 6
    by_rows = kip.label_solve(x, y, support=[0, 70, 110])
    np.testing.assert_allclose(by_rows.images(), x[[0, 70, 110]], atol=1e-5)
    exact = kip.label_solve(x, y, size=6, ridge=0.0)
    assert exact.score(x, y) > 0.8
    with pytest.raises(ValueError, match="either `size` or `support`"):
        kip.label_solve(x, y)
    with pytest.raises(ValueError, match="rows from 0 to 119"):
        kip.label_solve(x, y, support=[500])


def test_an_optimiser_a_callback_and_a_stop_are_handed_in(data):
    seen = []
    kip.distill(
        *data,
        size=3,
        steps=50,
        optimiser=optax.sgd(1e-3),
        callback=lambda _, info: seen.append(info.step),
        stop=lambda: len(seen) >= 4,
    )
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("make", [kip.distill, kip.label_solve])
def test_channels_may_come_first(make):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = rng.normal(size=(40, 5, 6, 3)) + y[:, None, None, None]
    first = np.moveaxis(x, 3, 1)
    steps = {"steps": 3} if make is kip.distill else {}
    with pytest.raises(ValueError, match=r"^`x` must be images .* got shape \(40, 3, 5, 6\), which looks like"):
        make(first, y, size=4, **steps)
    moved = make(first, y, size=4, layout="channels-first", **steps)
    assert moved.x.shape == (4, 5, 6, 3)
    assert moved == make(x, y, size=4, **steps)
    assert make(first, y, size=4, layout="channels-last", **steps).x.shape == (4, 3, 5, 6)
    with pytest.raises(ValueError, match="`layout` must be one of"):
        make(x, y, size=4, layout="nchw", **steps)


def test_validation_rows_are_held_out_and_targets_limited(data):
    x, y = data
    task = prepare(x, y, Options(size=3, validation=0.25, targets=60))
    assert len(task.problem.train) == 60
    assert len(task.validation) == 30
    assert task.original_size == 120


def test_what_was_not_given_is_recorded(data):
    options = prepare(*data, Options(size=3)).options
    assert options.steps
    assert options.learning_rate
    assert options.augment == "none"
    assert options.batch is None  # fewer training points than a batch: all of them


def test_baselines_agree_on_what_they_score(data):
    x, y = data
    task = prepare(x, y, Options(size=6))
    full = baselines.full_training_set(task, x, y)
    assert full.mean > 0.95
    assert baselines.full_training_set(task, x, y, reach=10) is None
    solved = baselines.label_solved(task, x, y, draws=3)
    assert len(solved.accuracies) == 3
    assert solved.mean > 0.8
    centres = baselines.kmeans(task, x, y)
    assert centres.mean > 0.8
    assert centres.scores.shape == (120, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": np.full((120, 5), np.nan)}, "`x` holds NaN or infinity"),
        ({"x": np.zeros((0, 5)), "y": []}, "`x` is empty"),
        ({"x": np.zeros(120)}, "`x` must be images"),
        ({"y": np.zeros(120, int)}, "one class only"),
        ({"y": np.zeros(119, int)}, "`y` has 119 labels for 120 points"),
        ({"y": np.linspace(0, 1, 120)}, "got fractions"),
        ({"size": 2}, "`size` must be at least the 3 classes; got 2. Use size=3"),
        ({"size": 121}, "`size` must be at most the 120 training points"),
        ({"batch": 500}, "`batch` must be at most"),
        ({"steps": 0}, "`steps` must be at least 1"),
        ({"learning_rate": 0.0}, "`learning_rate` must be positive"),
        ({"corruption": 1.0}, "`corruption` must be at least 0 and below 1"),
        ({"corruption": -0.1}, "`corruption` must be at least 0"),
        ({"ridge": -1.0}, "`ridge` must be at least 0"),
        ({"kernel": "rfb"}, "did you mean 'rbf'"),
        ({"labels": "learnt"}, "`labels` must be one of"),
        ({"dtype": "float16"}, "`dtype` must be one of float32, float64"),
        ({"validation": 1.0}, "`validation` must be at least 0 and below 1"),
        ({"schedule": "linear"}, "`schedule` must be one of"),
        ({"augment": "digits"}, "`augment` works on images"),
    ],
)
def test_bad_input_is_named_before_anything_is_computed(data, changes, message):
    arguments = {"x": data[0], "y": data[1], "size": 3, **changes}
    with pytest.raises(ValueError, match=message):
        kip.distill(arguments.pop("x"), arguments.pop("y"), **arguments)


def test_an_unknown_option_is_named(data):
    with pytest.raises(TypeError, match="unexpected argument 'speed'"):
        kip.distill(*data, size=3, speed=2)


def test_a_set_for_networks_takes_the_preset_of_the_command_line(data):
    x, y = data
    small = kip.distill(x, y, size=3, purpose="networks", steps=2)
    assert small.kernel == defaults.VECTOR_FAMILY
    assert (small.config["labels"], small.config["purpose"]) == ("fixed", "networks")
    images = np.repeat(x[:, :4].reshape(-1, 2, 2, 1), 2, axis=1).repeat(2, axis=2)
    assert kip.distill(images, y, size=3, purpose="networks", steps=1).kernel == defaults.NETWORK_FAMILY
    assert kip.distill(x, y, size=3, purpose="networks", kernel="fc1", steps=1).kernel == "fc1"
    assert kip.distill(x, y, size=3, steps=1).kernel == "rbf"
    with pytest.raises(ValueError, match="`purpose` must be one of kernels, networks"):
        kip.distill(x, y, size=3, purpose="people")
