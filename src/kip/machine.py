"""The machine as a run finds it: its memory and what limits it, its processor, and what this process has used."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kip._version import __version__

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS, MEMORY_INFO, CPU_INFO = Path("/proc/self/cgroup"), Path("/proc/meminfo"), Path("/proc/cpuinfo")


def identity() -> dict[str, Any]:
    """The machine and the version of kip, as results of benchmarks record them."""
    return {"cores": cores(), "memory": physical_memory(), "processor": _processor(), "kip": __version__}


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    for line in _lines(CPU_INFO):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


ZEN_5 = 26
"""AMD's family number; later ones are its successors."""


def name_processor_to_blas() -> None:
    """Tell OpenBLAS of a Zen 5 what it is: it takes one for a Haswell, at half its speed (OpenBLAS, issue 6029).

    It looks when it is loaded, so this comes before NumPy; what the environment says already stays.
    """
    facts: dict[str, str] = {}
    for line in _lines(CPU_INFO):
        name, _, value = line.partition(":")
        facts.setdefault(name.strip(), value.strip())  # of the first core
    family = facts.get("cpu family", "")
    recent = facts.get("vendor_id") == "AuthenticAMD" and family.isdigit() and int(family) >= ZEN_5
    if recent and "avx512f" in facts.get("flags", "").split():
        os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")


def physical_memory() -> int:
    """Bytes of memory in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Limit:
    """A limit of `total` bytes `of` something, by the `name` a user knows; None is the machine itself.

    `beside` are the bytes that count towards it without being resident memory.
    """

    total: int
    of: str = "memory"
    name: str | None = None
    beside: int = 0

    @property
    def resident(self) -> int:
        """The resident memory that the limit leaves this process."""
        return self.total - self.beside


def memory_limit() -> int:
    """Bytes of memory that this process may hold, by the machine, its control group and its resource limits."""
    return max(tightest_limit().resident, 0)


def tightest_limit() -> Limit:
    """The limit that leaves this process the least memory."""
    groups = [Limit(total, name="control group") for total in _cgroup_limits()]
    return min([Limit(physical_memory()), *groups, *_resource_limits()], key=lambda limit: limit.resident)


STACKS = 96 * 2**20
"""Address space that threads, compiled code and libraries loaded later map beside the memory they fill."""


def _resource_limits() -> list[Limit]:
    """What `ulimit -v` and `ulimit -d` allow; both count what is mapped, of which only a part is ever resident."""
    limits = []
    for option, name, of, field in (("-v", "RLIMIT_AS", "address space", 0), ("-d", "RLIMIT_DATA", "data memory", 5)):
        total, mapped = _soft_limit(name), _pages(field)
        if total is not None and mapped is not None:
            limits.append(Limit(total, of, f"ulimit {option}", mapped - resident() + STACKS))
    return limits


def _soft_limit(name: str) -> int | None:
    try:
        import resource
    except ImportError:  # not on every system
        return None
    soft, _ = resource.getrlimit(getattr(resource, name))
    return None if soft == resource.RLIM_INFINITY else soft


BLAS_THREAD = 80 * 2**20
"""Address space per thread of OpenBLAS, which is loaded twice, by NumPy and by SciPy."""


def spare_address_space() -> None:
    """Map less where `ulimit -v` limits address space; call it before NumPy is imported.

    glibc reserves 64 MB per thread for an allocator of its own, 1 GB in all beside a few hundred MB in use; one for all
    threads is enough. Threads of BLAS keep to an eighth of the limit.
    """
    limit = _soft_limit("RLIMIT_AS")
    if limit is None:
        return
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library
        arena_max = -8
        ctypes.CDLL(None).mallopt(arena_max, 1)
    threads = min(cores(), limit // (8 * BLAS_THREAD))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", str(max(1, threads)))


def _cgroup_limits() -> list[int]:
    """The limits of this process's control group and of those around it, of either version."""
    limits = []
    for line in _lines(CGROUP_OF_PROCESS):
        _, controllers, path = [*line.strip().split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUPS / "memory" if controllers else CGROUPS
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        folder = root / path.lstrip("/")
        for place in (folder, *folder.parents):
            limits += [int(text) for text in _lines(place / name) if text.strip().isdigit()]
            if place == root:
                break
    return limits


def free_memory() -> int | None:
    """Bytes that are free now, or could be made so; None where the system does not say."""
    for line in _lines(MEMORY_INFO):
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return None


def resident() -> int:
    """Bytes that this process holds now; the most it ever held where the system says no more than that."""
    held = _pages(1)
    return peak_memory() if held is None else held


def _pages(field: int) -> int | None:
    """A field of /proc/self/statm in bytes: 0 is what is mapped, 1 what is resident, 5 data and stack."""
    for line in _lines(Path("/proc/self/statm")):
        return int(line.split()[field]) * os.sysconf("SC_PAGE_SIZE")
    return None


def peak_memory() -> int:
    """The most bytes that this process ever held."""
    for line in _lines(Path("/proc/self/status")):
        if line.startswith("VmHWM:"):  # getrusage counts what the parent held before it started this program
            return int(line.split()[1]) * 1024
    import resource  # not on every system

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system, or a container that hides it
        return []
