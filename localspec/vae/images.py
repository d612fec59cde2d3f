"""Pictures as files, from and to bytes of pixels [high, wide, 3]."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import MissingExtra, NetworkError

QUALITY = 95  # of a JPEG
KINDS = {"png": "PNG", "jpg": "JPEG"}


def encoded(pixels: NDArray[np.uint8], form: str) -> bytes:
    """Return a picture as a PNG or JPEG file; raises MissingExtra."""
    file = io.BytesIO()
    _pillow().fromarray(pixels).save(file, KINDS[form], **({"quality": QUALITY} if form == "jpg" else {}))
    return file.getvalue()


def size_of(content: bytes, form: str) -> tuple[int, int]:
    """Return height and width of an endpoint's picture, which is decoded to see that it is whole.

    Raises NetworkError for what is no such picture, and MissingExtra.
    """
    pillow = _pillow()
    try:
        with pillow.open(io.BytesIO(content), formats=[KINDS[form]]) as opened:
            wide, high = opened.size
            if wide * high * 3 > 64 * max(len(content), 1_000_000):
                raise ValueError(f"{len(content):,} bytes cannot hold {wide} x {high} pixels")
            opened.load()
    except (OSError, SyntaxError, ValueError, pillow.DecompressionBombError) as error:
        raise NetworkError(f"The endpoint sent no {KINDS[form]}: {error}", "Check `--endpoint`") from None
    return high, wide


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra("pillow", "vae") from None
    return Image
