"""Read a picture file: its bytes are checked before anything is decoded, and nothing of a bad one is kept."""

from __future__ import annotations

import hashlib
import io
import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from localspec.core.types import Picture
from localspec.errors import MissingExtra, PromptError, printable

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
READ = "localspec reads JPEG, PNG, WebP, BMP, GIF and TIFF"
MAX_BYTES = 50_000_000
MAX_SIDE, MAX_PIXELS = 16_384, 80_000_000
KNOWN = {  # the first bytes of what is often taken for a picture
    b"%PDF": ("a PDF", "Save the page as a PNG, and give that"),
    b"<svg": ("an SVG, a drawing of lines", "Save it as a PNG, and give that"),
    b"<?xml": ("XML", "Save it as a PNG, and give that"),
    b"PK\x03\x04": ("an archive", "Unpack it, and give a picture"),
}
WHITE = (255, 255, 255, 255)


def read_bytes(path: Path) -> bytes:
    """Return the bytes of a picture file; raises PromptError if it cannot be read, is empty or very large."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise PromptError(f"No such file: `{path}`", "Check the path") from None
    except OSError as error:
        raise PromptError(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
    return content


def of_bytes(content: bytes, name: str) -> Picture:
    """Return the picture of a file's bytes; `name` is what errors call it.

    A picture on its side is turned as its EXIF says, transparent parts become white, and CMYK, grey and
    palettes RGB. Raises PromptError for what is empty, damaged, animated, too large or no picture, and
    MissingExtra.
    """
    name = printable(name)
    _check_bytes(content, name)
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise MissingExtra("pillow", "vision") from None
    logging.getLogger("PIL").setLevel(logging.CRITICAL)  # what it logs it raises, too
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its sizes are checked here, and damaged EXIF is left out
            with Image.open(io.BytesIO(content), formats=FORMATS) as opened:
                _check(opened, name)
                opened.load()
                upright = ImageOps.exif_transpose(opened)
                pixels = np.array(_rgb(upright))
    except PromptError:
        raise
    except UnidentifiedImageError:
        raise PromptError(f"`{name}` is no picture", READ) from None
    except Image.DecompressionBombError:
        raise _too_large(name, "far more than 80 million pixels") from None
    except (
        OSError,
        SyntaxError,
        ValueError,
        TypeError,
        EOFError,
        MemoryError,
        IndexError,
        KeyError,
    ) as error:
        why = printable(str(error)).rstrip(".") or type(error).__name__
        raise PromptError(f"`{name}` is damaged: {why}", "Save it again, or give another") from None
    return Picture(pixels, hashlib.sha256(content).hexdigest())


def _check_bytes(content: bytes, name: str) -> None:
    """Raise PromptError for bytes that are no picture at first sight."""
    if not content:
        raise PromptError(f"`{name}` is empty: it has 0 bytes", "Give a picture")
    if len(content) > MAX_BYTES:
        raise _too_large(name, f"more than {MAX_BYTES:,} bytes")
    for beginning, (what, hint) in KNOWN.items():
        if content.lstrip()[: len(beginning)].lower() == beginning.lower():
            raise PromptError(f"`{name}` is {what}, not a picture", hint)


def _check(opened: Any, name: str) -> None:
    """Raise PromptError for a picture that is animated or too large, before it is decoded."""
    width, height = opened.size
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise _too_large(name, f"{width:,} x {height:,} pixels")
    frames = getattr(opened, "n_frames", 1)
    if frames > 1:
        raise PromptError(
            f"`{name}` has {frames} frames, and a model looks at one picture", "Save one frame, and give that"
        )


def _too_large(name: str, size: str) -> PromptError:
    return PromptError(
        f"`{name}` has {size}, and at most {MAX_SIDE:,} a side and {MAX_PIXELS:,} in all are read",
        "Make it smaller: models see a few hundred pixels a side",
    )


def _rgb(picture: Any) -> Any:
    """Return a picture in RGB, transparent parts upon white, numbers of 16 bits as 8."""
    from PIL import Image

    if picture.mode.startswith("I;16") or picture.mode == "I":
        grey = np.asarray(picture).astype(np.int64).clip(0, 65535) // 257
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.mode == "F":
        raise ValueError("its pixels are fractions, of a range that it does not tell")
    if picture.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in picture.info:
        clear = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, WHITE), clear).convert("RGB")
    return picture.convert("RGB")
