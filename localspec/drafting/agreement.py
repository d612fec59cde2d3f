"""How a draft does on texts that the target wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens
from localspec.drafting.build_step import BuildContext, Text
from localspec.drafting.speedup import Worth, worth

Agreed = list[NDArray[np.bool_]]


def agreed(
    texts: Sequence[Text],
    read: Callable[[Tokens], Logits],
    kept: Sequence[NDArray[np.int64] | None] = (None,),
) -> list[Agreed]:
    """Tell for each answered token whether it is the draft's likeliest one after the text before it.

    `read` returns the draft's logits [tokens, vocab] of a text. One result for each of `kept`: the tokens,
    ascending, that the draft may guess, None for all of them.
    """
    found: list[Agreed] = [[] for _ in kept]
    for answer, rows in answered(texts, read):
        for result, tokens in zip(found, kept, strict=True):
            likeliest = rows.argmax(axis=1) if tokens is None else tokens[rows[:, tokens].argmax(axis=1)]
            result.append(likeliest == answer)
    return found


def answered(
    texts: Sequence[Text], read: Callable[[Tokens], Logits]
) -> Iterator[tuple[NDArray[np.int64], Logits]]:
    """Yield each answer with what `read` returns of the tokens before each of its own."""
    for text in texts:
        yield np.array(text.answer), read([*text.prompt, *text.answer[:-1]])[len(text.prompt) - 1 :]


def promise(
    site: BuildContext, read: Callable[[Tokens], Logits], guess: Sequence[float]
) -> tuple[Worth, float]:
    """Return the worth of a draft, and its share of the target's tokens; `guess` as in `cutting.worth`."""
    (stood,) = agreed(site.texts(), read)
    return worth(stood, guess, site.passes()), float(np.concatenate(stood).mean())
