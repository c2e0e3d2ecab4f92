"""Many small images as one picture with captions."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

TILE_PIXELS = 84
CAPTION_PIXELS = 15
GAP = 8
INK = (40, 40, 40)
PAPER = (255, 255, 255)
MOST = 200
"""Images that one picture shows at most; more could not be told apart."""


def to_pixels(images: np.ndarray) -> np.ndarray:
    """Float images (n, h, w, ch) as uint8 RGB, stretched between the 0.5 and 99.5 percentiles of each image.

    Learned images leave the range of natural ones; a common scale would show most of them flat.
    """
    flat = images.reshape(len(images), -1).astype(np.float64)
    low, high = np.percentile(flat, [0.5, 99.5], axis=1)[:, :, None]
    scaled = np.clip((flat - low) / np.maximum(high - low, 1e-12), 0, 1).reshape(images.shape)
    pixels = (255 * scaled).round().astype(np.uint8)
    return np.repeat(pixels[..., :1], 3, axis=-1) if images.shape[-1] != 3 else pixels


def captions(y: np.ndarray, classes: Sequence[Any], rows: Iterable[int] | None = None) -> list[str]:
    """For each row of the labels `y`, or those `rows`, its index in the set and the class it is largest for.

    >>> captions(np.eye(2), ["cat", "dog"])
    ['#0 cat', '#1 dog']
    """
    return [f"#{row} {classes[int(np.argmax(y[row]))]}" for row in (range(len(y)) if rows is None else rows)]


def sheet(rows: Sequence[tuple[str, np.ndarray]], captions: Sequence[str], columns: int = 10) -> Image.Image:
    """A picture in which each image stands above its caption; several `rows` stand beside one another, titled.

    `rows` pairs a title with images of one shape (n, h, w, ch); all have the same n.
    """
    count = min(len(captions), MOST)
    columns = min(columns, count)
    lines = math.ceil(count / columns)
    cell_w, cell_h = TILE_PIXELS + GAP, TILE_PIXELS + CAPTION_PIXELS + GAP
    block = columns * cell_w + GAP
    title = CAPTION_PIXELS + GAP if any(name for name, _ in rows) else 0
    page = Image.new("RGB", (block * len(rows) + GAP, lines * cell_h + GAP + title), PAPER)
    draw, font = ImageDraw.Draw(page), _font()
    for b, (name, images) in enumerate(rows):
        left = GAP + b * block
        draw.text((left, GAP // 2), name, INK, font=font)
        for i, pixels in enumerate(to_pixels(images[:count])):
            x, y = left + (i % columns) * cell_w, GAP + title + (i // columns) * cell_h
            page.paste(_enlarged(pixels), (x, y))
            draw.text((x, y + TILE_PIXELS + 1), _shortened(captions[i]), INK, font=font)
    return page


def _font() -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib carries: Pillow's own font has no accents."""
    spec = importlib.util.find_spec("matplotlib")
    assert spec is not None
    assert spec.origin is not None
    return ImageFont.truetype(Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf", 11)


def _enlarged(pixels: np.ndarray) -> Image.Image:
    """Without smoothing: what is shown is what was learned."""
    return Image.fromarray(pixels).resize((TILE_PIXELS, TILE_PIXELS), Image.Resampling.NEAREST)


def _shortened(caption: str, length: int = 13) -> str:
    return caption if len(caption) <= length else caption[: length - 1] + "…"
