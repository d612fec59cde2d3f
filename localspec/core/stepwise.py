"""The loop of a decoding that writes another text than the model's own: a token a round, nothing guessed."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from localspec.core.contracts import Decoding, Round, Tokens
from localspec.core.settle import Settler


def stepwise(prompt: Tokens, decoding: Decoding, settler: Settler) -> Iterator[Round]:
    """Yield the rounds of the answer to `prompt` until one has a finish; raises what the engine raises.

    A round's `target_seconds` are all that choosing its token took, however many passes that were.
    """
    text = list(prompt)
    finish = None
    while finish is None:
        started = perf_counter()
        token = decoding.choose(text)
        seconds = perf_counter() - started
        tokens, piece, finish = settler.settle([token])
        text += tokens
        yield Round(tokens, 0, 0, draft_seconds=0.0, target_seconds=seconds, text=piece, finish=finish)
