"""Inputs to attack readers with: valid files, and what strangers, disks and accidents make of them."""

from __future__ import annotations

import gzip
import io
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image

from kip.data import Dataset, load
from kip.data.checks import point_shape

MEMORY = 2**20
SLACK = 16 * 2**20
"""What may be allocated beside the data: buffers, Pillow's and zlib's own memory, the interpreter's."""

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def npz(save: Callable[..., None], **arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def picture(form: str, mode: str = "RGB") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RNG.integers(0, 256, (5, 4, 3), dtype=np.uint8)).convert(mode).save(buffer, form)
    return buffer.getvalue()


IMAGES = idx(RNG.integers(0, 256, (6, 3, 2), dtype=np.uint8))
LABELS = idx(np.array([0, 1, 2, 0, 1, 2], np.uint8))
BATCH = b"".join(bytes([y]) + RNG.bytes(3072) for y in [*range(10)] * 2)
X, Y = RNG.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2])

SEEDS: dict[str, tuple[str, tuple[bytes, ...]]] = {
    # the file a reader is given, below its folder, and valid contents to damage
    "idx-images": ("train-images-idx3-ubyte", (IMAGES,)),
    "idx-labels": ("train-labels-idx1-ubyte", (LABELS,)),
    "idx-gzip": ("train-images-idx3-ubyte.gz", (gzip.compress(IMAGES, mtime=0),)),
    "cifar": ("data_batch_1.bin", (BATCH,)),
    "npz": ("own.npz", (npz(np.savez, x=X, y=Y), npz(np.savez_compressed, x=X, y=Y.astype(str)))),
    "csv": ("own.csv", (b"a,b,kind\n1,2,x\n3,4,y\n5,6,x\n7,8,y\n", b"1;2;0\n3;4;1\n5;6;0\n7;8;1\n")),
    "png": ("a/own.png", (picture("PNG"), picture("PNG", "P"), picture("PNG", "LA"), picture("PNG", "1"))),
    "jpeg": ("a/own.jpg", (picture("JPEG"),)),
    "other": (
        "a/own.bmp",
        tuple(picture(form) for form in ("BMP", "GIF", "TIFF", "WEBP", "PPM")),
    ),
}


@st.composite
def damaged(draw: st.DrawFn, seeds: tuple[bytes, ...]) -> bytes:
    """Random bytes, or a valid file cut off, changed here and there, or with a piece put in or doubled."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=200))
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        match draw(st.sampled_from(["set", "extreme", "cut", "put", "twice"])):
            case "set" if data:
                data[at] = draw(st.integers(0, 255))
            case "extreme":
                data[at : at + 4] = draw(st.sampled_from([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"]))
            case "cut":
                del data[at:]
            case "put":
                data[at:at] = draw(st.binary(max_size=20))
            case "twice":
                data += data[at : at + 5000]
    return bytes(data)


@contextmanager
def bounded() -> Iterator[None]:
    """Within, no more than the limit and `SLACK` may be allocated."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY + SLACK
    finally:
        tracemalloc.stop()


def outcome(path: Path) -> Dataset | str:
    """What `load` makes of `path`: a sound data set, or its one line."""
    try:
        data: Dataset | str = load(path, memory=MEMORY, resize=4)
    except (ValueError, FileNotFoundError) as error:
        data = str(error)
    if isinstance(data, str):
        assert "\n" not in data
        assert path.name in data
        return data
    for x, y in ((data.x_train, data.y_train), (data.x_test, data.y_test)):
        assert len(x) == len(y) > 0
        assert point_shape(x)
        assert 0 <= y.min() <= y.max() < len(data.classes)
    return data


def surrounded(name: str, folder: Path) -> tuple[Path, Path, tuple[bytes, ...]]:
    """The file under attack with what has to lie around it in `folder`, what to load, and the valid contents."""
    file, seeds = SEEDS[name]
    if "idx" in name:
        (folder / "train-images-idx3-ubyte").write_bytes(IMAGES)
        (folder / "train-labels-idx1-ubyte").write_bytes(LABELS)
        if file.endswith(".gz"):
            (folder / "train-images-idx3-ubyte").unlink()
    if "/" in file:
        for label in "ab":
            (folder / label).mkdir()
            for n in range(2):
                (folder / label / f"{n}.png").write_bytes(picture("PNG"))
    path = folder / file
    return path, path if path.suffix in (".npz", ".csv") else folder, seeds
