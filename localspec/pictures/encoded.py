"""Pictures as text, as messages carry them: base64, or a data URL with base64."""

from __future__ import annotations

import base64
import binascii
import functools
import re

from localspec.core.types import Picture
from localspec.errors import PromptError, printable
from localspec.pictures.reading import of_bytes

DATA = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w=.+-]+)*;base64,", re.IGNORECASE)
KEPT = 8  # pictures that stay decoded: a conversation renders its turns again and again
BLANKS = str.maketrans("", "", " \r\n\t")


def as_text(content: bytes) -> str:
    """Return a picture file's bytes in base64."""
    return base64.b64encode(content).decode("ascii")


@functools.lru_cache(KEPT)
def of_text(text: str, name: str = "the picture") -> Picture:
    """Return the picture of a text in base64 or of a data URL.

    Raises PromptError for an address, which is never fetched, and for what is no picture, and MissingExtra.
    """
    if re.match(r"[a-z][a-z0-9+.-]*://", text, re.IGNORECASE):
        raise PromptError(
            f"A picture is named by its address, `{printable(text, 60)}`, and localspec fetches none",
            "Send its bytes: `data:image/png;base64,...`",
        )
    found = DATA.match(text)
    if text[:5].lower() == "data:" and not found:
        raise PromptError(
            f"`{printable(text, 40)}` is no data URL of a picture", "It begins with `data:image/png;base64,`"
        )
    try:
        content = base64.b64decode(text[found.end() if found else 0 :].translate(BLANKS), validate=True)
    except (binascii.Error, ValueError):
        raise PromptError(f"{name.capitalize()} is not in base64", "Encode the bytes of the file") from None
    return of_bytes(content, name)
