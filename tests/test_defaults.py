"""What is used where nothing is said."""

import itertools

import pytest

from kip import defaults
from kip.data import augment
from kip.options import Options


def chosen(kind: str, size: int, *, expensive: bool = False, purpose: str = "kernels") -> defaults.Defaults:
    return defaults.choose(training=60_000, size=size, kind=kind, expensive=expensive, purpose=purpose)


def test_what_is_not_an_image_is_never_augmented() -> None:
    for size, expensive, purpose in itertools.product((10, 100, 5_000), (False, True), ("kernels", "networks")):
        assert chosen("vectors", size, expensive=expensive, purpose=purpose).augment == "none"


def test_many_images_are_augmented_and_few_digits_are_not() -> None:
    assert chosen("digits", 10).augment == "none"
    assert augment.named(chosen("digits", 100).augment) == augment.Augment(shift=0.036, rotation=10.0)
    assert augment.named(chosen("photos", 10).augment) == augment.Augment.flips()
    assert augment.named(chosen("photos", 100).augment) == augment.Augment.photos()


def test_a_batch_allows_labels_to_be_solved_whatever_the_size() -> None:
    for size in (10, 500, 10_000):
        assert (chosen("digits", size).batch or 60_000) >= 5 * size


@pytest.mark.parametrize(
    ("shape", "kind"), [((5,), "vectors"), ((8, 8), "images"), ((8, 8, 1), "images"), ((8, 8, 3), "photos")]
)
def test_the_kind_follows_from_shape_and_channels(shape: tuple[int, ...], kind: str) -> None:
    assert defaults.kind_of(shape) == kind


def test_what_is_given_stays_and_what_is_not_is_filled_in() -> None:
    about = {"shape": (32, 32, 3), "training": 50_000, "classes": 10, "expensive": False}
    found = defaults.resolve(Options(steps=40, augment="auto"), **about)
    assert (found.size, found.kind, found.steps, found.evaluate_every) == (10, "photos", 40, 2)
    assert (found.augment, found.learning_rate, found.batch) == ("photos", 1.0, 6_000)
    assert defaults.resolve(Options(kind="digits", augment="auto"), **about).augment == "digits"
    assert defaults.resolve(Options(), **{**about, "classes": 37}).size == 37
    assert defaults.resolve(found, **about) == found


@pytest.mark.parametrize(("training", "rate"), [(200, 0.5), (6_000, 0.5), (6_001, 1.0), (50_000, 1.0)])
def test_few_photographs_are_learned_from_with_a_smaller_rate(training: int, rate: float) -> None:
    for size in (10, 30):
        few = defaults.choose(training=training, size=size, kind="photos", expensive=False)
        assert few.learning_rate == rate


def test_the_kernel_follows_from_the_purpose() -> None:
    assert defaults.kernel("kernels", vectors=False) == defaults.kernel("kernels", vectors=True) == "rbf"
    assert defaults.kernel("networks", vectors=False) == defaults.NETWORK_FAMILY
    assert defaults.kernel("networks", vectors=True) == defaults.VECTOR_FAMILY
