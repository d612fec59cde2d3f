"""Add the first merge to a byte-level BPE tokenizer that lacks it, as those of some converted models do.

Without `Ġ t`, the text ` the` becomes the tokens ` ` and `the` instead of ` the`: texts are decoded well,
and prompts and drafts are encoded wrongly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BYTES = 256  # tokens of one byte, which come first; each merge makes the next token
KEPT_TOKENS = 3  # merges that must fit to the tokens behind them, before the first is believed to be missing


def repaired(tokenizer: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a tokenizer.json with its first merge, None if it does not lack that one alone.

    The merges are in the order of the tokens they make. So the first one is missing exactly if the first
    merge listed makes the second of those tokens, the next one the third, and so on.
    """
    model = tokenizer.get("model")
    if not isinstance(model, Mapping) or model.get("type") != "BPE":
        return None
    vocab, merges = model.get("vocab"), model.get("merges")
    if not isinstance(vocab, Mapping) or not isinstance(merges, list) or len(merges) < KEPT_TOKENS:
        return None
    pieces = {number: piece for piece, number in vocab.items() if type(number) is int}
    first = pieces.get(BYTES)
    made = [_made(merge) for merge in merges[:KEPT_TOKENS]]
    follow = [pieces.get(BYTES + 1 + position) for position in range(KEPT_TOKENS)]
    if not isinstance(first, str) or len(first) != 2 or None in made or made != follow:
        return None
    pair = list(first)
    merge = pair if isinstance(merges[0], list) else " ".join(pair)
    return {**tokenizer, "model": {**model, "merges": [merge, *merges]}}


def _made(merge: Any) -> str | None:
    """Return the token that a merge makes, None if it is no merge: `"a b"`, or `["a", "b"]`."""
    parts = merge.split(" ") if isinstance(merge, str) else merge
    if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        return None
    return "".join(parts)
