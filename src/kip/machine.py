"""The machine as a run finds it: its memory and what limits it, its processor, and what this process has used."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from kip._version import __version__

CGROUPS = Path("/sys/fs/cgroup")
CGROUP_OF_PROCESS, MEMORY_INFO, CPU_INFO = Path("/proc/self/cgroup"), Path("/proc/meminfo"), Path("/proc/cpuinfo")


def identity() -> dict[str, Any]:
    """What measured rates depend on: where any of it changes, they are measured again."""
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


def memory_limit() -> int:
    """Bytes that this process may fill: the machine's, or what its control group allows where that is less."""
    return min([physical_memory(), *_cgroup_limits()])


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
    for line in _lines(Path("/proc/self/statm")):
        return int(line.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_memory()


def peak_memory() -> int:
    """The most bytes that this process ever held."""
    import resource  # not on every system

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # another system, or a container that hides it
        return []
