"""Raw data and options made ready: kinds of data, sets to start from, objects of the user's own, Label Solve."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import kip
from kip.options import Options
from kip.task import Own, outline, prepare

RNG = np.random.default_rng(0)
Y = np.arange(60) % 3
X = RNG.normal(size=(60, 5)) + 3 * np.eye(3, 5)[Y]
IMAGES = RNG.integers(0, 256, (60, 8, 8, 3)).astype(np.uint8)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [((8, 8), "images"), ((8, 8, 1), "images"), ((8, 8, 3), "photos"), ((8, 8, 4), "images"), ((64,), "vectors")],
)
def test_the_kind_of_data_follows_from_shape_and_channels(shape: tuple[int, ...], kind: str) -> None:
    x = RNG.normal(size=(60, *shape))
    assert outline(x, Y, Options(size=3)).options.kind == kind
    assert outline(x, Y, Options(size=3, kind="digits")).options.kind == "digits"


def test_the_kind_decides_what_auto_augments() -> None:
    def augmented(x: np.ndarray, **options: str) -> str | None:
        return outline(x, Y, Options(size=3, augment="auto", **options)).options.augment

    assert augmented(IMAGES) == "photos"
    assert augmented(IMAGES[..., 0]) == "digits"
    assert augmented(IMAGES, kind="digits") == "digits"


def chosen(kernel: str) -> tuple[object, ...]:
    options = outline(IMAGES, Y, Options(size=3, kernel=kernel)).options
    return options.steps, options.learning_rate, options.evaluate_targets


def test_multiples_and_sums_have_the_defaults_of_their_parts() -> None:
    assert chosen("rbf") != chosen("conv1")
    for kernel in ("0.5*rbf", "rbf&fc1", "0.5*rbf&fc1", "linear+0.5*fc2"):
        assert chosen(kernel) == chosen("rbf"), kernel
    for kernel in ("0.5*conv1", "conv1&fc1", "rbf&conv1", "fc1+0.5*conv1"):
        assert chosen(kernel) == chosen("conv1"), kernel


@pytest.fixture(scope="module")
def start() -> kip.DistilledSet:
    return kip.distill(X, Y, size=3, steps=3)


@pytest.mark.parametrize("given", ["set", "folder", "text"])
def test_a_set_to_start_from_is_a_set_or_its_folder(given: str, start: kip.DistilledSet, tmp_path: Path) -> None:
    folder = start.save(tmp_path / "run")
    small = kip.distill(X, Y, start={"set": start, "folder": folder, "text": str(folder)}[given], size=6, steps=1)
    assert len(small) == 6
    assert small.config["start"] == (repr(start) if given == "set" else str(folder))


def test_the_points_to_start_from_are_the_same_to_the_bit(start: kip.DistilledSet) -> None:
    for options in (Options(), Options(kernel="fc1"), Options(size=9, labels="learned")):
        task = prepare(X, Y, options, Own(start=start))
        first = task.initial()
        np.testing.assert_array_equal(first.x[:3], start.x)
        np.testing.assert_array_equal(first.y[:3], start.y)
        assert len(first.x) == (options.size or 3)
        np.testing.assert_array_equal(np.bincount(np.argmax(first.y, axis=1)), [(options.size or 3) // 3] * 3)
        for point in first.x[3:]:
            assert (task.problem.train.x == point).all(axis=1).any(), "new points are natural"


def test_a_start_can_go_on_with_more_data_and_other_preprocessing(start: kip.DistilledSet) -> None:
    more = prepare(np.concatenate([X, X + 1]), np.concatenate([Y, Y]), Options(), Own(start=start))
    np.testing.assert_allclose(more.preprocess.invert(more.initial().x), start.images(), atol=1e-5)
    assert not np.array_equal(more.initial().x, start.x)
    none = prepare(X, Y, Options(preprocess="none"), Own(start=start))
    np.testing.assert_allclose(none.initial().x, start.images(), atol=1e-5)


def test_a_start_may_lack_classes_of_the_data(start: kip.DistilledSet) -> None:
    y = np.where(np.arange(60) % 4 == 3, 7, Y)
    first = prepare(X, y, Options(size=8), Own(start=start)).initial()
    np.testing.assert_array_equal(first.y[:3, :3], start.y)
    np.testing.assert_array_equal(first.y[:3, 3], [-0.25] * 3)
    assert np.bincount(np.argmax(first.y, axis=1)).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    ("x", "y", "size", "message"),
    [
        (X, Y, 2, "`size` must be at least the 3 points of `start`; got 2"),
        (X[:, :4], Y, 6, r"`start` has points of shape \(5,\), the data of \(4,\)"),
        (X, Y + 1, 6, "`start` has the class 0, which the data do not have"),
    ],
    ids=["smaller", "another shape", "an unknown class"],
)
def test_what_cannot_be_started_from_is_refused_in_a_line(
    x: np.ndarray, y: np.ndarray, size: int, message: str, start: kip.DistilledSet
) -> None:
    with pytest.raises(ValueError, match=f"^{message}") as caught:
        kip.distill(x, y, size=size, start=start, steps=1)
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"^`start` must be a distilled set or the folder of one; got 5"):
        kip.distill(X, Y, start=5)
    with pytest.raises(FileNotFoundError, match="holds no distilled set"):
        kip.distill(X, Y, start="nowhere")


def upside_down(rng: np.random.Generator, raw: np.ndarray) -> np.ndarray:
    return raw[:, ::-1] if rng.random() < 2 else raw


def test_objects_of_the_users_own_are_recorded(tmp_path: Path) -> None:
    small = kip.distill(IMAGES, Y, size=3, steps=2, augment=upside_down, optimiser=optax.sgd(1e-3))
    assert small.config["augment"] == f"own:{__name__}.upside_down"
    assert small.config["optimiser"].startswith("own:optax.")
    assert kip.load(small.save(tmp_path / "set")).config == small.config
    plain = kip.distill(IMAGES, Y, size=3, steps=2, augment="none", optimiser="adam")
    assert (plain.config["augment"], plain.config["optimiser"]) == ("none", "adam")
    assert not np.array_equal(plain.x, small.x)


@pytest.mark.parametrize("optimiser", ["sgd", None, 3])
def test_what_is_no_optimiser_is_refused(optimiser: object) -> None:
    with pytest.raises(ValueError, match=r"^`optimiser` must be 'adam' or an optax transformation; got "):
        kip.distill(X, Y, size=3, optimiser=optimiser)
    with pytest.raises(ValueError, match=r"^`kernel` must be a name, a kernel, a function, or a list of these; got 3"):
        kip.distill(X, Y, size=3, kernel=3)


def gaussian(a, b):
    return jnp.exp(-jnp.sum((a[:, None] - b[None]) ** 2, axis=-1) / 10)


def test_a_set_of_ones_own_kernel_needs_it_again(tmp_path: Path) -> None:
    small = kip.distill(X, Y, size=3, steps=2, kernel=gaussian)
    assert small.kernel == "own:gaussian"
    folder = small.save(tmp_path / "set")
    with pytest.raises(ValueError, match=r"was made with a custom kernel, 'own:gaussian'.*kernel=mine") as caught:
        kip.load(folder)
    assert "\n" not in str(caught.value)
    again = kip.load(folder, kernel=gaussian)
    np.testing.assert_array_equal(again.scores(X), small.scores(X))
    assert again == small
    with pytest.raises(ValueError, match="was made with kernel 'own:gaussian'; got 'rbf'"):
        kip.load(folder, kernel="rbf")
    assert len(kip.distill(X, Y, start=again, kernel="rbf", steps=1)) == 3


@pytest.mark.parametrize("more", [{}, {"targets": 30}, {"validation": 0.5}, {"targets": 24, "validation": 0.2}])
def test_label_solve_labels_the_rows_it_was_given(more: dict[str, float]) -> None:
    rows = [0, 59, 2, 31, 17]
    small = kip.label_solve(X, Y, support=rows, **more)
    np.testing.assert_allclose(small.images(), X[rows], atol=1e-5)
    assert small.y.shape == (5, 3)
    assert small.config["size"] == 5
    assert not np.array_equal(small.y, kip.label_solve(X, Y, support=rows[::-1], **more).y)


def test_no_points_are_refused_at_the_door_and_give_no_rows_inside(start: kip.DistilledSet) -> None:
    for call in (start.scores, start.predict, lambda raw: start.score(raw, [])):
        with pytest.raises(ValueError, match=r"^`raw` is empty"):
            call(X[:0])
    assert kip.kernel("rbf").gram(X[:0], X[:3]).shape == (0, 3)
    assert kip.kernel("rbf").gram(X, X[:0]).shape == (len(X), 0)
    with pytest.raises(ValueError, match=r"^`x` is empty"):
        kip.distill(X[:0], Y[:0], size=3)
    assert start.model.predict(np.zeros((0, 5), np.float32)).shape == (0, 3)


def test_a_start_on_another_scale_is_brought_to_that_of_the_data() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    x = (rng.integers(0, 60, (60, 6, 6)) + 60 * y[:, None, None]).astype(np.uint8)
    start = kip.distill(x, y, size=3, steps=3)
    again = prepare(x.astype(np.float32) / 255, y, Options(size=3), Own(start=start)).initial()
    np.testing.assert_allclose(again.x, start.x, atol=1e-3)


def test_a_custom_kernel_is_tried_before_anything_is_computed() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), np.arange(20) % 2
    bad = {
        "must give a matrix": lambda a, b: (a @ b.T)[0],
        "must be finite and symmetric": lambda a, b: -(a @ b.T),
        "failed on points of shape .*write it with jax.numpy": lambda a, b: np.linalg.norm(np.asarray(a)) * (a @ b.T),
    }
    for message, function in bad.items():
        with pytest.raises(ValueError, match=message):
            kip.distill(x, y, size=2, steps=1, kernel=function)


def test_rows_to_label_need_not_be_of_every_class() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(30) % 3
    x = rng.normal(size=(30, 4)) + np.eye(3, 4)[y]
    assert len(kip.label_solve(x, y, support=[0, 3])) == 2
    assert len(kip.label_solve(x, y, support=np.arange(12), targets=9)) == 12
