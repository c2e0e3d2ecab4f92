"""Files that are written whole or not at all, and read with their size known beforehand."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

JSON_LIMIT = 64 * 2**20
"""A JSON file of ours larger than this is not one of ours."""


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a crash, sees the old file or the new one and nothing between.

    A temporary file beside it, flushed to disk, then renamed, and the folder's own entry flushed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def flush_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as readable JSON, atomically; NaN is refused, since other readers refuse it."""
    write_atomic(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path, *, limit: int = JSON_LIMIT) -> Any:
    """The value in a JSON file no larger than `limit`, or a ValueError that names the file."""
    if path.stat().st_size > limit:
        raise ValueError(f"{path} is {path.stat().st_size} bytes; a file of this kind has at most {limit}")
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not readable JSON: {error}") from None


def sha256(data: bytes) -> str:
    """The hash by which a file is known to be the one that was written."""
    return hashlib.sha256(data).hexdigest()
