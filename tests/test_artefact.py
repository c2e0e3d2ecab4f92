import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

import kip
from kip import artefact, runs
from kip.data import load
from kip.data.preprocess import restore
from kip.files import sha256
from kip.kernels.planes import PlanesKernel
from kip.krr import KernelRidge


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    y = np.repeat(["ä", "b", "c"], 40)
    x = rng.normal(size=(120, 6, 6, 1)) + 2 * np.repeat(rng.normal(size=(3, 6, 6, 1)), 40, axis=0)
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def small(data):
    return kip.distill(*data, size=6, steps=15, corruption=0.25)


def test_what_is_loaded_is_what_was_saved(tmp_path, small, data):
    folder = small.save(tmp_path / "set")
    assert sorted(p.name for p in folder.iterdir()) == [
        "README.md",
        "distilled.json",
        "distilled.safetensors",
        "images.png",
    ]
    loaded = kip.load(folder)
    np.testing.assert_array_equal(loaded.x, small.x)
    np.testing.assert_array_equal(loaded.y, small.y)
    np.testing.assert_array_equal(loaded.mask, small.mask)
    np.testing.assert_array_equal(loaded.scores(data[0]), small.scores(data[0]))
    assert loaded.classes == ("b", "c", "ä")
    assert loaded.config == dict(small.config)
    assert loaded.certificate().holds


def test_a_fresh_process_elsewhere_gives_the_same_score(tmp_path, small, data):
    folder = small.save(tmp_path / "set")
    np.savez(tmp_path / "d.npz", x=data[0], y=data[1])
    script = (
        "import sys, numpy as np, kip; d = np.load(sys.argv[2]); print(kip.load(sys.argv[1]).score(d['x'], d['y']))"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out = subprocess.run(
        [sys.executable, "-c", script, folder, tmp_path / "d.npz"],
        cwd=elsewhere,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(out.stdout) == small.score(*data)
    assert float(out.stdout) > 0.9


def test_a_set_is_not_overwritten_unasked(tmp_path, small):
    small.save(tmp_path)
    with pytest.raises(FileExistsError, match="choose another folder"):
        small.save(tmp_path)
    small.save(tmp_path, overwrite=True)


def test_damage_a_newer_schema_and_strangers_are_told_apart(tmp_path, small):
    folder = small.save(tmp_path / "set")
    about = json.loads((folder / "distilled.json").read_text())

    def described(**changes):
        (folder / "distilled.json").write_text(json.dumps({**about, **changes}))

    described(schema=artefact.SCHEMA + 1)
    with pytest.raises(ValueError, match="upgrade kip"):
        kip.load(folder)
    described(schema="1")
    with pytest.raises(ValueError, match="not a distilled set's description"):
        kip.load(folder)
    described(ridge=3)
    with pytest.raises(ValueError, match="damaged or not ours"):
        kip.load(folder)
    described(classes=None)
    with pytest.raises(ValueError, match="damaged or not ours"):
        kip.load(folder)
    described()
    arrays = folder / "distilled.safetensors"
    data = arrays.read_bytes()
    arrays.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="hash differs"):
        kip.load(folder)
    arrays.write_bytes(b"junk")
    described(hashes={"distilled.safetensors": sha256(b"junk")})
    with pytest.raises(ValueError, match="not a readable safetensors"):
        kip.load(folder)
    arrays.unlink()
    with pytest.raises(FileNotFoundError, match="copy the whole folder"):
        kip.load(folder)
    with pytest.raises(FileNotFoundError, match="holds no distilled set"):
        kip.load(tmp_path)


def test_no_array_is_too_large_to_be_refused(tmp_path, small, monkeypatch):
    folder = small.save(tmp_path)
    monkeypatch.setattr(artefact, "SIZE_LIMIT", 10)
    with pytest.raises(ValueError, match="more than the 10 that are read"):
        kip.load(folder)


def test_the_certificate_sees_a_changed_pixel(small):
    assert small.certificate().holds
    x = small.x.copy()
    x[tuple(np.argwhere(small.mask)[0])] += 1e-3
    broken = dataclasses.replace(small, x=x).certificate()
    assert not broken.holds
    assert "1 corrupted coordinates were changed" in broken.reason


def test_codes_score_where_classes_have_names(small, data):
    codes = np.unique(data[1], return_inverse=True)[1]
    assert small.score(data[0], codes) == small.score(*data)
    with pytest.raises(ValueError, match="not one of the 3 classes"):
        small.score(data[0], codes + 1)
    with pytest.raises(ValueError, match="one label per input"):
        small.score(data[0], codes[1:])


def test_a_family_predicts_by_its_mean(data):
    small = kip.distill(*data, size=6, steps=5, kernel="rbf+fc1")
    mean = (small.scores(data[0], "rbf") + small.scores(data[0], "fc1")) / 2
    np.testing.assert_allclose(small.scores(data[0]), mean, rtol=1e-5, atol=1e-5)


def test_vectors_have_no_picture(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)) + np.repeat([[0.0], [4.0]], 20, axis=0)
    folder = kip.distill(x, np.repeat([0, 1], 20), size=2, steps=5).save(tmp_path)
    assert not (folder / "images.png").exists()
    assert "2 distilled vectors" in (folder / "README.md").read_text()
    assert set(safetensors.numpy.load_file(folder / "distilled.safetensors")) >= {"x", "y"}


def test_the_engine_asked_for_scores_too_and_does_not_travel(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 4, 4, 1)), np.arange(12) % 2
    small = kip.distill(x, y, size=2, kernel="conv1", engine="jax", steps=1)
    assert isinstance(small.kernels[0], PlanesKernel)
    small.save(tmp_path / "small")
    assert kip.load(tmp_path / "small").engine is None


@pytest.fixture(scope="module")
def digits():
    """The bundled digits as bytes, which count to 255, and their labels."""
    data = load("digits")
    return np.round(data.x_train * (255 / 16)).astype(np.uint8), data.y_train


@pytest.fixture(scope="module")
def of_counts(digits):
    return kip.distill(*digits, size=10, steps=30)


def own_scores(small):
    """Scores of the support points, which have not been through raw space."""
    assert small.model.support.x is small.x
    return KernelRidge(small.kernels, small.model.support, small.ridge).predict(small.x)


@pytest.mark.parametrize("factor", [None, 1.0, 1 / 255, 100.0])
def test_images_predict_as_the_support_points_do(digits, factor):
    x = digits[0] if factor is None else digits[0].astype(np.float32) * np.float32(factor)
    small = kip.distill(x, digits[1], size=10, steps=30)
    images = small.images()
    assert images.min() < 0 < 0.5 * x.max() < images.max()
    np.testing.assert_allclose(small.scores(images), own_scores(small), atol=2e-4)
    np.testing.assert_array_equal(small.predict(images), np.argmax(own_scores(small), axis=1))


def test_images_under_zca_lose_their_mean_and_norm(digits):
    natural = kip.label_solve(*digits, size=20, preprocess="zca:0.1", dtype="float64")
    np.testing.assert_allclose(natural.scores(natural.images()), own_scores(natural), atol=1e-4)
    learned = kip.distill(*digits, size=10, steps=30, preprocess="zca:0.1", dtype="float64")
    once = learned.preprocess.apply(learned.images())
    again = learned.preprocess.apply(learned.preprocess.invert(once))
    np.testing.assert_allclose(again, once, atol=1e-9)
    np.testing.assert_allclose(learned.scores(digits[0][:50] / 255), learned.scores(digits[0][:50]), atol=1e-6)


def test_images_on_another_scale_are_refused(digits, of_counts, tmp_path):
    x, y = digits
    right = of_counts.score(x, y)
    assert right > 0.85
    normalised = x.astype(np.float32) / 255
    for method in (of_counts.scores, of_counts.predict, lambda raw: of_counts.score(raw, y)):
        with pytest.raises(
            ValueError, match=r"^`raw` looks normalised .* values from 0 to 255; multiply it by 255 or pass scale=1.0"
        ):
            method(normalised)
    assert of_counts.score(normalised, y, scale=1.0) == right
    assert of_counts.score(x.astype(np.float64), y) == of_counts.score(x, y, scale=255) == right
    np.testing.assert_allclose(of_counts.scores(normalised, scale=1.0), of_counts.scores(x), atol=1e-4)
    np.testing.assert_array_equal(of_counts.predict(normalised, scale=1.0), of_counts.predict(x))
    assert of_counts.score(normalised, y, scale=255.0) < 0.5  # taken as it is
    assert kip.load(of_counts.save(tmp_path)).preprocess.seen == of_counts.preprocess.seen
    assert "| raw values | 0 to 255 |" in (tmp_path / "README.md").read_text()

    small = kip.distill(normalised, y, size=10, steps=5)
    with pytest.raises(ValueError, match=r"values up to 255.*values from 0 to 1; divide it by 255 or pass scale=255"):
        small.predict(x)
    np.testing.assert_array_equal(small.scores(x, scale=255), small.scores(normalised))


def test_a_dark_image_is_no_normalised_one(of_counts):
    dark = np.zeros((2, 8, 8), np.uint8)
    dark[0, 3, 3] = 1
    assert of_counts.predict(dark).shape == (2,)
    assert of_counts.predict(dark[1:].astype(float)).shape == (1,)
    with pytest.raises(ValueError, match="looks normalised"):
        of_counts.predict(dark.astype(float))
    assert of_counts.predict(dark.astype(float), scale=255.0).tolist() == of_counts.predict(dark).tolist()


def test_vectors_are_of_any_scale(digits):
    x = digits[0].reshape(-1, 64)
    small = kip.distill(x, digits[1], size=10, steps=2)
    assert small.predict(x[:3] / 255).shape == (3,)
    np.testing.assert_array_equal(small.predict(x[:9] / 255, scale=1.0), small.predict(x[:9]))


def test_a_set_saved_without_its_range_goes_by_its_scale(digits, of_counts):
    def aged(small):
        config = {name: value for name, value in small.preprocess.config().items() if name != "seen"}
        return dataclasses.replace(small, preprocess=restore(config, small.preprocess.arrays()))

    old = aged(of_counts)
    np.testing.assert_array_equal(old.scores(digits[0]), of_counts.scores(digits[0]))
    with pytest.raises(ValueError, match="values from 0 to 255"):
        old.predict(digits[0] / 255)
    floats = aged(kip.distill(digits[0] / 255, digits[1], size=10, steps=2))
    assert floats.predict(digits[0][:3]).shape == (3,)


def test_channels_may_come_first(data):
    x = np.repeat(data[0], 3, axis=3) * np.array([1.0, 2.0, 3.0], np.float32)
    small = kip.distill(x, data[1], size=3, steps=2)
    first = np.moveaxis(x, 3, 1)
    with pytest.raises(ValueError, match=r"^`raw` must be images \(n, h, w, channels\); got shape \(120, 3, 6, 6\)"):
        small.predict(first)
    np.testing.assert_array_equal(small.scores(first, layout="channels-first"), small.scores(x))
    np.testing.assert_array_equal(small.predict(first, layout="channels-first"), small.predict(x))
    assert small.score(first, data[1], layout="channels-first") == small.score(x, data[1])
    with pytest.raises(ValueError, match="must hold points of shape"):
        small.predict(x[:, :5])
    odd = kip.distill(x[:, :4], data[1], size=3, steps=2, layout="channels-last")
    assert odd.predict(x[:2, :4]).shape == (2,)  # four rows: what the set was made from is no question
    strange = kip.distill(np.repeat(x[:, :4], 2, axis=3), data[1], size=3, steps=2, layout="channels-last")
    assert strange.predict(np.repeat(x[:2, :4], 2, axis=3)).shape == (2,)


def test_sets_are_equal_where_all_that_is_saved_is(tmp_path, data, small):
    assert small == kip.load(small.save(tmp_path))
    assert small == kip.distill(*data, size=6, steps=15, corruption=0.25)
    assert small != kip.distill(*data, size=6, steps=14, corruption=0.25)
    for change in ({"mask": None}, {"x": small.x + 1}, {"seed": 1}, {"results": {"accuracy": float("nan")}}):
        changed = dataclasses.replace(small, **change)
        assert changed != small
        assert changed == dataclasses.replace(small, **change)
    other = dataclasses.replace(small, preprocess=kip.distill(data[0] + 1, data[1], size=6, steps=1).preprocess)
    assert other != small
    assert small != "a set"
    assert {"one": small} == {"one": kip.load(tmp_path)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(small)


def test_the_card_says_what_the_set_was_made_for(tmp_path, small, data):
    card = (small.save(tmp_path / "kernels") / "README.md").read_text(encoding="utf-8")
    assert "made for kernel ridge-regression with kernel 'rbf'; to train networks use `kip distill --for net" in card
    assert "to train networks on" not in card
    networks = kip.distill(*data, size=6, steps=2, kernel="fc1", purpose="networks")
    card = (networks.save(tmp_path / "networks") / "README.md").read_text(encoding="utf-8")
    assert "made to train networks, with kernel 'fc1'; for kernel ridge-regression use `kip distill`" in card
    assert "preprocessed points and soft labels, to train networks on" in card


OLD = Path(__file__).parent / "data" / "old-run"
"""Sets that an earlier version has written, with the scores that it gave the digits' test images."""


@pytest.mark.parametrize(
    ("name", "kernel", "preprocess", "rho"),
    [("corrupted", "rbf", "standard", 0.3), ("whitened", "fc1:nngp", "zca", 0.0)],
)
def test_a_set_of_an_earlier_version_predicts_as_before(name: str, kernel: str, preprocess: str, rho: float) -> None:
    small, data = kip.load(OLD / name), load("digits")
    assert (small.kernel, small.preprocess.config()["name"], small.corruption.rho) == (kernel, preprocess, rho)
    assert small.certificate().holds
    scores = np.load(OLD / name / "scores.npy", allow_pickle=False)
    np.testing.assert_allclose(small.scores(data.x_test), scores, atol=1e-4)
    metrics = json.loads((OLD / name / "metrics.json").read_text())
    assert small.score(data.x_test, data.y_test) == pytest.approx(metrics["test_accuracy"], abs=1 / len(data.x_test))
    assert [entry["step"] for entry in runs.read_history(OLD / name)] == [1, 2, 3, 4, 5]
