"""A block while a sampler turns its masks into tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks.types import Block, BlockPass, Candidates, Likeliest, Numbers, Places
from localspec.core.contracts import BlockSession
from localspec.core.sampler import Sampler, check_number
from localspec.core.types import Distribution, Logits, Row, Tokens


class Canvas:
    """One block after a text: tokens that are given, tokens that were revealed, and masks.

    `tokens` [length] hold the session's mask where no token is known. The first `given` of them belong to the
    text already. `passes` counts the passes of the model. `revealed_by` [length] is the
    pass that revealed each token, 0 for given ones and masks. `laws` are the distributions from which sampled
    tokens were drawn, by place.

    Sampling draws the token of a position with that position's noise, so a seed stands for one text; with
    `fresh` it draws afresh, as rejection sampling needs it of a draft.
    """

    def __init__(
        self,
        session: BlockSession,
        before: Tokens,
        given: Tokens,
        length: int,
        sampler: Sampler,
        *,
        fresh: bool = False,
    ) -> None:
        self.session = session
        self.sampler = sampler
        self.fresh = fresh
        self.first = len(before)
        self.given = len(given)
        self.tokens = [*given, *[session.mask] * (length - len(given))]
        self.revealed_by = [0] * length
        self.laws: dict[int, Distribution] = {}
        self.most: int | None = None  # tokens that may be written, those of an autoregressive target
        self.vocab = 0  # width of the logits, once a pass has told it
        self.passes = 0
        self._before = before
        self._judged: dict[int, Distribution] = {}
        self._masked = set(range(len(given), length))  # a given token may be the mask itself

    @property
    def masked(self) -> list[int]:
        """The places of masks, ascending."""
        return sorted(self._masked)

    @property
    def open(self) -> bool:
        """Whether a mask is left."""
        return bool(self._masked)

    @property
    def positions(self) -> list[int]:
        """The positions [length] of the block in the text."""
        return list(range(self.first, self.first + len(self.tokens)))

    def text_before(self, count: int) -> list[int]:
        """Return the last `count` tokens of the text before the block."""
        return list(self._before[max(len(self._before) - count, 0) :])

    def read(self, block: Block, *, attention: bool = False) -> BlockPass:
        """Return the pass over a block of the caller's after the text; raises what the engine raises."""
        found = self.session.denoise(block, attention=attention)
        self.vocab = found.logits.shape[1]
        self.passes += 1
        return found

    def candidates(self, most: int | None = None, *, attention: bool = False) -> Candidates:
        """Return what one pass over the block says of its first `most` masks, or of all."""
        found = self.read(Block(self.tokens, self.positions), attention=attention)
        return self.judged(found, self.masked[:most])

    def judged(self, found: BlockPass, places: Sequence[int]) -> Candidates:
        """Return the candidates for `places` of the block by a pass over it."""
        at, rows = np.array(places, np.int64), list(places)
        if likeliest := self.choices(found, rows):
            return Candidates(at, *likeliest, found.attention)
        logits = self.writable(found.logits[rows])
        known = self._known()
        tokens = [self._chosen(row, known, place) for row, place in zip(logits, places, strict=True)]
        chosen = np.array(tokens, np.int64)
        weights = cache(lambda: _weights(logits))
        return Candidates(
            *(at, chosen),
            lambda: _shares(weights(), chosen),
            lambda: entropy(_normed(weights())),
            found.attention,
        )

    def choices(self, found: BlockPass, rows: Sequence[int]) -> Likeliest | None:
        """Return the greedy choices for rows of a pass as its session knows them.

        None if it knows none, or if more than the logits decides. Raises ModelError for logits that are not
        numbers.
        """
        known, whole = found.likeliest, self.most is None or self.most >= found.logits.shape[1]
        if known is None or not whole or not self.sampler.plainly_greedy:
            return None
        at = list(rows)
        for prob in known.probs[at]:
            check_number(prob)
        return Likeliest(known.tokens[at], known.probs[at], known.entropy[at])

    def writable(self, logits: Logits) -> Logits:
        """Return a copy of logits [n, vocab] about the tokens to write, of which the mask is none."""
        copied = np.array(logits, np.float32)
        copied[:, self.session.mask] = -np.inf
        return copied[:, : self.most]

    def law(self, row: Row) -> Distribution:
        """Return the distribution of the sampler for logits `row` [vocab] at the present tokens."""
        return self.sampler.distribution(row, self._known())

    def _known(self) -> list[int]:
        """Return the text and the tokens of the block that are known, in order."""
        return [*self._before, *(token for at, token in enumerate(self.tokens) if at not in self._masked)]

    def _chosen(self, row: Row, known: Tokens, place: int) -> int:
        """Return the token for a place by its logits; a drawn one with its distribution kept aside."""
        if self.sampler.sampling.greedy:
            return self.sampler.choose(row, known)
        law = self.sampler.distribution(row, known)
        self._judged[place] = law
        drawn = self.sampler.draw(law) if self.fresh else None
        return self.sampler.coupled_draw(law, self.first + place) if drawn is None else drawn

    def reveal(self, places: Iterable[int], tokens: Iterable[int]) -> None:
        """Write tokens at places; the pass that is behind them is the last one."""
        for place, token in zip(places, tokens, strict=True):
            assert place >= self.given
            self.tokens[place] = int(token)
            self.revealed_by[place] = self.passes
            self._masked.discard(place)
            if place in self._judged:
                self.laws[place] = self._judged[place]

    def conceal(self, places: Iterable[int]) -> None:
        """Put masks back at places."""
        for place in places:
            assert place >= self.given
            self.tokens[place], self.revealed_by[place] = self.session.mask, 0
            self.laws.pop(place, None)
            self._masked.add(place)

    def chosen_of(self, candidates: Candidates, picked: Places) -> None:
        """Reveal the candidates with the indices `picked`."""
        self.reveal(candidates.places[picked].tolist(), candidates.tokens[picked].tolist())


def softmax(logits: Logits) -> Numbers:
    """Return the probabilities [n, vocab] of logits; -inf is no token."""
    return _normed(_weights(logits))


def shares(logits: Logits, tokens: NDArray[np.int64]) -> Numbers:
    """Return the probabilities [n] of one token for each row of logits [n, vocab], as `softmax` has them."""
    return _shares(_weights(logits), tokens)


def _normed(weights: Numbers) -> Numbers:
    found: Numbers = weights / weights.sum(axis=-1, keepdims=True)
    return found


def _shares(weights: Numbers, tokens: NDArray[np.int64]) -> Numbers:
    found: Numbers = weights[np.arange(len(tokens)), tokens] / weights.sum(axis=-1)
    return found


def _weights(logits: Logits) -> Numbers:
    """Return exp(logit - highest) [n, vocab]."""
    found: Numbers = np.exp((logits - logits.max(axis=-1, keepdims=True)).astype(np.float64))
    return found


def entropy(probs: Numbers) -> Numbers:
    """Return the entropies [n] of distributions [n, vocab], in nats."""
    found: Numbers = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=-1)
    return found
