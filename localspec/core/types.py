"""The values that parts pass to one another: tokens, logits, guesses, verdicts, steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = Sequence[int]
Row = NDArray[np.float32]  # [vocab]: the logits at one position
Logits = NDArray[np.float32]  # [tokens, vocab]
UNKNOWN = -1  # in an expected text: what stands here is not known yet
PAD = -1  # at the second place of a pair of tokens: none
SURE = 0.7  # confidence of a retrieved token that is taken rather than a draft model's guess


class DeviceRow:
    """A row of logits that lies on a device and acts as an array, with what is known of it without a copy.

    `best` is the first token of the highest logit, `highest` that logit, `weight` the sum of
    exp(logit - highest) over all tokens.
    """

    best: int
    highest: np.float32
    weight: float


@dataclass(frozen=True, slots=True)
class Picture:
    """An upright picture as `pixels` [height, width, 3] in RGB; `digest` is that of its file."""

    pixels: NDArray[np.uint8]
    digest: str

    @property
    def size(self) -> tuple[int, int]:
        """Its width and height in pixels."""
        height, width, _ = self.pixels.shape
        return width, height


class Prompt(list[int]):
    """The tokens of a prompt, and the pictures that its picture tokens stand for."""

    def __init__(self, tokens: Iterable[int], pictures: Sequence[Picture] = ()) -> None:
        super().__init__(tokens)
        self.pictures = tuple(pictures)


class Distribution(NamedTuple):
    """Probabilities of the tokens that may come next; every other token has probability 0.

    `tokens` [n] ascending, `probs` [n] float64 summing to 1. Top-k and top-p leave a few tokens of a
    vocabulary of 150,000, so no code after them touches the others.
    """

    tokens: NDArray[np.int64]
    probs: NDArray[np.float64]

    def of(self, token: int) -> float:
        """Return the probability of `token`."""
        at = int(np.searchsorted(self.tokens, token))
        found = at < len(self.tokens) and self.tokens[at] == token
        return float(self.probs[at]) if found else 0.0


class Guess(NamedTuple):
    """One drafted token, the distribution it was drawn from, and the drafter's confidence in it.

    `probs` is None for a point mass: a retrieved token, or the most likely token of a greedy draft. `source`
    names the drafter where several share a draft. A guess follows those before it, the draft's path; one on a
    branch has in `after` the tokens between the text and itself.
    """

    token: int
    probs: Distribution | None = None
    confidence: float = 1.0
    source: str = ""
    after: tuple[int, ...] | None = None


class LazyGuess(NamedTuple):
    """A guess that is computed only on request, because it costs a pass of a draft model.

    `draw` computes it and returns None for no guess. `behind` is the number of tokens that the draft model
    must read for it: one, or all that it has missed. A caller that declines advances the drafter without
    calling `draw`; the next candidate is then `instead`, a guess of another source for the same position, or
    the draft ends. `instead` is one that the sampler permits; a drawn guess that it forbids ends the draft.
    """

    draw: Callable[[], Guess | None]
    source: str = ""
    behind: int = 1
    instead: Guess | None = None

    @property
    def superseded(self) -> bool:
        """Whether `instead` is so confident that policies which measure nothing need no model."""
        return self.instead is not None and self.instead.confidence >= SURE


Candidate = Guess | LazyGuess


class Branch(NamedTuple):
    """A token that a pass reads beside its text, to learn what would follow it.

    `parent` is the row of the pass that it follows: one of the text's, or after those one of an earlier
    branch.
    """

    token: int
    parent: int


class Verdict(NamedTuple):
    """The number of accepted guesses, and the target's own token after them."""

    accepted: int
    token: int


class Proposal(NamedTuple):
    """A candidate that the draft-length policy was asked about, and its answer.

    `behind` is that of a lazy guess, 0 for a guess that was already made.
    """

    source: str
    behind: int
    taken: bool


class Company(NamedTuple):
    """The other texts in a pass, their tokens, and the seconds for which it waited for them.

    `drafts` are tokens of texts that draft for this one, whose seconds are worth nothing by themselves.
    """

    texts: int = 0
    tokens: int = 0
    waited: float = 0.0
    drafts: int = 0


class Likelihood(NamedTuple):
    """The log-probability of a token of the answer, and the likeliest tokens in its place, best first."""

    logprob: float
    best: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One target pass: the tokens it added to the answer, and what it cost.

    `tokens` are cut at the first stop; `text` is what they add to the answer in whole characters; `finish`
    is why the answer ends here ("stop", "length"), or None. `draft` holds the guesses and `costs` the
    seconds of each; `draft_seconds` is all time spent on drafting. `proposals` are the candidates of the
    step in order. `marks` are the places in the answer's whole text where its tokens that are marks begin.
    `company` are the other texts in the pass; `target_seconds` is without the time it waited for them.
    `likelihoods` are those of the tokens, if the sampler asks for them. `branches` are guesses that the pass
    read beside the draft, and `ahead` the tokens that they tell of the next step. `passes` is more than one
    for a block that a diffusion model filled in.
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
    proposals: tuple[Proposal, ...] = ()
    marks: tuple[int, ...] = ()
    company: Company = Company()
    likelihoods: tuple[Likelihood, ...] = ()
    branches: tuple[Guess, ...] = ()
    ahead: tuple[int, ...] = ()
    passes: int = 1


def path_of(draft: Sequence[Guess]) -> list[Guess]:
    """Return the guesses of a draft that are on no branch."""
    return [guess for guess in draft if guess.after is None]


def shared_prefix(left: Tokens, right: Tokens) -> int:
    """Return the length of the common prefix of two texts.

    Bisects with slices, which Python compares at C speed.
    """
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
