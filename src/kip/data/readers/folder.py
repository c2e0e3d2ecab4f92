"""Reader of a folder of class folders of images: train/ and test/, or one part that is split later."""

from __future__ import annotations

import io
import logging
import unicodedata
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kip.data.checks import check_memory
from kip.data.readers.base import Fit, Part, Reading, listed
from kip.files import as_text

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pnm"})
"""What the name of an image ends in; other files are left out and reported."""

LARGEST_IMAGE = 2**26
"""Pixels (8,192 × 8,192) above which an image is refused before it is decoded."""

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")  # the rest of Pillow's decoders stay out of reach
_GREY = frozenset({"1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"})
_ASIDE = frozenset({"__macosx"})

Size = tuple[int, int]

logging.getLogger("PIL").addHandler(logging.NullHandler())  # Pillow's remarks on damaged files would go to the terminal


@dataclass(eq=False)
class _Found:
    """Images of one part as they were decoded, their classes, what was left out, and what cannot be read, and why."""

    images: list[np.ndarray] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)


def read_image_folder(folder: Path, how: Reading, limit: int) -> tuple[Part, Part | None, tuple[str, ...]]:
    """Training part, test part where there is one, and notes, of a folder of class folders of images.

    The images are uint8, (n, h, w) where all are grey and (n, h, w, 3) otherwise. Transparency is laid on white.
    """
    size = _checked_size(how.resize)
    train, test, notes = _parts(folder)
    found = [_read_part(place, size, how.fit, limit) for place in (train, test) if place is not None]
    notes += _unreadable(folder, [line for part in found for line in part.unreadable], how.skip_unreadable)
    for part, place in zip(found, (train, test), strict=False):
        if not part.images:
            kind = "readable images" if part.unreadable else "images"
            raise ValueError(
                f"{place}: no {kind} in class folders here. Put each class's images in a folder of its name, "
                "or give idx files or CIFAR-10 binary batches."
            )
    every = [image for part in found for image in part.images]
    _check_sizes(folder, every)
    colour = any(image.ndim == 3 for image in every)
    check_memory(folder, (2 * sum(image.size for image in every)) * (3 if colour else 1), limit, _SMALLER)
    parts = [(_stacked(part.images, colour), np.array(part.labels)) for part in found]
    others = [name for part in found for name in part.others]
    if others:
        notes = (*notes, f"left out {len(others)} files that are not images: {', '.join(others[:5])}")
    if colour and any(image.ndim == 2 for image in every):
        notes = (*notes, "grey and colour images are mixed: all were made colour")
    return parts[0], parts[1] if len(parts) > 1 else None, notes


def _unreadable(folder: Path, unreadable: list[str], skip: bool) -> tuple[str, ...]:
    """A note on the images that cannot be read, where they may be left out; otherwise one error names them."""
    if not unreadable:
        return ()
    images = "1 image" if len(unreadable) == 1 else f"{len(unreadable)} images"
    if skip:
        return (f"left out {images} that cannot be read: {listed(unreadable)}",)
    them = "it" if len(unreadable) == 1 else "them"
    raise ValueError(
        f"{folder}: {images} cannot be read: {listed(unreadable)}. "
        f"Repair or remove {them}, or leave {them} out with --skip-unreadable."
    )


_SMALLER = "Use a smaller `--resize`, or raise KIP_MEMORY_LIMIT."


def _checked_size(resize: int | Size | None) -> Size | None:
    if resize is None:
        return None
    size = (resize, resize) if isinstance(resize, int) else tuple(resize)
    if len(size) != 2 or not all(isinstance(n, int) and 0 < n <= 4096 for n in size):
        raise ValueError(
            f"`resize` must be a side or (height, width) in pixels, up to 4096; got {resize!r}. Use resize=32."
        )
    return size[0], size[1]


def _parts(folder: Path) -> tuple[Path, Path | None, tuple[str, ...]]:
    """Find the folders of the training and the test part: train/ with test/ or val/, or `folder` itself."""
    places = {as_text(place.name).lower(): place for place in _folders(folder)}
    if "train" not in places:
        return folder, None, ()
    used = next((name for name in ("test", "val") if name in places), None)
    rest = sorted(places.keys() - {"train", used})
    notes = (f"left out the folders beside train and test: {', '.join(rest[:5])}",) if rest else ()
    return places["train"], places[used] if used else None, notes


def _folders(folder: Path) -> list[Path]:
    return [place for place in _listed(folder) if place.is_dir() and place.name.lower() not in _ASIDE]


def _listed(folder: Path) -> list[Path]:
    """List what a folder holds, in order of name, hidden files aside."""
    try:
        return sorted(place for place in folder.iterdir() if not place.name.startswith("."))
    except OSError as error:
        raise ValueError(f"{folder}: cannot be listed ({error.strerror}). Check its permissions.") from None


def _read_part(folder: Path, size: Size | None, fit: Fit, limit: int) -> _Found:
    found, held = _Found(), 0
    places = _folders(folder)
    found.others += [as_text(place.name) for place in _listed(folder) if not place.is_dir()]
    for place in places:
        label = unicodedata.normalize(
            "NFC", as_text(place.name)
        )  # one spelling of accents, whatever the file system keeps
        for path in _listed(place):
            if path.suffix.lower() not in SUFFIXES or not path.is_file():
                found.others.append(f"{label}/{as_text(path.name)}")
                continue
            try:
                image = _read_image(path, size, fit, limit)
            except _UnreadableError as error:
                found.unreadable.append(f"{label}/{as_text(path.name)} ({error})")
                continue
            held += image.size
            check_memory(folder, held, limit, _SMALLER)
            found.images.append(image)
            found.labels.append(label)
    return found


class _UnreadableError(Exception):
    """One image cannot be read, and why."""


def _read_image(path: Path, size: Size | None, fit: Fit, limit: int) -> np.ndarray:
    """One image as uint8, (h, w) if grey and (h, w, 3) if not."""
    from PIL import Image, ImageOps

    most = min(LARGEST_IMAGE, limit // 4)
    check_memory(path, path.stat().st_size, limit)
    try:
        data = path.read_bytes()  # whole: a decoder that asks a file for what a header promises would get that memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd metadata, and on sizes, which are checked here
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
                if width * height > most:
                    raise _UnreadableError(f"more pixels than the {most:,} that kip decodes")
                image.load()
                return _pixels(ImageOps.exif_transpose(image), size, fit)
    except _UnreadableError:
        raise
    except Image.UnidentifiedImageError:
        raise _UnreadableError("no image that kip decodes") from None
    except Image.DecompressionBombError:
        raise _UnreadableError(f"more pixels than the {most:,} that kip decodes") from None
    except Exception as error:  # decoders raise every kind of exception on damaged files
        raise _UnreadableError(str(error).splitlines()[0][:80] if str(error) else type(error).__name__) from None


def _pixels(image: Any, size: Size | None, fit: Fit) -> np.ndarray:
    """Turn a decoded image into uint8, of the given size."""
    from PIL import Image

    if image.mode in ("I", "F"):
        raise ValueError(f"{image.mode} pixels of 32 bits; save it with 8 bits")
    grey = image.mode in _GREY
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.has_transparency_data:
        page = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(page, image.convert("RGBA"))
    image = image.convert("L" if grey else "RGB")
    if size is not None and image.size != (size[1], size[0]):
        image = _fitted(image, (size[1], size[0]), fit)
    return np.asarray(image, np.uint8)


def _fitted(image: Any, size: Size, fit: Fit) -> Any:
    """The image at (width, height); Pillow's bilinear filter averages when it shrinks."""
    from PIL import Image, ImageOps

    bilinear = Image.Resampling.BILINEAR
    if fit == "crop":
        return ImageOps.fit(image, size, bilinear)
    if fit == "pad":
        return ImageOps.pad(image, size, bilinear, color=0)
    return image.resize(size, bilinear)


def _check_sizes(folder: Path, images: list[np.ndarray]) -> None:
    sizes = Counter(image.shape[:2] for image in images)
    if len(sizes) > 1:
        listed = ", ".join(f"{w}×{h} ({count})" for (h, w), count in sizes.most_common(4))
        more = f" and {len(sizes) - 4} more" if len(sizes) > 4 else ""
        height, width = sizes.most_common(1)[0][0]
        raise ValueError(
            f"{folder}: the images have different sizes, width×height (how many): {listed}{more}. "
            f"Unify them, for instance with `--resize {min(height, width)}`."
        )


def _stacked(images: list[np.ndarray], colour: bool) -> np.ndarray:
    if not colour:
        return np.stack(images)
    return np.stack([image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2) for image in images])
