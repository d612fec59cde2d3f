"""The values that the parts pass to one another: tokens, logits, guesses, verdicts, rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int]


Row = NDArray[np.float32]  # [vocab]


Logits = NDArray[np.float32]  # [tokens, vocab]


class Distribution(NamedTuple):
    """Probabilities of the tokens that may come next; every other token has probability 0.

    `tokens` [n] ascending, `probs` [n] float64 summing to 1. A support of a few tokens is what top-k and
    top-p leave of a vocabulary of 150,000, so nothing after them touches the rest.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def of(self, token: int) -> float:
        """Return the probability of `token`."""
        at = int(np.searchsorted(self.tokens, token))
        found = at < len(self.tokens) and self.tokens[at] == token
        return float(self.probs[at]) if found else 0.0


class Guess(NamedTuple):
    """One drafted token, what it was drawn from, and how sure its drafter is.

    `probs` is None for a point mass: a retrieved token, or a draft model's likeliest one. `source` names the
    drafter where several guess in turn.
    """

    token: int
    probs: Distribution | None = None
    confidence: float = 1.0
    source: str = ""


class LazyGuess(NamedTuple):
    """A guess that costs something, such as a pass of a draft model: `draw` makes it, and None is no guess.

    `behind` are the tokens that must be read for it: one more each time, or all that the draft has missed.
    Who does not want it goes on without: the drafter's next step is then a guess from elsewhere, or none.
    """

    draw: Callable[[], Guess | None]
    source: str = ""
    behind: int = 1


class Verdict(NamedTuple):
    """How many guesses stand, and the target's own token after them."""

    accepted: int
    token: int


@dataclass(frozen=True, slots=True)
class Step:
    """One target pass: what it settled, what it cost.

    `tokens` are the settled ones, cut at the first stop; `text` is what they add to the answer in whole
    characters; `finish` says why the answer ends here, or is None. `draft` are the guesses and `costs`
    the seconds of each; `draft_seconds` is all that drafting took.
    """

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    draft_seconds: float
    target_seconds: float
    text: str = ""
    finish: str | None = None
    draft: tuple[Guess, ...] = ()
    costs: tuple[float, ...] = ()


def shared_prefix(left: Tokens, right: Tokens) -> int:
    """Return how many tokens two texts share at their start, by halving: slices compare at C speed."""
    if len(left) > len(right):
        left, right = right, left
    low, high = 0, len(left)
    if left == right[:high]:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
