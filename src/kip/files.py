"""Files that are written whole or not at all, and read with their size known beforehand."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

JSON_LIMIT = 64 * 2**20
"""A JSON file of ours larger than this is not one of ours."""

Bytes = bytes | memoryview


def write_atomic(path: Path, *parts: Bytes, flush: bool = True) -> None:
    """Write `parts` in turn, so that a reader, or a crash, sees the old file or the new one and nothing between.

    A temporary file beside it, flushed to disk, then renamed, and the folder's own entry flushed. What fails leaves no
    temporary file; a process that is killed may, and `remove_partials` clears it away. Without `flush` this holds for
    a process that dies, and a machine that does may leave a torn file.
    """
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            for part in parts:
                file.write(part)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        # What went wrong first is what is told: on a read-only disk removing complains as well.
        with contextlib.suppress(OSError):
            partial.unlink()
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None  # a full disk names no file, the others the temporary one
        raise
    if flush:
        flush_folder(path.parent)


@contextlib.contextmanager
def exclusive(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the system's lock on the file at `path`, which ends with this process however it ends.

    Where another process holds it: wait for it, or BlockingIOError, whose `strerror` names the process. Where the file
    system has no locks: a warning, and no lock.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The substitute for a missing lock is a file that outlives a killed process.
    lock = filelock.FileLock(path, fallback_to_soft=False)
    try:
        lock.acquire(blocking=wait)
    except filelock.Timeout:
        raise BlockingIOError(errno.EWOULDBLOCK, f"locked by {_holder(path)}", str(path)) from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
        warnings.warn(
            f"{path.parent} cannot be locked ({error.strerror}); let no other process write there meanwhile",
            stacklevel=3,
        )
        yield
        return
    try:
        # Where the file cannot be written while it is locked, as on Windows or a full disk, the lock has no name.
        with contextlib.suppress(OSError):
            path.write_text(str(os.getpid()), encoding="ascii")
        yield
    finally:
        lock.release()


def _holder(path: Path) -> str:
    try:
        owner = path.read_text(encoding="ascii")
    except (OSError, ValueError):
        owner = ""
    return f"process {owner}" if owner.isdecimal() else "another process"


def remove_partials(folder: Path, name: str = "*") -> None:
    """Remove what killed writers of files called `name` (a pattern) left; only for who has `folder` to himself."""
    for path in folder.glob(f".{name}.{'[0-9a-f]' * 16}.partial"):
        path.unlink(missing_ok=True)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network and user-space file systems do not offer this for folders.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def absolute(path: str | Path) -> str:
    """A path as it is found from anywhere, as text."""
    return as_text(as_path(path).expanduser().resolve())


def as_text(name: str | Path) -> str:
    r"""A file's name or an argument as the Unicode text that its bytes are in UTF-8, whatever the locale's encoding.

    Python keeps bytes that the locale cannot decode as lone surrogates, which no file in UTF-8 can hold. Bytes that are
    not UTF-8 either are spelled out.

    >>> as_text("\udcc3\udca9t\udcc3\udca9"), as_text("\udce9t")
    ('été', '\\xe9t')
    """
    return str(name).encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def as_path(name: str | Path) -> Path:
    """The path called so, where a locale that cannot encode its letters would refuse it: the inverse of `as_text`."""
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return Path(os.fsdecode(str(name).encode("utf-8", "surrogateescape")))
    return Path(name)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically; NaN is refused, since other readers refuse it."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file no larger than `limit`, or a ValueError that names the file."""
    size = path.stat().st_size
    if not path.is_file():
        raise ValueError(f"{path} is not a regular file; give the path of a JSON file")
    if size > limit:
        raise ValueError(f"{path} is {size} bytes; a file of this kind has at most {limit}")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None


def sha256(*parts: Bytes) -> str:
    """The hash, over `parts` one after another, by which a file is known to be the one that was written."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
