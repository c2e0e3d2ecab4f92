"""Preprocessing against plain formulas, row by row, and stored and restored to the bit."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kip.data import preprocess
from kip.data.preprocess import Identity, Preprocess, Standardise, as_images, fit, restore

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (300, 6, 5), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (300, 5, 4, 3), dtype=np.uint8)
VECTORS = RNG.normal(3.0, [1.0, 10.0, 0.1, 5.0, 2.0], (300, 5))
INPUTS = {"grey": GREY, "colour": COLOUR, "vectors": VECTORS, "float": COLOUR.astype(np.float32) / 255}
KINDS = ["standard", "zca", "zca-scaled", "none", "zca:0.1"]


@pytest.fixture(params=INPUTS)
def raw(request: pytest.FixtureRequest) -> np.ndarray:
    return INPUTS[request.param]


def zca_oracle(x: np.ndarray, strength: float, scaled: bool) -> np.ndarray:
    """The whitened rows, by the singular values of X in place of the eigenvalues of its covariance."""
    x = x.reshape(len(x), -1).astype(np.float64)
    x = x - x.mean(1, keepdims=True)
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    _, s, vt = np.linalg.svd(x / np.sqrt(len(x)), full_matrices=False)
    added = strength * (s**2).sum() / x.shape[1] if scaled else strength
    return x @ (vt.T / np.sqrt(s**2 + added)) @ vt


def test_as_images_gives_a_channel_and_divides_bytes_by_255() -> None:
    assert as_images(GREY).shape == (300, 6, 5, 1)
    assert as_images(GREY).dtype == np.float32
    np.testing.assert_allclose(as_images(GREY)[..., 0], GREY / 255, rtol=1e-6)
    assert as_images(VECTORS).dtype == np.float64
    np.testing.assert_array_equal(as_images(VECTORS), VECTORS)
    np.testing.assert_array_equal(fit("none", GREY).apply(GREY), as_images(GREY))


def test_standardisation_is_by_channel_or_column(raw: np.ndarray) -> None:
    x = fit("standard", raw, dtype=np.float64).apply(raw)
    axes = tuple(range(x.ndim - 1))
    np.testing.assert_allclose(x.mean(axes), 0, atol=1e-12)
    np.testing.assert_allclose(x.std(axes), 1, rtol=1e-12)


def test_constant_columns_are_centred_only() -> None:
    x = np.array([[1.0, 0.1], [2.0, 0.1], [3.0, 0.1]])
    np.testing.assert_allclose(fit("standard", x).apply(x)[:, 1], 0, atol=1e-15)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("strength", [1e-5, 0.1])
@pytest.mark.parametrize("raw", [GREY, COLOUR], ids=["grey", "colour"])
def test_zca_equals_its_definition(raw: np.ndarray, scaled: bool, strength: float) -> None:
    fitted = fit("zca-scaled" if scaled else "zca", raw, strength=strength, dtype=np.float64)
    want = zca_oracle(raw, strength, scaled)
    np.testing.assert_allclose(fitted.apply(raw).reshape(len(raw), -1), want, rtol=1e-8, atol=1e-9)
    single = fit(f"zca{'-scaled' * scaled}:{strength}", raw)
    np.testing.assert_allclose(single.apply(raw).reshape(len(raw), -1), want, rtol=1e-3, atol=1e-3)


def test_zca_whitens_what_it_was_fitted_on() -> None:
    x = fit("zca", GREY, dtype=np.float64, strength=1e-12).apply(GREY).reshape(300, -1)
    eigenvalues = np.linalg.eigvalsh(x.T @ x / len(x))
    np.testing.assert_allclose(eigenvalues[1:], 1, rtol=1e-6)
    np.testing.assert_allclose(eigenvalues[0], 0, atol=1e-6)  # the mean, which every image lost


@pytest.mark.parametrize("value", [0, 7, 77, 255])
def test_a_constant_image_maps_to_zero(value: int) -> None:
    fitted = fit("zca", COLOUR)
    for dtype in (np.uint8, np.float32):
        noisy = np.full((2, 5, 4, 3), value, dtype)
        np.testing.assert_array_equal(fitted.apply(noisy), 0)
    rounded = (np.full((2, 5, 4, 3), value) * (1 + 1e-7 * RNG.normal(size=(2, 5, 4, 3)))).astype(np.float32)
    np.testing.assert_array_equal(fitted.apply(rounded), 0)


@pytest.mark.parametrize("kind", ["standard", "none"])
def test_invert_undoes_apply(kind: str, raw: np.ndarray) -> None:
    fitted = fit(kind, raw, dtype=np.float64)
    want = raw.astype(np.float64).reshape(len(raw), *fitted.shape)
    np.testing.assert_allclose(fitted.invert(fitted.apply(raw)), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zca_is_inverted_up_to_mean_and_norm(dtype: type) -> None:
    fitted = fit("zca", COLOUR, dtype=dtype)
    x = COLOUR.reshape(300, -1).astype(np.float64)
    x -= x.mean(1, keepdims=True)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    got = fitted.invert(fitted.apply(COLOUR))
    assert got.dtype == dtype
    np.testing.assert_allclose(got.reshape(300, -1) / 255, x, atol=1e-9 if dtype == np.float64 else 2e-4)
    single = 1e-9 if dtype == np.float64 else 2e-2  # float32 against a condition of a few hundred
    np.testing.assert_allclose(fitted.apply(got), fitted.apply(COLOUR), atol=single)
    assert fitted.scale_free
    np.testing.assert_allclose(fitted.apply(COLOUR / 255), fitted.apply(COLOUR), atol=single)


@pytest.mark.parametrize("kind", KINDS)
def test_dtype_follows_the_data_unless_told(kind: str, raw: np.ndarray) -> None:
    expected = np.float64 if raw.dtype == np.float64 else np.float32
    assert fit(kind, raw).apply(raw).dtype == expected
    assert fit(kind, raw, dtype=np.float64).apply(raw).dtype == np.float64
    assert fit(kind, raw, dtype=np.float32).apply(raw[:3]).dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_depends_on_itself_alone(kind: str, raw: np.ndarray) -> None:
    fitted = fit(kind, raw)
    whole = fitted.apply(raw)
    # Under ZCA rows of norm 1 meet W in a matrix product, whose order of summation is BLAS's own affair.
    rounding = 4 * np.finfo(np.float32).eps * np.linalg.norm(fitted._whitening, 2) if kind.startswith("zca") else 0
    order = RNG.permutation(300)
    for rows in (slice(0, 1), slice(7, 8), slice(299, 300), slice(3, 290, 7), slice(100, 300), order):
        np.testing.assert_allclose(fitted.apply(raw[rows]), whole[rows], rtol=0, atol=rounding)
    np.testing.assert_array_equal(fitted.apply(raw), whole)
    assert fitted.apply(raw[:0]).shape == (0, *fitted.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_equal_numbers_give_equal_results_whatever_their_dtype(kind: str) -> None:
    fitted = fit(kind, COLOUR)
    for dtype in (np.float32, np.float64, np.int32):
        np.testing.assert_array_equal(fitted.apply(COLOUR.astype(dtype)), fitted.apply(COLOUR))


@pytest.mark.parametrize("shape", [(70, 28, 28), (70, 32, 32, 3)])
def test_the_compiled_loop_gives_what_numpy_gives(shape: tuple[int, ...]) -> None:
    raw = RNG.integers(0, 256, shape, dtype=np.uint8)  # bytes go through NumPy, floats in large tiles do not
    fitted = fit("standard", raw)
    np.testing.assert_array_equal(fitted.apply(raw.astype(np.float32)), fitted.apply(raw))


@pytest.mark.parametrize("kind", KINDS)
def test_restored_to_the_bit(kind: str, raw: np.ndarray) -> None:
    fitted = fit(kind, raw)
    config = json.loads(json.dumps(fitted.config()))
    arrays = {name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in fitted.arrays().items()}
    again = restore(config, arrays)
    assert type(again) is type(fitted)
    assert again.config() == fitted.config()
    assert again.seen == fitted.seen
    assert again == fitted
    assert again != fit("none", GREY[:, :2])
    np.testing.assert_array_equal(again.apply(raw), fitted.apply(raw))
    np.testing.assert_array_equal(again.invert(again.apply(raw)), fitted.invert(fitted.apply(raw)))


@given(
    config=st.dictionaries(
        st.sampled_from(["name", "shape", "dtype", "scale", "strength", "seen"]),
        st.one_of(
            st.sampled_from(["standard", "zca", "none", "float32", "object"]),
            st.lists(st.integers(-3, 10**6), max_size=4),
            st.floats(),
            st.none(),
            st.dictionaries(st.sampled_from(["low", "high", "peak"]), st.floats()),
        ),
    ),
    arrays=st.dictionaries(
        st.sampled_from(["mean", "std", "whitening"]),
        st.lists(st.floats(width=32), max_size=4).map(lambda x: np.array(x, np.float32)),
    ),
)
def test_restoring_nonsense_is_a_value_error(config: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(restore(config, arrays), Preprocess)


@pytest.mark.parametrize(
    ("name", "x", "words"),
    [
        ("standart", GREY, "'standard'"),
        ("zca:-1", GREY, "positive"),
        ("zca:x", GREY, "positive"),
        ("standard:1", GREY, "no strength"),
        ("standard", GREY[:0], "at least one point"),
        ("standard", GREY[0, 0], "shape"),
        ("standard", np.array([["a", "b"]]), "numbers"),
        ("standard", np.array([[1.0, np.nan]]), "row 0"),
        ("zca", np.zeros((2, 200, 200)), "12,288"),
        ("zca-scaled", np.ones((3, 4)), "constant"),
    ],
)
def test_bad_input_is_named(name: str, x: np.ndarray, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit(name, x)


def test_wrong_shapes_are_named() -> None:
    fitted = fit("standard", COLOUR)
    with pytest.raises(ValueError, match=r"\(5, 4, 3\)"):
        fitted.apply(GREY)
    with pytest.raises(ValueError, match=r"\(5, 4, 3\)"):
        fitted.invert(GREY)
    with pytest.raises(ValueError, match="float32 or float64"):
        fit("none", GREY, dtype=np.int32)


def test_what_was_stored_before_values_were_seen_is_restored() -> None:
    fitted = fit("standard", GREY)
    assert (fitted.seen.low, fitted.seen.high) == (GREY.min(), GREY.max())
    config = {name: value for name, value in fitted.config().items() if name != "seen"}
    again = restore(config, fitted.arrays())
    assert again.seen is None
    assert "seen" not in again.config()
    np.testing.assert_array_equal(again.apply(GREY), fitted.apply(GREY))
    assert fit("standard", VECTORS).seen is None
    with pytest.raises(ValueError, match="stored preprocessing"):
        restore({**config, "seen": {"low": 2, "high": 1, "peak": 1}}, fitted.arrays())


def test_classes_are_final() -> None:
    for cls in (Identity, Standardise, preprocess.ZCA):
        assert cls.__final__
