"""The machine as files of the system describe it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kip import machine


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"memory.max": "1000"}, 1000),
        ("0::/a/b", {"a/memory.max": "2000", "a/b/memory.max": "max"}, 2000),
        ("0::/a", {"a/memory.max": "max"}, None),
        ("5:cpu:/x\n4:memory:/y", {"memory/y/memory.limit_in_bytes": "3000"}, 3000),
        ("4:memory:/y", {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
        ("", {}, None),
    ],
    ids=["version 2", "an outer group", "no limit", "version 1", "none of version 1", "no groups"],
)
def test_control_groups_limit_memory(
    groups: str, files: dict[str, str], limit: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        (tmp_path / "fs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "fs" / name).write_text(text + "\n")
    monkeypatch.setattr(machine, "CGROUPS", tmp_path / "fs")
    monkeypatch.setattr(machine, "CGROUP_OF_PROCESS", tmp_path / "cgroup")
    assert machine.memory_limit() == (machine.physical_memory() if limit is None else limit)


def test_the_machine_is_known_where_files_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_lines", lambda _: [])
    assert machine.identity()["cores"] >= 1
    assert machine.free_memory() is None
    assert machine.resident() == machine.peak_memory() > 0
    assert machine.memory_limit() == machine.physical_memory()


@pytest.mark.parametrize(
    ("vendor", "family", "flags", "named"),
    [
        ("AuthenticAMD", "26", "avx2 avx512f", "SkylakeX"),
        ("AuthenticAMD", "25", "avx2 avx512f", None),
        ("AuthenticAMD", "26", "avx2", None),
        ("GenuineIntel", "26", "avx2 avx512f", None),
    ],
    ids=["Zen 5", "Zen 4", "without AVX-512", "another's"],
)
def test_openblas_is_told_of_a_processor_that_it_mistakes(
    vendor: str, family: str, flags: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel name\t: X\nflags\t\t: fpu {flags}\n\n"
    (tmp_path / "cpuinfo").write_text(core + core)
    monkeypatch.setattr(machine, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "")
    monkeypatch.delenv("OPENBLAS_CORETYPE")
    machine.name_processor_to_blas()
    assert os.environ.get("OPENBLAS_CORETYPE") == named
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    machine.name_processor_to_blas()
    assert os.environ["OPENBLAS_CORETYPE"] == "Prescott"
