"""Our own files in the hands of strangers; `python -m tests.faults.fuzz` tries many more inputs."""

from __future__ import annotations

import pytest
from tests.faults.fuzz import attack
from tests.faults.inputs import SEEDS
from tests.faults.readers import Reader, readers

INPUTS = 60


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(tmp_path_factory.mktemp("readers"))


OWN = [
    *("distilled.json", "distilled.safetensors", "distilled.safetensors, resealed", "checkpoint"),
    *("checkpoint, resealed", "config.json", "TOML", "history.jsonl", "Gram tile"),
]


def test_every_reader_is_attacked(found: dict[str, Reader]) -> None:
    assert {*found} == {*OWN, *SEEDS}  # those of SEEDS in tests/data/test_hostile.py


@pytest.mark.parametrize("name", OWN)
def test_valid_files_are_read(found: dict[str, Reader], name: str) -> None:
    reader = found[name]
    reader.path.write_bytes(reader.seeds[0])
    if reader.beside is not None:
        reader.beside(reader.seeds[0])
    reader.read()


@pytest.mark.parametrize("name", OWN)
def test_damaged_files_end_in_one_line(found: dict[str, Reader], name: str) -> None:
    assert attack(found[name], INPUTS) > 0
