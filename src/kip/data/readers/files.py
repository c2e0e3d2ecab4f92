"""Opening files from strangers: regular files only, and never more bytes than were checked beforehand."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import BinaryIO

_PIECE = 2**20


def regular(path: Path) -> Path:
    """`path` if it is a regular file (not a folder, pipe or device, which could block or never end)."""
    if not path.is_file():
        raise (
            ValueError(f"{path}: not a regular file. Give a file or a folder of files.")
            if path.exists()
            else FileNotFoundError(f"{path}: there is no such file. Check the path.")
        )
    return path


class Limited:
    """A file, gunzipped where its name ends in .gz, read in exact amounts with one-line errors."""

    def __init__(self, path: Path) -> None:
        self.path = regular(path)
        self._raw: BinaryIO = path.open("rb")
        gzipped = path.suffix.lower() == ".gz"
        self._file: BinaryIO = gzip.GzipFile(fileobj=self._raw) if gzipped else self._raw  # type: ignore[assignment]
        self.length = None if gzipped else path.stat().st_size

    def exactly(self, count: int) -> bytearray:
        """Read the next `count` bytes; a ValueError where the file ends before."""
        data = bytearray()  # grown as bytes arrive: a header that promises too much allocates nothing
        while len(data) < count and (piece := self._read(min(count - len(data), _PIECE))):
            data += piece
        if len(data) < count:
            raise ValueError(f"{self.path}: the file ends too early: it is cut off. Fetch it again.")
        return data

    def finish(self) -> None:
        """Check that nothing is left (which also makes gzip check its sum)."""
        if self._read(1):
            raise ValueError(f"{self.path}: the file is longer than its header says: it is damaged. Fetch it again.")

    def _read(self, count: int) -> bytes:
        try:
            return self._file.read(count)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{self.path}: cannot be read ({error}). Fetch it again.") from None

    def __enter__(self) -> Limited:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()
