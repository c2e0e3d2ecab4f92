"""Reader of .csv files: numeric columns are the features, one column is the class."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from kip.data.checks import check_memory, nearest
from kip.data.readers.base import LONGEST_NAME
from kip.data.readers.files import regular

_DELIMITERS = ",;\t"
_LONGEST_ROW = 2**24


def read_csv(path: Path, limit: int, label: str | int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) in float64 and labels (texts) of a csv file.

    `label` names the column of the classes, by its heading or by its number from 0 (negative from the end); the last by
    default. A first row that is not numeric in the features is the heading.
    """
    check_memory(path, regular(path).stat().st_size, limit)
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            return _read(path, file, limit, label)
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not a text in UTF-8. Save it as a csv file in UTF-8.") from None
        except csv.Error as error:
            raise ValueError(f"{path}: cannot be read as csv ({error}). Check the quotes in it.") from None


def _read(path: Path, file: io.TextIOWrapper, limit: int, label: str | int | None) -> tuple[np.ndarray, np.ndarray]:
    rows = _rows(path, file, limit)
    number, first = next(rows, (0, []))
    if len(first) < 2:
        raise ValueError(
            f"{path}: needs at least two columns, features and a class; found {len(first)}. Check the file."
        )
    column, heading = _label_column(path, first, label)
    values, labels = array("d"), list[str]()
    if not heading:
        _append(path, number, first, column, values, labels)
    for number, row in rows:
        if len(row) != len(first):
            raise ValueError(
                f"{path}: line {number} has {len(row)} columns, the first has {len(first)}. Mend that line."
            )
        _append(path, number, row, column, values, labels)
        if len(labels) % 1000 == 0:
            check_memory(path, 8 * len(values), limit)
    if not labels:
        raise ValueError(f"{path}: holds a heading and no rows. Add the data.")
    return np.array(values).reshape(len(labels), -1), np.array(labels)


def _rows(path: Path, file: io.TextIOWrapper, limit: int) -> Iterator[tuple[int, list[str]]]:
    """Line numbers and fields of the rows that are not blank."""
    head = file.readline(2**16)
    file.seek(0)
    delimiter = max(_DELIMITERS, key=head.count)
    lines = _Lines(path, file, min(_LONGEST_ROW, limit // 32))  # a field of one digit takes some 60 bytes as an object
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    for row in reader:
        lines.taken = 0
        if any(field.strip() for field in row):
            yield reader.line_num, row


class _Lines:
    """Lines of a file, of which one row may take no more than `longest` letters, be it of several lines."""

    def __init__(self, path: Path, file: io.TextIOWrapper, longest: int) -> None:
        self.path, self.file, self.longest, self.taken = path, file, longest, 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.file.readline(self.longest + 1)
        self.taken += len(line)
        if self.taken > self.longest:
            raise ValueError(
                f"{self.path}: a row is longer than {self.longest:,} letters. Check that it is a csv file."
            )
        if not line:
            raise StopIteration
        return line


def _label_column(path: Path, first: list[str], label: str | int | None) -> tuple[int, bool]:
    """Find the number of the column of the classes, and whether the first row is a heading."""
    names = [field.strip() for field in first]
    if isinstance(label, str) and label.strip() in names and not all(_is_number(name) for name in names):
        return names.index(label.strip()), True
    column = _column_number(path, names, label)
    features = names[:column] + names[column + 1 :]
    return column, not all(_is_number(field) for field in features)


def _column_number(path: Path, names: list[str], label: str | int | None) -> int:
    if label is None:
        return len(names) - 1
    try:
        column = int(label)
    except ValueError:
        raise ValueError(f"{path}: no column is called {label!r}. {nearest(str(label), names[:20])}") from None
    if not -len(names) <= column < len(names):
        raise ValueError(
            f"{path}: `label` {column} is out of range: there are {len(names)} columns, from 0. Choose another."
        )
    return column % len(names)


def _append(path: Path, number: int, row: list[str], column: int, values: array[float], labels: list[str]) -> None:
    name = row[column].strip()
    if not name:
        raise ValueError(f"{path}: line {number} has no class in column {column}. Fill it or remove the line.")
    if len(name) > LONGEST_NAME:
        raise ValueError(f"{path}: line {number} has a class of {len(name):,} letters. Is column {column} the class's?")
    labels.append(name)
    try:
        values.extend(map(float, row[:column]))
        values.extend(map(float, row[column + 1 :]))
    except ValueError:
        bad = next(field for n, field in enumerate(row) if n != column and not _is_number(field))
        raise ValueError(
            f"{path}: line {number} holds {bad[:40]!r} where a number is needed. Make every feature a number, "
            "or choose the column of the classes with --label."
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
