"""ε-approximation (Definitions 2 to 4): how good a replacement one dataset is for another.

Models enter by their predictions at points drawn from the distribution, so the two sides may come from different
algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

Loss = Literal["zero-one", "mean-square"]


def _losses(a: np.ndarray, b: np.ndarray, loss: Loss) -> np.ndarray:
    """ℓ(aᵢ, bᵢ) for each point."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or a.ndim != 2 or len(a) == 0:
        raise ValueError(f"predictions must be two (n, classes) matrices of one shape; got {a.shape} and {b.shape}")
    if loss == "zero-one":
        return (a.argmax(axis=1) != b.argmax(axis=1)).astype(np.float64)
    if loss == "mean-square":
        return 0.5 * np.sum((a - b) ** 2, axis=1)
    raise ValueError(f"`loss` must be 'zero-one' or 'mean-square'; got {loss!r}")


def weak(f: np.ndarray, f_tilde: np.ndarray, y: np.ndarray, loss: Loss = "zero-one") -> float:
    """The smallest ε at which two models are weakly ε-close, eq. (weak-approx): |E ℓ(f(x), y) − E ℓ(f̃(x), y)|."""
    return abs(float(_losses(f, y, loss).mean() - _losses(f_tilde, y, loss).mean()))


def strong(f: np.ndarray, f_tilde: np.ndarray, loss: Loss = "zero-one") -> float:
    """The smallest ε at which two models are strongly ε-close, eq. (strong-approx): E ℓ(f(x), f̃(x))."""
    return float(_losses(f, f_tilde, loss).mean())


@dataclass(frozen=True)
class Compression:
    """|D|/|D̃|, which means nothing without its ε (None where the model on D is out of reach)."""

    ratio: float
    epsilon: float | None

    def __str__(self) -> str:
        at = "ε not measured" if self.epsilon is None else f"ε = {self.epsilon:.3f}"
        return f"{self.ratio:,.0f}× ({at})"


def compression(original: int, distilled: int, epsilon: float | None) -> Compression:
    """The compression ratio of Definition 4, with its ε."""
    if not 0 < distilled <= original:
        raise ValueError(f"a distilled set has between 1 and |D| = {original} points; got {distilled}")
    return Compression(original / distilled, epsilon)
