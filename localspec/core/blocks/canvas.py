"""A block while a sampler turns its masks into tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks.types import Block, BlockPass, Candidates, Places
from localspec.core.contracts import BlockSession
from localspec.core.sampler import Sampler
from localspec.core.types import Distribution, Logits, Row, Tokens


class Canvas:
    """One block after a text: tokens that are given, tokens that were revealed, and masks.

    `tokens` [length] hold the session's mask where no token is known. The first `given` of them belong to the
    text already. `passes` counts the passes of the model. `revealed_by` [length] is the
    pass that revealed each token, 0 for given ones and masks. `laws` are the distributions from which sampled
    tokens were drawn, and `confidence` is that of candidates that were revealed, by place.

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
        self.confidence: dict[int, float] = {}
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

    def candidates(self, *, attention: bool = False) -> Candidates:
        """Return what one pass over the block says of its masks."""
        found = self.read(Block(self.tokens, self.positions), attention=attention)
        return self.judged(found, self.masked)

    def judged(self, found: BlockPass, places: Sequence[int]) -> Candidates:
        """Return the candidates for `places` of the block by a pass over it."""
        logits = self.writable(found.logits[list(places)])
        known = self._known()
        tokens = [self._chosen(row, known, place) for row, place in zip(logits, places, strict=True)]
        probs = softmax(logits)
        chosen = np.array(tokens, np.int64)
        return Candidates(
            np.array(places, np.int64),
            chosen,
            probs[np.arange(len(places)), chosen],
            entropy(probs),
            found.attention,
        )

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
        places = candidates.places[picked].tolist()
        self.confidence |= dict(zip(places, candidates.confidence[picked].tolist(), strict=True))
        self.reveal(places, candidates.tokens[picked].tolist())


def softmax(logits: Logits) -> NDArray[np.float64]:
    """Return the probabilities [n, vocab] of logits; -inf is no token."""
    weights = np.exp((logits - logits.max(axis=-1, keepdims=True)).astype(np.float64))
    found: NDArray[np.float64] = weights / weights.sum(axis=-1, keepdims=True)
    return found


def entropy(probs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the entropies [n] of distributions [n, vocab], in nats."""
    found: NDArray[np.float64] = -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(axis=-1)
    return found
