"""The loop: guess, check, settle. Plain decoding is this loop with an empty draft."""

from __future__ import annotations

from collections.abc import Iterator
from time import perf_counter

from localspec.core.contracts import Drafter, Guess, Lookahead, Round, Tokens, Verifier
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.settle import Settler


def decode(
    prompt: Tokens,
    target: Cursor,
    drafter: Drafter,
    lookahead: Lookahead,
    verifier: Verifier,
    sampler: Sampler,
    settler: Settler,
) -> Iterator[Round]:
    """Yield the rounds of the answer to `prompt` until one has a finish.

    Effects: `target` holds the prompt and the answer, perhaps with rejected guesses behind. Raises what the
    engine raises. An interrupt or a closed iterator leaves every part ready for the next answer.
    """
    text = list(prompt)
    while True:
        started = perf_counter()
        draft = guesses(text, drafter, lookahead, sampler, settler.room - 1)
        guessed = perf_counter()
        whole = text + [guess.token for guess in draft]
        rows = target.read(whole, len(draft) + 1)
        checked = perf_counter()
        accepted, token = verifier.verify(text, draft, rows, sampler)
        verified = perf_counter()
        drafter.observe(whole, rows)
        observed = perf_counter()
        settled = settler.settle([*(guess.token for guess in draft[:accepted]), token])
        text += settled.tokens
        last = Round(
            tokens=settled.tokens,
            drafted=len(draft),
            accepted=min(accepted, len(settled.tokens)),
            draft_seconds=guessed - started + observed - verified,
            target_seconds=checked - guessed,
            text=settled.text,
            finish=settled.finish,
        )
        lookahead.learn(last)
        yield last
        if settled.finish is not None:
            return


def guesses(
    tokens: Tokens, drafter: Drafter, lookahead: Lookahead, sampler: Sampler, most: int
) -> list[Guess]:
    """Return a draft after `tokens`, as long as the lookahead wants one more and `most` allows it."""
    draft: list[Guess] = []
    source = drafter.propose(tokens, sampler)
    while len(draft) < most and lookahead.wants_more(draft):
        guess = next(source, None)
        if guess is None:
            break
        draft.append(guess)
    return draft
