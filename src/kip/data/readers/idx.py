"""Reader of idx files, MNIST's format, plain and gzipped."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kip.data.checks import check_memory
from kip.data.readers.base import Part
from kip.data.readers.files import Limited

_NAME = re.compile(
    r"(?P<set>.*?)(?P<part>train|t10k|test)[-_.](?P<what>images|labels)[-_.]idx[13][-_]ubyte(\.gz)?$", re.I
)


def read_idx(path: Path, limit: int) -> np.ndarray:
    """Read the uint8 array of an idx file: two zero bytes, type 8, the rank, big-endian sizes, then the bytes."""
    with Limited(path) as file:
        magic = file.exactly(4)
        rank = magic[3]
        if magic[:3] != b"\x00\x00\x08" or not 1 <= rank <= 4:
            raise ValueError(f"{path}: not an idx file of unsigned bytes. Give the files as MNIST has them.")
        shape = tuple(int(n) for n in np.frombuffer(file.exactly(4 * rank), ">u4"))
        need = 1
        for n in shape:
            need *= n
        check_memory(path, need, limit)
        if file.length is not None and file.length != 4 + 4 * rank + need:
            raise ValueError(
                f"{path}: its header promises {need:,} bytes of data, the file holds {file.length - 4 - 4 * rank:,}: "
                "it is damaged. Fetch it again."
            )
        data = np.frombuffer(file.exactly(need), np.uint8).reshape(shape)
        file.finish()
    return data


def find_idx(folder: Path) -> dict[str, Path]:
    """Find the idx files of a folder by "train images", "test labels" and so on; empty where there are none."""
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        match = _NAME.match(path.name)
        if match is None or path.name.startswith("."):
            continue
        part = "train" if match["part"].lower() == "train" else "test"
        key = f"{part} {match['what'].lower()}"
        if key in found and found[key].name.removesuffix(".gz") != path.name.removesuffix(".gz"):
            raise ValueError(
                f"{folder}: both {found[key].name} and {path.name} hold {key}. Keep one data set a folder."
            )
        found.setdefault(key, path)  # sorted: the plain file comes before its .gz
    return found


def read_idx_folder(folder: Path, limit: int) -> tuple[Part, Part | None]:
    """Training and, where its files are there, test part of a folder of idx files."""
    found = find_idx(folder)
    parts: list[Part | None] = []
    for part in ("train", "test"):
        pair = [found.get(f"{part} {what}") for what in ("images", "labels")]
        if pair == [None, None] and part == "test":
            parts.append(None)
            continue
        images, labels = pair
        if images is None or labels is None:
            missing = "images" if images is None else "labels"
            raise ValueError(f"{folder}: the idx file of the {part} {missing} is missing. Put it beside the others.")
        x, y = read_idx(images, limit), read_idx(labels, limit)
        if x.ndim < 2 or y.ndim != 1:
            raise ValueError(
                f"{folder}: {images.name} must hold images and {labels.name} labels. Check the file names."
            )
        parts.append((x, y))
    assert parts[0] is not None
    return parts[0], parts[1]
