"""The real command, made easier to hit: a checkpoint after every step, and one of them written slowly.

    python -m tests.faults.victim distill --out RUN …

`FAULTS_SLOW` is the number of the checkpoint that is written in pieces over `FAULTS_SECONDS`; the word WRITING goes to
stdout when that begins. Nothing of this is in the package: it is put over it here, in the process that is to be killed.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

PIECES = 20
WRITING = "fault: writing"


class SlowFile:
    """A file that is written in pieces, each given to the system before the next is begun."""

    def __init__(self, file: Any, seconds: float) -> None:
        self.file, self.pause = file, seconds / PIECES

    def write(self, data: bytes | memoryview) -> None:
        size = max(1, -(-len(data) // PIECES))
        for start in range(0, len(data), size):
            self.file.write(data[start : start + size])
            self.file.flush()
            if len(data) > PIECES * 16:  # a header's few letters are not worth a pause
                time.sleep(self.pause)

    def __enter__(self) -> SlowFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def slow_down(number: int, seconds: float) -> None:
    """Make the checkpoint with that number, counted from 1, a slow one."""
    opened, count = Path.open, 0

    def slow_open(self: Path, *arguments: Any, **options: Any) -> Any:
        nonlocal count
        file = opened(self, *arguments, **options)
        if not (self.name.startswith(".checkpoint-") and self.name.endswith(".partial")):
            return file
        count += 1
        if count != number:
            return file
        print(WRITING, flush=True)
        return SlowFile(file, seconds)

    Path.open = slow_open  # type: ignore[method-assign]


def main() -> int:
    from kip import cli, recording

    recording.SAVE_EVERY, recording.SAVE_SHARE = 0.0, 1.0
    if number := int(os.environ.get("FAULTS_SLOW", "0")):
        slow_down(number, float(os.environ["FAULTS_SECONDS"]))
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
