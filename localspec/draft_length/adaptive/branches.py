"""The worth of branches, and what is learned of them: they tell what the next step begins with."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.core.types import Guess, Step, Tokens, path_of
from localspec.draft_length.adaptive.acceptance import Acceptance


def reaching(draft: Sequence[Guess], tokens: Tokens, acceptance: Acceptance) -> float:
    """Return the probability that the target says `tokens`, which lead to a guess of the draft."""
    survival, known = 1.0, 0
    for guess in path_of(draft)[: len(tokens)]:
        if guess.token != tokens[known]:
            break
        survival *= acceptance.of(guess.source, guess.confidence, known)
        known += 1
    for guess in draft:
        if known < len(tokens) and guess.after == tokens[:known] and guess.token == tokens[known]:
            survival *= acceptance.of_branch(guess.source, guess.confidence)
            known += 1
    return survival


def worth(rate: float, token: float, wider: float) -> float:
    """Return the seconds that a branch's guess saves which the target says with probability `rate`.

    A pass over one token more takes `wider` seconds longer: this one does, and the next does where the target
    said it, which reads it again and gives one `token` more.
    """
    return rate * (token - wider) - wider


def learn(last: Step, acceptance: Acceptance) -> None:
    """Take in which branches of a step the target said, as far as it came to their parents."""
    said = (*last.tokens, *last.ahead)
    for guess in last.branches:
        after = guess.after or ()
        if len(said) > len(after) and said[: len(after)] == after:
            acceptance.learn_branch(guess.source, guess.confidence, said[len(after)] == guess.token)
