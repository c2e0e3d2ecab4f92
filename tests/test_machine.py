"""The machine as files of the system describe it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

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


@pytest.mark.parametrize(
    ("name", "field", "of", "option"),
    [("RLIMIT_AS", 0, "address space", "ulimit -v"), ("RLIMIT_DATA", 5, "data memory", "ulimit -d")],
)
def test_resource_limits_leave_what_is_not_mapped_without_use(
    name: str, field: int, of: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped = {1: 200 * 2**20, field: 500 * 2**20}
    monkeypatch.setattr(machine, "_cgroup_limits", list)
    monkeypatch.setattr(machine, "_soft_limit", lambda asked: 2**30 if asked == name else None)
    monkeypatch.setattr(machine, "_pages", mapped.get)
    limit = machine.tightest_limit()
    assert (limit.total, limit.of, limit.name) == (2**30, of, option)
    assert limit.resident == machine.memory_limit() == 2**30 - 300 * 2**20 - machine.STACKS
    monkeypatch.setattr(machine, "_soft_limit", lambda _: 2**20)
    assert machine.memory_limit() == 0  # less than is mapped already


def test_a_real_limit_is_read() -> None:
    program = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31)); from kip import machine; "
        "limit = machine.tightest_limit(); print(limit.total, limit.name, 0 < limit.resident < 2**31)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == f"{2**31} ulimit -v True\n"


@pytest.mark.parametrize(
    ("limit", "threads", "arenas"),
    [(None, None, []), (2**31, "3", [(-8, 1)]), (2**28, "1", [(-8, 1)])],
    ids=["no limit", "2 GB", "little"],
)
def test_less_is_mapped_where_address_space_is_limited(
    limit: int | None, threads: str | None, arenas: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *given: called.append(given))
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(machine, "_soft_limit", lambda _: limit)
    monkeypatch.setattr(machine, "cores", lambda: 16)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    machine.spare_address_space()
    assert os.environ.get("OPENBLAS_NUM_THREADS") == threads
    assert called == arenas


def test_a_process_does_not_inherit_its_parents_peak() -> None:
    ballast = bytearray(200 * 2**20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    program = "from kip import machine; print(machine.peak_memory())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100 * 2**20


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
