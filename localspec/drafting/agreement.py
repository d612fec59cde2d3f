"""How far a draft agrees with texts that the target wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits, Tokens
from localspec.drafting.build_step import BuildContext, TargetText
from localspec.drafting.speedup import Speedup, best_speedup

Agreement = list[NDArray[np.bool_]]  # per text: is each answer token the draft's likeliest one?


def token_agreement(
    texts: Sequence[TargetText],
    read: Callable[[Tokens], Logits],
    vocabularies: Sequence[NDArray[np.int64] | None] = (None,),
) -> list[Agreement]:
    """Return for each answer token whether it is the draft's likeliest one after the text before it.

    `read` returns the draft's logits [tokens, vocab] of a text. There is one result for each of
    `vocabularies`: the tokens, ascending, that the draft may guess, None for all of them.
    """
    results: list[Agreement] = [[] for _ in vocabularies]
    for answer, logits in answer_logits(texts, read):
        for result, tokens in zip(results, vocabularies, strict=True):
            likeliest = logits.argmax(axis=1) if tokens is None else tokens[logits[:, tokens].argmax(axis=1)]
            result.append(likeliest == answer)
    return results


def answer_logits(
    texts: Sequence[TargetText], read: Callable[[Tokens], Logits]
) -> Iterator[tuple[NDArray[np.int64], Logits]]:
    """Yield each answer [tokens] with the logits [tokens, vocab] that predict its tokens."""
    for text in texts:
        yield np.array(text.answer), read([*text.prompt, *text.answer[:-1]])[len(text.prompt) - 1 :]


def estimate_speedup(
    context: BuildContext, read: Callable[[Tokens], Logits], draft_seconds: Sequence[float]
) -> tuple[Speedup, float]:
    """Return a draft's estimated speed-up, and the share of the target's tokens that it guesses.

    `draft_seconds` are those of its passes over one and over two tokens.
    """
    (agreement,) = token_agreement(context.target_texts(), read)
    speedup = best_speedup(agreement, draft_seconds, context.target_pass_seconds())
    return speedup, float(np.concatenate(agreement).mean())
