"""Open a tokenizer.json that anyone may have written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel, LocalspecError, UnsupportedModel, printable
from localspec.formats.files import read_text
from localspec.formats.values import MAX_TOKENS

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNKNOWN = "\ue000"  # a character for private use, which no vocabulary has
HINT = "Download the model again"


def open_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a tokenizer.json, which neither cuts nor pads a text, whatever the file says.

    Raises BrokenModel for a file that is none, or whose parts do not go together, and UnsupportedModel for a
    decoder that cuts the end of a text, which cannot stream.
    """
    from tokenizers import Tokenizer

    content = read_text(path)
    with tokenizer_errors(f"`{path}`"):
        tokenizer = Tokenizer.from_str(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for text in ("", "a", UNKNOWN):  # a part that refers to a missing token fails only now
            tokenizer.encode(text)
        if _cuts_ends(None if tokenizer.decoder is None else json.loads(tokenizer.decoder.__getstate__())):
            raise UnsupportedModel(f"The decoder of `{path}` cuts the end of a text", "Use another model")
        return tokenizer


def _cuts_ends(state: Any) -> bool:
    """Return whether a decoder strips a text at its end, on which the library may panic besides."""
    if isinstance(state, list):
        return any(map(_cuts_ends, state))
    if not isinstance(state, dict):
        return False
    return bool(state.get("type") == "Strip" and state.get("stop")) or any(map(_cuts_ends, state.values()))


def vocabulary_of(tokenizer: Tokenizer, name: str) -> dict[str, int]:
    """Return the token ids by their texts; raise BrokenModel for an id that no list could be as long as."""
    found: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    if (last := max(found.values(), default=0)) >= MAX_TOKENS:
        raise BrokenModel(f"{name} has a token {last:,}", HINT)
    return found


@contextmanager
def tokenizer_errors(name: str) -> Iterator[None]:
    """Turn whatever the tokenizers library raises into BrokenModel, a panic (a BaseException) included."""
    try:
        yield
    except (LocalspecError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:  # the library raises nothing narrower
        raise BrokenModel(f"{name} cannot be read: {printable(str(error), 200)}", HINT) from None
