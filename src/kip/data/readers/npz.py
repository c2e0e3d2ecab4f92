"""Reader of .npz files: (x, y) or (x_train, y_train, x_test, y_test), headers checked by hand, never a pickle."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from kip.data.checks import check_memory
from kip.data.readers.base import Part
from kip.data.readers.files import regular
from kip.sets import channels_last

# What NumPy writes for plain arrays, and nothing else: the header is never evaluated.
_HEADER = re.compile(
    rb"\{'descr': '(?P<descr>[<>|=][biufUS]\d{1,5})', 'fortran_order': (?P<fortran>True|False), "
    rb"'shape': \((?P<shape>[0-9, ]*)\),? ?\}\s*"
)
_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    OverflowError,
)


def read_npz(path: Path, limit: int, layout: str | None = None) -> tuple[Part, Part | None]:
    """Training part and, where it is there, test part of an .npz file; `layout` is that of images (`channels_last`)."""
    regular(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_parts(path, archive, limit, layout)
    except _RefusedError:
        raise
    except _ERRORS as error:
        raise ValueError(f"{path}: cannot be read as .npz ({error}). Save it again with numpy.savez.") from None


class _RefusedError(ValueError):
    """A refusal that already says what to do."""


def _read_parts(path: Path, archive: zipfile.ZipFile, limit: int, layout: str | None) -> tuple[Part, Part | None]:
    members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
    if {"x_train", "y_train"} <= members.keys():
        names = ["x_train", "y_train"]
        names += ["x_test", "y_test"] if {"x_test", "y_test"} <= members.keys() else []
    elif {"x", "y"} <= members.keys():
        names = ["x", "y"]
    else:
        found = ", ".join(sorted(members)[:8]) or "nothing"
        raise _RefusedError(
            f"{path}: needs arrays x and y, or x_train, y_train, x_test and y_test; found {found}. Rename them."
        )
    try:
        check_memory(path, sum(members[name].file_size for name in names), limit)
    except ValueError as error:
        raise _RefusedError(str(error)) from None
    arrays = [_read_member(path, archive, members[name], name) for name in names]
    try:
        arrays[::2] = [channels_last(x, layout, name) for x, name in zip(arrays[::2], names[::2], strict=True)]
    except ValueError as error:
        raise _RefusedError(f"{path}: {error}") from None
    return (arrays[0], arrays[1]), (arrays[2], arrays[3]) if len(arrays) == 4 else None


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> np.ndarray:
    """One array, after its header was found to promise exactly the bytes the member holds."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
        raise _RefusedError(f"{path}: array {name} is packed in a way NumPy does not write. Save it with numpy.savez.")
    with archive.open(info) as file:
        start = file.read(10)
        if start[:6] != b"\x93NUMPY" or start[6] not in (1, 2):
            raise _RefusedError(f"{path}: array {name} is not in NumPy's format. Save it again with numpy.savez.")
        length = start[8:10] if start[6] == 1 else start[8:10] + file.read(2)
        size = int.from_bytes(length, "little")
        match = _HEADER.fullmatch(file.read(size)) if size <= 4096 else None
        if match is None:
            raise _RefusedError(
                f"{path}: array {name} is not plain numbers or texts (objects are pickles, which kip does not read). "
                "Save numbers and texts only."
            )
        dtype = np.dtype(match["descr"].decode())
        shape = tuple(int(n) for n in match["shape"].split(b",") if n.strip())
        count = 1
        for n in shape:
            count *= n
        header = 10 + len(length) - 2 + size
        if count * dtype.itemsize != info.file_size - header:
            raise _RefusedError(
                f"{path}: array {name} has a header that does not fit its data: it is damaged. Save it again."
            )
        data = _exactly(file, count * dtype.itemsize)
        file.read(1)  # at the end: the sum is checked
    order: Literal["F", "C"] = "F" if match["fortran"] == b"True" else "C"
    return np.frombuffer(data, dtype).reshape(shape, order=order).astype(dtype.newbyteorder("="), order="C", copy=False)


def _exactly(file: object, count: int) -> bytearray:
    data = bytearray()  # grown as bytes arrive, so that a false size allocates nothing
    while len(data) < count:
        piece = file.read(min(count - len(data), 2**20))  # type: ignore[attr-defined]
        if not piece:
            raise EOFError("a member ends too early")
        data += piece
    return data
