import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

import kip
from kip import artefact
from kip.files import sha256
from kip.kernels.planes import PlanesKernel


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
    with pytest.raises(ValueError, match="one label to an input"):
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


def test_the_card_says_what_the_set_was_made_for(tmp_path, small, data):
    card = (small.save(tmp_path / "kernels") / "README.md").read_text(encoding="utf-8")
    assert "made for kernel ridge-regression with kernel 'rbf'; to train networks use `kip distill --for net" in card
    assert "to train networks on" not in card
    networks = kip.distill(*data, size=6, steps=2, kernel="fc1", purpose="networks")
    card = (networks.save(tmp_path / "networks") / "README.md").read_text(encoding="utf-8")
    assert "made to train networks, with kernel 'fc1'; for kernel ridge-regression use `kip distill`" in card
    assert "preprocessed points and soft labels, to train networks on" in card
