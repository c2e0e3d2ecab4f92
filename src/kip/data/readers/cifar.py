"""Reader of CIFAR-10's binary batches, and the word on its python batches, which are pickles."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kip.data.checks import check_memory
from kip.data.readers.base import Part
from kip.data.readers.files import regular

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

_RECORD = 1 + 3 * 32 * 32


def read_batch(path: Path, limit: int) -> Part:
    """Images (n, 32, 32, 3) and labels of a binary batch: records of a label byte and three planes of 32×32."""
    length = regular(path).stat().st_size
    check_memory(path, 2 * length, limit)
    if length == 0 or length % _RECORD:
        raise ValueError(
            f"{path}: a CIFAR-10 binary batch has a multiple of {_RECORD} bytes; got {length:,}. Fetch it again."
        )
    records = np.fromfile(path, np.uint8)
    if records.size != length:
        raise ValueError(f"{path}: the file changed while it was read. Try again.")
    records = records.reshape(-1, _RECORD)
    labels = records[:, 0].astype(np.int64)
    if labels.max() >= len(CLASSES):
        raise ValueError(
            f"{path}: a label is {labels.max()}, but CIFAR-10 has 10 classes: it is damaged. Fetch it again."
        )
    planes = records[:, 1:].reshape(-1, 3, 32 * 32)
    images = np.empty((len(planes), 32 * 32, 3), np.uint8)
    for channel in range(3):  # three strided copies are several times faster than one transpose
        images[:, :, channel] = planes[:, channel]
    return images.reshape(-1, 32, 32, 3), labels


def find_cifar(folder: Path) -> Path | None:
    """Find the folder of binary batches: `folder` itself or the one the official archive unpacks to."""
    for place in (folder, folder / "cifar-10-batches-bin"):
        if place.is_dir() and any(place.glob("data_batch_*.bin")):
            return place
    return None


def refuse_pickles(folder: Path) -> None:
    """Say so where a folder holds CIFAR-10's python batches, which could run code when read."""
    for name in ("data_batch_1", "cifar-10-batches-py", "cifar-10-python.tar.gz"):
        if (folder / name).exists():
            raise ValueError(
                f"{folder / name}: CIFAR-10's python batches are pickles, which kip does not read. "
                "Use the binary version (cifar-10-binary.tar.gz, unpacked), or `--data cifar10`."
            )


def read_cifar_folder(folder: Path, limit: int) -> tuple[Part, Part | None]:
    """All training batches in order, and the test batch where it is there."""
    batches = sorted(folder.glob("data_batch_*.bin"))
    test = folder / "test_batch.bin"
    check_memory(folder, 3 * sum(regular(path).stat().st_size for path in [*batches, test] if path.exists()), limit)
    parts = [read_batch(path, limit) for path in batches]
    train = (np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))
    return train, read_batch(test, limit) if test.exists() else None
