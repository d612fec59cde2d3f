"""Make characters visible that hide text, turn it around or act on a terminal."""

from __future__ import annotations

import json
import re

MARK = "\N{REPLACEMENT CHARACTER}"

# Control characters, lone surrogates, and characters without width of their own: directions, fillers, tags.
_HIDDEN = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u2028-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
# Joiners and variants belong to emoji and to scripts other than Latin: they are hidden text elsewhere.
_JOINER = r"(?<![^\x00-\x7f\u200c\u200d\ufe00-\ufe0e])[\u200c\u200d]"
_VARIANT = r"(?<![#*0-9]|[^\x00-\x7f\u200c\u200d\ufe00-\ufe0f])[\ufe00-\ufe0f]"
_PATTERN = re.compile(f"[{_HIDDEN}]|{_JOINER}|{_VARIANT}")


def visible(text: str, before: str = "") -> str:
    """Return text with a mark in place of each hidden character; `before` is the text that it continues.

    Newlines and tabs stay; a carriage return before a newline goes.
    """
    text = text.replace("\r\n", "\n")
    last = before[-1:]
    return _PATTERN.sub(MARK, last + text)[len(last) :]


def escaped(document: str) -> str:
    """Return a JSON document with the hidden characters of its texts as escapes; its values stay the same."""
    return _PATTERN.sub(lambda match: json.dumps(match[0])[1:-1], document)
