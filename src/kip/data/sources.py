"""Sources of mnist, fashion-mnist and cifar10: fetched once, verified against pinned hashes, kept in a cache folder.

Two ways lead to the same bytes: the data sets' official hosts over https, and packages that hold them, through the
machine's own package clients. Whatever the way, each file is checked to have the pinned size and md5 when uncompressed,
and a data set appears in the cache whole or not at all.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from kip.data import registries
from kip.data.checks import nearest
from kip.files import exclusive

Say = Callable[[str], object]

WAYS = ("official", "registry")
TIMEOUT = (5.0, 30.0)
"""Seconds to wait for a host to answer, and for the next bytes of a transfer."""


@dataclass(frozen=True)
class File:
    """A file of a data set as it lies in the cache: its name, size and md5, uncompressed."""

    name: str
    size: int
    md5: str


@dataclass(frozen=True)
class Source:
    """A data set: its files, the https folders that offer `downloads` (file to md5 as sent), and its package.

    A download is either one file gzipped or an archive that holds them all. `package` turns a package into the files,
    by name, in a folder it is given.
    """

    files: tuple[File, ...]
    mirrors: tuple[str, ...]
    downloads: Mapping[str, str]
    package: Callable[[Path], dict[str, Path]] = field(repr=False)


def _idx_files(*md5: str) -> tuple[File, ...]:
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    sizes = (47_040_016, 60_008, 7_840_016, 10_008)
    return tuple(File(*file) for file in zip(names, sizes, md5, strict=True))


SOURCES: dict[str, Source] = {
    "mnist": Source(
        files=_idx_files(
            "6bbc9ace898e44ae57da46a324031adb",
            "a25bea736e30d166cdddb491f175f624",
            "2646ac647ad5339dbf082846283269ea",
            "27ae3e4e09519cfbb04c329615203637",
        ),
        mirrors=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        downloads={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        package=registries.mnist,
    ),
    "fashion-mnist": Source(
        files=_idx_files(
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        mirrors=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        downloads={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        package=registries.fashion_mnist,
    ),
    "cifar10": Source(
        files=(
            File("data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            File("data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            File("data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            File("data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            File("data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
            File("test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        ),
        mirrors=("https://www.cs.toronto.edu/~kriz/",),
        downloads={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        package=registries.cifar10,
    ),
}


def cache_folder() -> Path:
    """Where fetched data sets are kept: the variable KIP_DATA, else the user's cache folder of this platform."""
    given = os.environ.get("KIP_DATA")
    if given:
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("kip", appauthor=False) / "data"


def available(name: str, *, cache: Path | None = None) -> bool:
    """Whether `name` can be loaded without fetching anything: all its files lie in the cache with their right sizes."""
    if name == "digits":
        return True
    folder = (cache or cache_folder()) / name
    return all(_size(folder / file.name) == file.size for file in _source(name).files)


def fetch(name: str, *, source: str | None = None, cache: Path | None = None, say: Say = print) -> Path:
    """Give the folder that holds the files of `name`, fetched and verified first if the cache has it not.

    `source` picks "official" or "registry"; left out, the official hosts are tried first, then the registry, with a
    word to `say`. Files already transferred by an attempt that was broken off are used again.
    """
    spec = _source(name)
    if source not in (None, *WAYS):
        raise ValueError(f"`source` {source!r} is not known. {nearest(str(source), WAYS)}")
    cache = Path(cache or cache_folder())
    folder = cache / name
    if available(name, cache=cache):
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache / f".{name}.lock", wait=True):
            if not available(name, cache=cache):  # another process may have fetched it meanwhile
                _fetch(name, spec, source, cache, say)
    except OSError as error:
        raise ValueError(
            f"{folder}: cannot be written ({error.strerror or error}). Free some space, or point KIP_DATA elsewhere."
        ) from None
    return folder


def _source(name: str) -> Source:
    if name == "digits":
        raise ValueError("`digits` comes with the package: there is nothing to fetch. Use it as --data digits.")
    if name not in SOURCES:
        raise ValueError(f"`name` {name!r} is not a data set kip can fetch. {nearest(name, SOURCES)}")
    return SOURCES[name]


def _fetch(name: str, spec: Source, way: str | None, cache: Path, say: Say) -> None:
    for left in cache.glob(f".{name}-*"):  # of a process that was killed: the lock is ours
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache, ignore_cleanup_errors=True) as text:
        work = Path(text)
        result = work / "result"
        result.mkdir()
        if way == "official":
            _official(name, spec, cache, result, say)
        elif way == "registry":
            _registry(name, spec, work, result, say)
        else:
            try:
                _official(name, spec, cache, result, say)
            except ValueError as error:
                say(f"{error} Trying the package registry.")
                _registry(name, spec, work, result, say)
        _publish(result, cache / name, work)
    shutil.rmtree(cache / f".{name}.downloads", ignore_errors=True)
    say(f"{name}: verified, kept in {cache / name}")


def _official(name: str, spec: Source, cache: Path, result: Path, say: Say) -> None:
    """Fill `result` from the first mirror that sends what was pinned."""
    import pooch

    pooch.get_logger().setLevel("ERROR")
    folder, reasons = cache / f".{name}.downloads", []
    for base in spec.mirrors:
        say(f"{name}: fetching from {base}")
        try:
            for file, md5 in spec.downloads.items():
                pooch.retrieve(
                    base + file, f"md5:{md5}", fname=file, path=folder, downloader=pooch.HTTPDownloader(timeout=TIMEOUT)
                )
            return _unpack(spec, folder, result)
        except (OSError, ValueError) as error:  # requests' errors are OSErrors
            reasons.append(_reason(error))
    raise ValueError(f"{name}: the official source could not be used ({'; '.join(dict.fromkeys(reasons))}).")


def _reason(error: Exception) -> str:
    """Say in a few words what went wrong with a transfer."""
    import requests

    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"the file has moved: status {error.response.status_code}"
    if isinstance(error, requests.Timeout):
        return "the host does not answer"
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return "the transfer broke off"
    if isinstance(error, requests.ConnectionError):
        return "the host cannot be reached"
    if isinstance(error, ValueError) and "does not match the known hash" in str(error):
        return "the file sent is not the pinned one: its hash differs"
    return str(error).rstrip(".")[:120]


def _unpack(spec: Source, folder: Path, result: Path) -> None:
    for download in spec.downloads:
        path = folder / download
        try:
            if download.endswith(".tar.gz"):
                _unpack_archive(spec, path, result)
            else:
                file = next(file for file in spec.files if file.name == download.removesuffix(".gz"))
                with gzip.open(path) as stream:
                    _place(stream, file, result)
        except (EOFError, zlib.error, tarfile.TarError, gzip.BadGzipFile) as error:
            raise ValueError(f"{download} cannot be unpacked ({error})") from None


def _unpack_archive(spec: Source, path: Path, result: Path) -> None:
    """Read the pinned files out of an archive; names and links in it are never followed."""
    wanted = {file.name: file for file in spec.files}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            file = wanted.pop(member.name.rpartition("/")[2], None) if member.isreg() else None
            stream = archive.extractfile(member) if file else None
            if file and stream:
                _place(stream, file, result)
    if wanted:
        raise ValueError(f"{path.name} lacks {', '.join(wanted)}")


def _registry(name: str, spec: Source, work: Path, result: Path, say: Say) -> None:
    """Fill `result` from the package that holds the same bytes."""
    say(f"{name}: fetching from the package registry")
    paths = spec.package(work)
    for file in spec.files:
        with paths[file.name].open("rb") as raw, registries.plain(raw, paths[file.name]) as stream:
            try:
                _place(stream, file, result)
            except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise ValueError(f"{name}: the package's {error}. Try --source official.") from None


def _place(stream: IO[bytes] | gzip.GzipFile, file: File, result: Path) -> None:
    """Copy `stream` to `result` under the name of `file`, never more than its size, and check size and md5."""
    digest, held = hashlib.md5(usedforsecurity=False), 0
    with (result / file.name).open("wb") as out:
        while held <= file.size and (piece := stream.read(min(2**20, file.size + 1 - held))):
            digest.update(piece)
            out.write(piece)
            held += len(piece)
        out.flush()
        os.fsync(out.fileno())
    if held != file.size or digest.hexdigest() != file.md5:
        raise ValueError(f"{file.name} is not the pinned one: its size or hash differs")


def _publish(result: Path, folder: Path, work: Path) -> None:
    """Put `result` in place of `folder` in one rename."""
    if folder.exists():  # incomplete: it would have been used otherwise
        folder.rename(work / "before")
    result.rename(folder)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
