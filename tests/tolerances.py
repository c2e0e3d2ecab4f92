"""Tolerances by dtype: the one place that says how close counts as equal."""

from __future__ import annotations

from typing import Any

import numpy as np

TOLERANCES: dict[str, dict[str, float]] = {
    "value": {"float64": 1e-10, "float32": 1e-5},
    # κ₀ has a square-root cone at correlation ±1, and the oracle itself errs by 1e-9 there
    "hard": {"float64": 2e-8, "float32": 1e-5},
    "gradient": {"float64": 1e-8, "float32": 1e-4},
    "finite difference": {"float64": 1e-6},
    # a streamed sum against the same sum in one piece, or against jax.grad
    "stream": {"float64": 1e-9, "float32": 1e-4},
    "rounding": {"float64": 1e-12, "float32": 1e-5},
    # what a float32 computation keeps of the float64 one, hard points and gradients included
    "single": {"float32": 2e-4},
}


def tolerance(kind: str, dtype: Any) -> float:
    """The relative tolerance of this kind at this dtype."""
    return TOLERANCES[kind][np.dtype(dtype).name]


def assert_close(actual: Any, desired: Any, kind: str, dtype: Any = np.float64, *, scale: Any = None) -> None:
    """Every entry of `actual` is that of `desired` to the tolerance, relative to `scale` (the largest entry)."""
    actual, desired = np.asarray(actual, np.float64), np.asarray(desired, np.float64)
    assert actual.shape == desired.shape, f"shapes {actual.shape} and {desired.shape}"
    assert np.isfinite(actual).all(), "not finite"
    if scale is None:
        scale = np.max(np.abs(desired), initial=0.0)
    error = np.max(np.abs(actual - desired) / np.maximum(scale, np.finfo(np.float64).tiny), initial=0.0)
    limit = tolerance(kind, dtype)
    assert error <= limit, f"relative error {error:.2e} is above {limit:.0e} ({kind}, {np.dtype(dtype).name})"
