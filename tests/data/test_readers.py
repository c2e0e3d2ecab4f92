"""Each reader gives back what was written, and says in one line what is wrong otherwise."""

import gzip
import os
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support import require_dataset

from kip.data import NAMES, load
from kip.data.checks import MEMORY_LIMIT, memory_limit
from kip.data.readers import FASHION_CLASSES
from kip.data.readers.base import Fit, encode, split

RNG = np.random.default_rng(0)


def idx_bytes(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def cifar_bytes(images: np.ndarray, labels: np.ndarray) -> bytes:
    return b"".join(bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(images, labels, strict=True))


def write_idx(
    folder: Path, n_train: int = 20, n_test: int = 10, pattern: str = "{}-idx{}-ubyte"
) -> dict[str, np.ndarray]:
    arrays = {}
    for part, n in (("train", n_train), ("t10k", n_test)):
        arrays[f"{part}-images"] = RNG.integers(0, 256, (n, 4, 3), dtype=np.uint8)
        arrays[f"{part}-labels"] = (np.arange(n) % 5).astype(np.uint8)
    for name, array in arrays.items():
        path = folder / pattern.format(name, array.ndim)
        data = idx_bytes(array)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return arrays


def picture(path: Path, size: tuple[int, int] = (6, 5), mode: str = "L") -> np.ndarray:
    """A random image of (width, height), written to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": (), "RGB": (3,), "RGBA": (4,), "LA": (2,)}[mode]
    pixels = RNG.integers(0, 256, (size[1], size[0], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


# Named data sets.


def test_digits_are_scikit_learns_in_a_fixed_stratified_split() -> None:
    from sklearn.datasets import load_digits

    data = load("digits")
    assert data.kind == "digits"
    assert data.classes == tuple("0123456789")
    assert len(data.x_train) + len(data.x_test) == 1797
    whole = np.sort(np.concatenate([data.x_train, data.x_test]).reshape(1797, 64) @ np.arange(64.0))
    np.testing.assert_allclose(whole, np.sort(load_digits().data @ np.arange(64.0)))
    counts = np.bincount(load_digits().target)
    np.testing.assert_array_equal(np.bincount(data.y_test), np.round(0.2 * counts))
    np.testing.assert_array_equal(load("digits").x_test, data.x_test)


def test_digits_do_not_hang_on_scikit_learns_files(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = load("digits")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    np.testing.assert_array_equal(load("digits").x_train, expected.x_train)
    np.testing.assert_array_equal(load("digits").y_train, expected.y_train)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "std"),
    [("mnist", (28, 28), 0.1307, 0.3081), ("fashion-mnist", (28, 28), 0.2860, 0.3530)],
)
def test_idx_sets_have_their_known_mean_and_deviation(
    name: str, shape: tuple[int, ...], mean: float, std: float
) -> None:
    data = require_dataset(name)
    assert data.x_train.shape == (60_000, *shape)
    assert data.x_test.shape == (10_000, *shape)
    pixels = data.x_train / 255
    assert pixels.mean() == pytest.approx(mean, abs=1e-4)
    assert pixels.std() == pytest.approx(std, abs=1e-4)
    assert len(data.classes) == 10
    if name == "mnist":
        assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    else:
        assert data.classes == FASHION_CLASSES
        assert np.bincount(data.y_train).tolist() == [6000] * 10


def test_cifar10_has_its_known_channel_means() -> None:
    data = require_dataset("cifar10")
    assert data.x_train.shape == (50_000, 32, 32, 3)
    assert data.x_test.shape == (10_000, 32, 32, 3)
    np.testing.assert_allclose(data.x_train.reshape(-1, 3).mean(0) / 255, [0.4914, 0.4822, 0.4465], atol=1e-4)
    assert np.bincount(data.y_train).tolist() == [5000] * 10
    assert [data.classes[y] for y in data.y_train[:3]] == ["frog", "truck", "truck"]


@pytest.mark.parametrize(
    ("given", "hint"), [("mnits", "mnist"), ("fashon-mnist", "fashion-mnist"), ("zzz", "Choose from")]
)
def test_an_unknown_name_suggests_the_nearest(given: str, hint: str) -> None:
    with pytest.raises(FileNotFoundError, match=hint):
        load(given)
    assert "digits" in NAMES


def test_a_path_may_be_called_like_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_idx(tmp_path)
    monkeypatch.chdir(tmp_path.parent)
    tmp_path.rename(tmp_path.parent / "digits")
    assert load("./digits").x_train.shape == (20, 4, 3)
    assert load(Path("digits")).x_train.shape == (20, 4, 3)
    assert load("digits").x_train.shape[1:] == (8, 8)


# idx and CIFAR.


@pytest.mark.parametrize(
    "pattern", ["{}-idx{}-ubyte", "{}.idx{}-ubyte", "{}-idx{}-ubyte.gz", "letters-{}-idx{}-ubyte.gz"]
)
def test_a_folder_of_idx_files(tmp_path: Path, pattern: str) -> None:
    arrays = write_idx(tmp_path, pattern=pattern)
    data = load(tmp_path)
    np.testing.assert_array_equal(data.x_train, arrays["train-images"])
    np.testing.assert_array_equal(data.x_test, arrays["t10k-images"])
    np.testing.assert_array_equal(data.y_train, arrays["train-labels"])
    assert data.classes == tuple("01234")


def test_idx_without_a_test_part_is_split(tmp_path: Path) -> None:
    write_idx(tmp_path)
    for path in tmp_path.glob("t10k*"):
        path.unlink()
    data = load(str(tmp_path))
    assert np.bincount(data.y_test).tolist() == [1] * 5
    assert np.bincount(data.y_train).tolist() == [3] * 5


def test_a_missing_idx_file_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(ValueError, match="test labels is missing"):
        load(tmp_path)


@pytest.mark.parametrize("inner", [".", "cifar-10-batches-bin"])
def test_a_folder_of_cifar_batches(tmp_path: Path, inner: str) -> None:
    images = RNG.integers(0, 256, (30, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(30) % 10
    (tmp_path / inner).mkdir(exist_ok=True)
    for n, name in enumerate(["data_batch_1.bin", "data_batch_2.bin", "test_batch.bin"]):
        rows = slice(10 * n, 10 * n + 10)
        (tmp_path / inner / name).write_bytes(cifar_bytes(images[rows], labels[rows]))
    data = load(tmp_path)
    np.testing.assert_array_equal(data.x_train, images[:20])
    np.testing.assert_array_equal(data.x_test, images[20:])
    np.testing.assert_array_equal(data.y_train, labels[:20])
    assert data.kind is None  # it follows from shape and channels
    assert data.classes[3] == "cat"


@pytest.mark.parametrize("name", ["data_batch_1", "cifar-10-python.tar.gz", "cifar-10-batches-py/data_batch_1"])
def test_cifars_pickles_are_not_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match=r"pickles.*binary"):
        load(tmp_path)
    with pytest.raises(ValueError, match=r"pickles|not a format"):
        load(path)


# npz.


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_with_four_arrays(tmp_path: Path, save: object) -> None:
    arrays = {
        "x_train": np.asfortranarray(RNG.normal(size=(9, 4, 4, 3))),
        "y_train": np.array(["été", "b", "c"] * 3),
        "x_test": RNG.normal(size=(4, 4, 4, 3)).astype(">f4"),
        "y_test": np.array(["b", "c", "b", "été"]),
    }
    save(tmp_path / "own.npz", **arrays)  # type: ignore[operator]
    data = load(tmp_path / "own.npz")
    np.testing.assert_array_equal(data.x_train, arrays["x_train"])
    np.testing.assert_array_equal(data.x_test, arrays["x_test"])
    assert data.x_test.dtype == np.float32
    assert data.x_test.dtype.isnative
    assert data.classes == ("b", "c", "été")
    assert data.y_train.tolist() == [2, 0, 1] * 3
    assert data.kind is None  # it follows from shape and channels


def test_npz_with_x_and_y_is_split(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 256, (50, 7), dtype=np.uint8), np.arange(50) % 4 + 10
    np.savez(tmp_path / "own.npz", x=x, y=y)
    data = load(tmp_path / "own.npz")
    assert data.classes == ("10", "11", "12", "13")
    assert len(data.x_train) == 40
    for part, codes in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        for row, code in zip(part, codes, strict=True):
            assert y[np.flatnonzero((x == row).all(1))[0]] == code + 10


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, 2))}, "needs arrays x and y"),
        ({"x": np.array([{}, {}]), "y": np.array([0, 1])}, "pickles"),
        ({"x": np.zeros((3, 2)), "y": np.eye(3)}, "one-hot"),
        ({"x": np.zeros((3, 2)), "y": np.array([0.5, 1, 2])}, "fractions"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1])}, "3 points but 2 labels"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0)}, "no points"),
        ({"x": np.full((4, 2), np.nan), "y": np.array([0, 1, 0, 1])}, "finite"),
        ({"x": np.zeros((4, 2)), "y": np.array([1, 1, 1, 1])}, "two classes"),
        ({"x": np.zeros((4, 2)), "y": np.arange(4)}, "too few"),
        ({"x": np.zeros(4), "y": np.arange(4)}, "shape"),
        ({"x": np.array(["a"] * 4), "y": np.arange(4)}, "numbers"),
        ({"x": np.zeros((4, 2)), "y": np.full(4, 2**64 - 1, np.uint64)}, "too large"),
    ],
)
def test_bad_npz_is_named(tmp_path: Path, arrays: dict[str, np.ndarray], words: str) -> None:
    path = tmp_path / "bad.npz"
    np.savez(path, allow_pickle=True, **arrays)
    with pytest.raises(ValueError, match=words) as caught:
        load(path)
    assert "bad.npz" in str(caught.value)


@pytest.mark.parametrize("names", [("x", "y"), ("x_train", "y_train", "x_test", "y_test")])
def test_npz_with_channels_first(tmp_path: Path, names: tuple[str, ...]) -> None:
    last, y = RNG.normal(size=(20, 8, 6, 3)), np.arange(20) % 2
    first = np.moveaxis(last, 3, 1)
    for name, x in (("last", last), ("first", first)):
        np.savez(tmp_path / f"{name}.npz", **{part: x if part.startswith("x") else y for part in names})
    with pytest.raises(ValueError, match=rf"first.npz: `{names[0]}` must be images .*Pass layout='channels-first'"):
        load(tmp_path / "first.npz")
    moved, plain = load(tmp_path / "first.npz", layout="channels-first"), load(tmp_path / "last.npz")
    np.testing.assert_array_equal(moved.x_train, plain.x_train)
    np.testing.assert_array_equal(moved.x_test, plain.x_test)
    assert moved.x_train.flags.c_contiguous
    assert load(tmp_path / "first.npz", layout="channels-last").x_train.shape[1:] == (3, 8, 6)


def test_parts_must_agree(tmp_path: Path) -> None:
    x, y = np.zeros((4, 2)), np.array([0, 1, 0, 1])
    np.savez(tmp_path / "shape.npz", x_train=x, y_train=y, x_test=np.zeros((4, 3)), y_test=y)
    with pytest.raises(ValueError, match="one shape"):
        load(tmp_path / "shape.npz")
    np.savez(tmp_path / "class.npz", x_train=x, y_train=y, x_test=x, y_test=y + 1)
    with pytest.raises(ValueError, match="no training point of class '2'"):
        load(tmp_path / "class.npz")


# csv.

IRIS = """length,width,kind
5.1,3.5,setosa
4.9,3,setosa
7,3.2,versicolor é
6.4,3.2,versicolor é
5.9,3,setosa
6.9,3.1,versicolor é
"""


@pytest.mark.parametrize(
    ("text", "label"),
    [
        (IRIS, None),
        (IRIS, "kind"),
        (IRIS, -1),
        (IRIS, "2"),
        (IRIS.partition("\n")[2], None),
        (IRIS.replace(",", ";"), None),
        (IRIS.replace(",", "\t").replace("\n", "\r\n"), "kind"),
        ("\ufeff" + IRIS + "\n\n", "kind"),
        ("\n".join(f'"{b}",{a}' for a, _, b in (row.rpartition(",") for row in IRIS.splitlines())), 0),
    ],
)
def test_csv(tmp_path: Path, text: str, label: str | int | None) -> None:
    path = tmp_path / "iris.csv"
    path.write_text(text, encoding="utf-8")
    data = load(path, label=label)
    assert data.classes == ("setosa", "versicolor é")
    assert data.x_train.shape[1:] == (2,)
    assert data.x_train.dtype == np.float64
    rows = {tuple(row): code for row, code in zip(data.x_train.tolist(), data.y_train.tolist(), strict=True)}
    rows |= {tuple(row): code for row, code in zip(data.x_test.tolist(), data.y_test.tolist(), strict=True)}
    assert rows == {(5.1, 3.5): 0, (4.9, 3.0): 0, (7.0, 3.2): 1, (6.4, 3.2): 1, (5.9, 3.0): 0, (6.9, 3.1): 1}


def test_csv_with_the_class_first_and_integer_labels(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("".join(f"{n % 3 + 9},{n}.5,{-n}\n" for n in range(30)))
    data = load(path, label=0)
    assert data.classes == ("9", "10", "11")  # as numbers, not as texts
    np.testing.assert_array_equal((data.x_train[:, 0] - 0.5) % 3, data.y_train)


@pytest.mark.parametrize(
    ("text", "label", "words"),
    [
        ("", None, "two columns"),
        ("a\nb\n", None, "two columns"),
        ("a,b\n", None, "no rows"),
        (IRIS, "kin", "'kind'"),
        (IRIS, 3, "out of range"),
        (IRIS, "length", r"line 2 holds 'setosa'.*--label"),
        (IRIS + "1,2\n", None, "line 8 has 2 columns"),
        (IRIS + "x,2,setosa\n", None, "line 8 holds 'x'"),
        (IRIS + "1,2,\n", None, "no class"),
        (IRIS + "nan,2,setosa\n", None, "finite"),
        (IRIS + "1,2," + "x" * 200_000, None, "csv"),
        (IRIS + '1,2,"x', None, "csv"),
        ("".join(f"1,{n}.5\n" for n in range(9)), None, "too few"),
    ],
)
def test_bad_csv_is_named(tmp_path: Path, text: str, label: str | int | None, words: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as caught:
        load(path, label=label)
    assert "bad.csv" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_csv_must_be_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(IRIS.encode("latin-1"))
    with pytest.raises(ValueError, match="UTF-8"):
        load(path)


# Folders of images.


def test_class_folders_with_train_and_test(tmp_path: Path) -> None:
    pixels = {}
    for part, n in (("train", 3), ("test", 2)):
        for label in ("chat noir", "été"):
            for k in range(n):
                pixels[part, label, k] = picture(tmp_path / part / label / f"im {k}.png")
    (tmp_path / "train" / "été" / ".hidden.png").write_bytes(b"no image")
    (tmp_path / ".DS_Store").write_bytes(b"")
    (tmp_path / "train" / "été" / "notes.txt").write_text("hello")
    data = load(tmp_path)
    assert data.classes == ("chat noir", "été")
    np.testing.assert_array_equal(data.x_train[4], pixels["train", "été", 1])
    np.testing.assert_array_equal(data.x_test[1], pixels["test", "chat noir", 1])
    assert data.x_train.dtype == np.uint8
    assert data.x_train.shape == (6, 5, 6)
    assert data.notes == ("left out 1 files that are not images: été/notes.txt",)


def test_unbalanced_class_folders_are_split_and_each_class_is_trained_on(tmp_path: Path) -> None:
    for label, n in (("rare", 1), ("two", 2), ("many", 30)):
        for k in range(n):
            picture(tmp_path / label / f"{k}.png", mode="RGB")
    data = load(tmp_path)
    assert dict(zip(data.classes, np.bincount(data.y_train).tolist(), strict=True)) == {"many": 24, "rare": 1, "two": 2}
    assert len(data.x_test) == 6
    assert data.kind is None  # it follows from shape and channels
    assert data.notes == (
        "classes 'rare' (1 point), 'two' (2 points) are small: all are used for training, none for testing",
    )
    np.testing.assert_array_equal(load(tmp_path).x_test, data.x_test)


def test_a_class_too_small_to_split_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("".join(["1,cat\n"] * 5 + ["2,owl\n"] * 2 + ["3,dog\n"] * 5))
    assert load(tmp_path / "a.csv").notes == ("class 'owl' has 2 points: all are used for training, none for testing",)


def test_a_path_may_be_read_whole_to_be_tested(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("1,cat\n2,cat\n3,cat\n")
    with pytest.raises(ValueError, match="two classes"):
        load(tmp_path / "one.csv")
    data = load(tmp_path / "one.csv", whole=True)
    assert len(data.x_train) == 0
    np.testing.assert_array_equal(data.x_test, [[1], [2], [3]])
    assert data.classes == ("cat",)
    parts = {"x_train": np.ones((4, 2)), "y_train": np.array([0, 1, 0, 1])}
    np.savez(tmp_path / "two.npz", **parts, x_test=np.zeros((3, 2)), y_test=np.array([2, 2, 2]))
    data = load(tmp_path / "two.npz", whole=True)  # its own test part, with the class that it holds
    assert (len(data.x_train), len(data.x_test), data.classes, data.test_given) == (0, 3, ("2",), True)


def test_mixed_sizes_need_resize(tmp_path: Path) -> None:
    for k in range(4):
        picture(tmp_path / "a" / f"{k}.png", (8, 8))
        picture(tmp_path / "b" / f"{k}.png", (20, 10))
    with pytest.raises(ValueError, match=r"8×8 \(4\), 20×10 \(4\)|20×10 \(4\), 8×8 \(4\)") as caught:
        load(tmp_path)
    assert "--resize" in str(caught.value)
    assert load(tmp_path, resize=6).x_train.shape[1:] == (6, 6)
    assert load(tmp_path, resize=(4, 12)).x_train.shape[1:] == (4, 12)


def test_fit_keeps_proportions_unless_stretched(tmp_path: Path) -> None:
    wide = np.zeros((40, 120), np.uint8)
    wide[:, 40:80] = 200  # the middle third is light
    for label in "ab":
        for k in range(2):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.fromarray(wide).save(tmp_path / label / f"{k}.png")
    cropped = load(tmp_path, resize=12).x_train[0]
    assert (cropped[:, 1:-1] == 200).all()  # the centre square is the light third; the filter blends its edges
    padded = load(tmp_path, resize=12, fit="pad").x_train[0]
    assert (padded[:4] == 0).all()
    assert (padded[8:] == 0).all()
    assert (padded[5:7, 5:7] == 200).all()
    assert (padded[5:7, 0] == 0).all()
    stretched = load(tmp_path, resize=12, fit="stretch").x_train[0]
    assert (stretched[:, 5:7] == 200).all()
    assert (stretched[:, 0] == 0).all()
    with pytest.raises(ValueError, match="crop, pad, stretch"):
        load(tmp_path, resize=12, fit="squash")  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", ["crop", "pad", "stretch"])
def test_images_of_the_wanted_size_stay_as_they_are(tmp_path: Path, fit: Fit) -> None:
    pixels = [picture(tmp_path / label / "0.png", (7, 7), mode="RGB") for label in "ab"]
    np.testing.assert_array_equal(load(tmp_path, resize=7, fit=fit, whole=True).x_test, pixels)


def test_all_unreadable_images_are_named_at_once_and_may_be_left_out(tmp_path: Path) -> None:
    for label in ("cat", "owl"):
        for k in range(8):
            picture(tmp_path / label / f"good {k}.png")
    for k in range(9):
        (tmp_path / "cat" / f"bad {k}.png").write_bytes(b"no image")
    cut = (tmp_path / "owl" / "good 0.png").read_bytes()[:60]
    for k in range(3):
        (tmp_path / "owl" / f"cut {k}.png").write_bytes(cut)
    with pytest.raises(ValueError, match="12 images cannot be read") as caught:
        load(tmp_path)
    words = str(caught.value)
    assert all(f"cat/bad {k}.png" in words for k in range(9))
    assert "owl/cut 0.png" in words
    assert "owl/cut 1.png" not in words
    assert "and 2 more" in words
    assert "--skip-unreadable" in words
    data = load(tmp_path, skip_unreadable=True)
    assert len(data.x_train) + len(data.x_test) == 16
    (note,) = data.notes
    assert note.startswith("left out 12 images that cannot be read: cat/bad 0.png")


def test_a_folder_of_unreadable_images_only_is_refused(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(b"")
    with pytest.raises(ValueError, match="no readable images"):
        load(tmp_path, skip_unreadable=True)


@pytest.mark.parametrize("resize", [0, -3, 10**6, (3,), (3, 4, 5), (3, 0)])
def test_a_bad_size_is_named(tmp_path: Path, resize: object) -> None:
    picture(tmp_path / "a" / "1.png")
    with pytest.raises(ValueError, match="resize"):
        load(tmp_path, resize=resize)  # type: ignore[arg-type]


def test_grey_and_colour_mixed_become_colour(tmp_path: Path) -> None:
    grey = [picture(tmp_path / "a" / f"{k}.png") for k in range(2)]
    colour = [picture(tmp_path / "b" / f"{k}.png", mode="RGB") for k in range(2)]
    for k in range(2):
        picture(tmp_path / "c" / f"{k}.jpg", mode="L")
    data = load(tmp_path)
    assert data.x_train.shape[1:] == (5, 6, 3)
    whole = np.concatenate([data.x_train, data.x_test])
    for image in [np.repeat(image[..., None], 3, axis=2) for image in grey] + colour:
        assert (whole == image).all(axis=(1, 2, 3)).any()
    assert any("colour" in note for note in data.notes)


@pytest.mark.parametrize(("mode", "shape"), [("L", (5, 6)), ("RGB", (5, 6, 3)), ("LA", (5, 6)), ("RGBA", (5, 6, 3))])
def test_transparency_is_laid_on_white(tmp_path: Path, mode: str, shape: tuple[int, ...]) -> None:
    pixels = [picture(tmp_path / "train" / label / "0.png", mode=mode) for label in "ab"]
    for label in "ab":
        picture(tmp_path / "val" / label / "0.png", mode=mode)
    data = load(tmp_path)
    assert data.x_train.shape == (2, *shape)
    if mode in ("LA", "RGBA"):
        image = pixels[0].astype(float)
        alpha = image[..., -1:] / 255
        want = image[..., :-1] * alpha + 255 * (1 - alpha)
        np.testing.assert_allclose(data.x_train[0].reshape(want.shape), want, atol=2)


def test_sixteen_bits_keep_their_upper_eight(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for k in range(3):
            pixels = RNG.integers(0, 2**16, (4, 4)).astype(np.uint16)
            Image.fromarray(pixels).save(tmp_path / label / f"{k}.png")
    data = load(tmp_path)
    whole = np.concatenate([data.x_train, data.x_test])
    assert whole.dtype == np.uint8
    assert (whole == (pixels >> 8)).all(axis=(1, 2)).any()


def test_a_folder_without_images_says_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="class folders"):
        load(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.txt").write_text("")
    with pytest.raises(ValueError, match="class folders"):
        load(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse file names that are not UTF-8")
def test_class_names_that_are_not_utf8_can_be_written_down(tmp_path: Path) -> None:
    for name in (b"\xe9t\xe9", b"hiver"):
        folder = tmp_path / os.fsdecode(name)
        for k in range(3):
            picture(folder / f"{k}.png")
    assert load(tmp_path).classes == ("\\xe9t\\xe9", "hiver")


@pytest.mark.parametrize("name", ["model.pkl", "x.bin", "cifar-10-python.tar.gz"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ValueError, match=name):
        load(tmp_path / name)


# Labels, splits, limits.


def test_encode_orders_numbers_as_numbers() -> None:
    assert encode("x", np.array(["10", "9", "9"]))[0] == ("9", "10")
    assert encode("x", np.array([3, -1]), np.array([3.0]))[0] == ("-1", "3")
    classes, (codes,) = encode("x", np.array(["b", "a", "é", "b"]))
    assert [classes[code] for code in codes] == ["b", "a", "é", "b"]
    assert encode("x", np.array([True, False]))[0] == ("0", "1")


@pytest.mark.parametrize("sizes", [[1, 1, 8], [2, 3, 5, 100], [50]])
def test_split_is_stratified_disjoint_and_trains_on_every_class(sizes: list[int]) -> None:
    codes = np.repeat(np.arange(len(sizes)), sizes)
    x = np.arange(len(codes))[:, None]
    data = split("x", x, codes, tuple("abcd"[: len(sizes)]))
    assert sorted([*data.x_train[:, 0], *data.x_test[:, 0]]) == list(range(len(codes)))
    np.testing.assert_array_equal(codes[data.x_test[:, 0]], data.y_test)
    for n, trained, tested in zip(
        sizes, np.bincount(data.y_train), np.bincount(data.y_test, minlength=9), strict=False
    ):
        assert trained >= 1
        assert tested == min(round(0.2 * n), n - 1)


def test_tiny_classes_give_one_point_each() -> None:
    data = split("x", np.arange(5)[:, None], np.array([0, 0, 1, 1, 2]), ("a", "b", "c"))
    assert data.y_train.tolist() == [0, 1, 2]
    assert data.y_test.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "size"), [("", MEMORY_LIMIT), ("1000", 1000), ("2G", 2**31), ("1.5m", 3 * 2**19), ("3KB", 3072)]
)
def test_the_memory_limit_is_read(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    monkeypatch.setenv("KIP_MEMORY_LIMIT", text)
    assert memory_limit() == size
    assert memory_limit(5) == 5


@pytest.mark.parametrize("text", ["many", "-1", "nan", "G", "inf"])
def test_a_bad_memory_limit_is_named(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("KIP_MEMORY_LIMIT", text)
    with pytest.raises(ValueError, match="KIP_MEMORY_LIMIT"):
        memory_limit()
