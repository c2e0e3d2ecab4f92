"""Files from strangers: whatever their bytes, a reader gives a data set or one line, within its memory limit.

`python -m tests.faults.fuzz` tries many more inputs.
"""

import gzip
import io
import os
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.faults.inputs import LABELS, MEMORY, SEEDS, Y, bounded, damaged, outcome, picture, surrounded

from kip.data import Dataset, load

FUZZ = 60


@pytest.fixture(scope="module", params=SEEDS)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, tuple[bytes, ...]]:
    """A folder around the file under attack, what to load, and the valid contents."""
    return surrounded(request.param, tmp_path_factory.mktemp("hostile"))


def test_valid_files_are_read(case: tuple[Path, Path, tuple[bytes, ...]]) -> None:
    path, place, seeds = case
    for seed in seeds:
        path.write_bytes(seed)
        assert isinstance(outcome(place), Dataset)


@settings(max_examples=FUZZ, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_damaged_files_end_in_one_line(case: tuple[Path, Path, tuple[bytes, ...]], data: st.DataObject) -> None:
    path, place, seeds = case
    content = data.draw(damaged(seeds))
    path.write_bytes(content)
    before = {p: p.stat().st_size for p in path.parent.rglob("*")}
    with bounded():
        outcome(place)
    assert {p: p.stat().st_size for p in path.parent.rglob("*")} == before


def test_every_cut_is_noticed(case: tuple[Path, Path, tuple[bytes, ...]]) -> None:
    """Where sizes and sums are stated, a file that ends early is refused, wherever it ends.

    A cut csv may be a whole one, a cut batch a smaller one, and images are decoded as soon as their pixels are there.
    """
    path, place, seeds = case
    if path.suffix != ".npz" and "idx" not in path.name:
        return
    data = seeds[0]
    for end in range(0, len(data), max(1, len(data) // 40)):
        path.write_bytes(data[:end])
        assert isinstance(outcome(place), str), end


# Promises that a file cannot keep, and bombs.

HUGE = struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 2**32 - 1, 2**32 - 1)


def zeros_gz(count: int) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1) as file:
        for _ in range(count // 2**20):
            file.write(bytes(2**20))
    return buffer.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + size + text + data


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


GOOD_Y = npy("{'descr': '<i8', 'fortran_order': False, 'shape': (6,), }", Y.astype("<i8").tobytes())
PLAIN = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }"

NPZ_ATTACKS = {
    "bomb": zipped(x=npy(PLAIN % "16777216,", bytes(2**27)), y=GOOD_Y),
    "lies about its shape": zipped(x=npy(PLAIN % "99999999999999, 4"), y=GOOD_Y),
    "overflowing shape": zipped(x=npy(PLAIN % ", ".join(["4294967296"] * 4)), y=GOOD_Y),
    "objects": zipped(x=npy("{'descr': '|O', 'fortran_order': False, 'shape': (6,), }", b"cos\nsystem\n."), y=GOOD_Y),
    "code in the header": zipped(x=npy("{'descr': __import__('os').abort(), 'shape': (6,), }"), y=GOOD_Y),
    "nested header": zipped(x=npy("(" * 3000), y=GOOD_Y),
    "long header": zipped(x=npy(" " * 10**6, version=2), y=GOOD_Y),
    "structured": zipped(
        x=npy("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (6,), }", bytes(48)), y=GOOD_Y
    ),
    "packed by bzip2": zipped(zipfile.ZIP_BZIP2, x=npy(PLAIN % "6, 4", bytes(192)), y=GOOD_Y),
    "packed by lzma": zipped(zipfile.ZIP_LZMA, x=npy(PLAIN % "6, 4", bytes(192)), y=GOOD_Y),
    "unknown type": zipped(x=npy("{'descr': '<b5', 'fortran_order': False, 'shape': (6,), }", bytes(30)), y=GOOD_Y),
    "zero-sized items": zipped(x=npy("{'descr': '|S0', 'fortran_order': False, 'shape': (99999999999,), }"), y=GOOD_Y),
    "names that climb": zipped(**{"../x": GOOD_Y, "/y": GOOD_Y}),
    "not a zip": b"PK\x03\x04 no",
    "empty": b"",
}


@pytest.mark.parametrize("attack", NPZ_ATTACKS)
def test_npz_attacks(tmp_path: Path, attack: str) -> None:
    path = tmp_path / "own.npz"
    path.write_bytes(NPZ_ATTACKS[attack])
    with bounded():
        assert isinstance(outcome(path), str)
    assert [p.name for p in tmp_path.iterdir()] == ["own.npz"]


def test_a_zip_that_hides_its_size(tmp_path: Path) -> None:
    """The directory says 320 bytes, the member unpacks to 128 MB: no more than the 320 are ever unpacked."""
    x = npy(PLAIN % "6, 4", bytes(192))
    data = bytearray(zipped(x=x + bytes(2**27), y=GOOD_Y))
    false, true = struct.pack("<I", len(x)), struct.pack("<I", len(x) + 2**27)
    path = tmp_path / "own.npz"
    path.write_bytes(data.replace(true, false))
    with bounded():
        assert isinstance(outcome(path), str)


@pytest.mark.parametrize(
    "content",
    [
        HUGE,
        HUGE + bytes(100),
        struct.pack(">BBBB1I", 0, 0, 8, 1, 2**32 - 1),
        struct.pack(">BBBB", 0, 0, 8, 255),
        struct.pack(">BBBB3I", 0, 0, 8, 3, 2**32 - 1, 0, 0),
        struct.pack(">BBBB3I", 0, 0, 0x0D, 3, 1, 1, 1) + bytes(4),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_idx_promises(tmp_path: Path, content: bytes, gzipped: bool) -> None:
    name = "train-images-idx3-ubyte" + ".gz" * gzipped
    (tmp_path / name).write_bytes(gzip.compress(content) if gzipped else content)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS)
    with bounded():
        assert isinstance(outcome(tmp_path), str)


def test_a_gzip_bomb_is_not_followed(tmp_path: Path) -> None:
    bomb = zeros_gz(2**27)
    header = struct.pack(">BBBB3I", 0, 0, 8, 3, 6, 3, 2)
    for content in (
        gzip.compress(header) + bomb,
        bomb,
        gzip.compress(HUGE[:4] + struct.pack(">3I", 6, 2**12, 2**12)) + bomb,
    ):
        (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(content)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS)
        with bounded():
            assert isinstance(outcome(tmp_path), str)


def test_a_png_bomb_is_not_decoded(tmp_path: Path) -> None:
    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(picture("PNG"))
        (tmp_path / label / "2.png").write_bytes(picture("PNG"))
    for side in (2**31 - 1, 60_000, 9_000, 1_000):
        head = piece(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        body = piece(b"IDAT", zlib.compress(bytes(2**24)))
        (tmp_path / "a" / "3.png").write_bytes(b"\x89PNG\r\n\x1a\n" + head + body + piece(b"IEND", b""))
        with bounded():
            line = outcome(tmp_path)
        assert isinstance(line, str)
        assert "3.png" in line
        assert "pixels" in line


def test_a_folder_larger_than_the_limit_is_refused(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        for n in range(4):
            Image.new("RGB", (500, 500)).save(tmp_path / label / f"{n}.png")
    with pytest.raises(ValueError, match="--resize"):
        load(tmp_path, memory=MEMORY)
    assert isinstance(outcome(tmp_path), Dataset)  # with resize


@pytest.mark.parametrize("name", ["own.csv", "data_batch_1.bin", "train-images-idx3-ubyte"])
def test_a_long_file_is_refused_by_its_length(tmp_path: Path, name: str) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**40)  # sparse: a terabyte of zeros
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS) if "idx" in name else None
    with bounded():
        line = outcome(tmp_path / name if name.endswith("csv") else tmp_path)
    assert isinstance(line, str)


@pytest.mark.parametrize(
    "content",
    [
        b"1," * 2**18 + b"0\n",
        b'"1\n",' * 2**16 + b"0\n",
        b"".join(b"%d,%d\n" % (n, n % 2) for n in range(5000)) + b"1," + b"x" * 100_000 + b"\n",
        b"\n" * 2**19,
    ],
    ids=["one line", "one row of many lines", "one long class", "blank lines"],
)
def test_csv_attacks(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "own.csv").write_bytes(content)
    with bounded():
        assert isinstance(outcome(tmp_path / "own.csv"), str)


def test_one_long_class_does_not_widen_the_others(tmp_path: Path) -> None:
    x = np.zeros((20_000, 1), np.uint8)
    long = np.array(["a" * 20_000, "b"])
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.array(["a", "b"] * 10_000), x_test=x[:2], y_test=long)
    with bounded():
        assert isinstance(outcome(tmp_path / "own.npz"), str)


def test_a_chunk_longer_than_its_file_is_not_allocated(tmp_path: Path) -> None:
    data = picture("PNG")
    at = data.index(b"IDAT")
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "1.png").write_bytes(data)
    (tmp_path / "a" / "2.png").write_bytes(data[: at - 4] + struct.pack(">I", 2**31 - 1) + data[at:])
    with bounded():
        outcome(tmp_path)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "", "."])
def test_impossible_paths_end_in_one_line(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((ValueError, FileNotFoundError)):
        load(name)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this platform has no named pipes")
@pytest.mark.parametrize("name", ["own.csv", "own.npz", "a/1.png", "train-images-idx3-ubyte", "data_batch_1.bin"])
def test_pipes_and_folders_in_place_of_files_do_not_block(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    for make in (os.mkfifo, os.mkdir):
        make(path)
        (tmp_path / "train-labels-idx1-ubyte").write_bytes(LABELS) if "idx" in name else None
        assert isinstance(outcome(path if path.suffix in (".csv", ".npz") else tmp_path), str)
        path.rmdir() if path.is_dir() else path.unlink()
