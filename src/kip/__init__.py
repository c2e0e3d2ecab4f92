"""Distil a labelled dataset into a very small one that trains nearly as well.

    >>> import kip
    >>> kip.kernel("fc2:nngp")
    kip.kernel('fc2:nngp')

`distill` learns a support set (KIP), `label_solve` solves for labels of natural points, `load` opens what was saved.
Everything is imported on first use, so that `import kip` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kip._version import __version__

if TYPE_CHECKING:
    from kip.api import distill, label_solve
    from kip.artefact import DistilledSet, load
    from kip.kernels import family, kernel
    from kip.learning import Interrupted

__all__ = ["DistilledSet", "Interrupted", "__version__", "distill", "family", "kernel", "label_solve", "load"]

_HOMES = {
    "DistilledSet": "kip.artefact",
    "Interrupted": "kip.learning",
    "distill": "kip.api",
    "family": "kip.kernels",
    "kernel": "kip.kernels",
    "label_solve": "kip.api",
    "load": "kip.artefact",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kip' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
