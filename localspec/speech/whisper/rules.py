"""The rules of Whisper's timestamps, and how sure it was of each token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Row, Tokens
from localspec.speech.whisper.vocabulary import LAST, SpeechTokens

FIRST_WITHIN = 50  # timestamps: the first segment begins within the first second


class _Following(NamedTuple):
    """The tokens that may come next: text, the end, and times from the earliest to the latest one."""

    text: bool
    end: bool
    earliest: int
    latest: int


class SpeechSampler(Sampler):
    """Chooses the tokens of a window by Whisper's rules, and keeps the log-probability of each.

    Segments are between two timestamps; times never go back; a segment follows another at once. If all
    timestamps together are likelier than any text, one comes: as OpenAI's `ApplyTimestampRules`.
    `logprobs` holds those of the target's tokens by their position in the text, unless it `tells` none.
    """

    def __init__(
        self,
        tokens: SpeechTokens,
        sampling: Sampling,
        *,
        seed: int = 0,
        answer_from: int,
        tells: bool = True,
    ) -> None:
        super().__init__(sampling, seed=seed, answer_from=answer_from)
        self._tokens, self._start, self._tells = tokens, answer_from, tells
        self.logprobs: dict[int, float] = {}

    @property
    def constrained(self) -> bool:
        """Return True: guesses that the rules forbid are left out like those that a grammar forbids."""
        return True

    def allows(self, token: int, before: Tokens) -> bool:
        """Return whether `token` may follow `before`, which must be allowed itself, whatever its logit."""
        own, following = self._tokens, self._following(before[self._start :])
        if own.is_time(token):
            return following.earliest <= token <= following.latest
        if token == own.end:
            return following.end
        return following.text and token < own.end and token not in own.suppressed

    def adjusted(self, row: Row, before: Tokens) -> Row:
        """Return the logits [vocab] with -inf for tokens that the rules forbid after `before`."""
        own, following = self._tokens, self._following(before[self._start :])
        first, row = own.first_time, row.copy()
        row[own.never[own.never < len(row)]] = -np.inf
        row[first : following.earliest] = -np.inf
        row[following.latest + 1 :] = -np.inf
        if not following.text:
            row[: own.end] = -np.inf
        if not following.end:
            row[own.end] = -np.inf
        times, text = row[first:], row[:first]
        highest = times.max()
        if highest > -np.inf:
            together = float(highest) + float(np.log(np.exp(times - highest).sum()))
            if together > text.max():
                row[:first] = -np.inf
        return row

    def _following(self, answer: Tokens) -> _Following:
        own, first = self._tokens, self._tokens.first_time
        if not answer:
            return _Following(False, False, first, first + FIRST_WITHIN)
        last = next((token for token in reversed(answer) if own.is_time(token)), first - 1)
        if not own.is_time(answer[-1]):
            return _Following(True, True, last + 1, first + LAST)
        if len(answer) < 2 or own.is_time(answer[-2]):  # it opens a segment
            return _Following(True, True, first + LAST + 1, first + LAST)
        return _Following(False, True, last, first + LAST)

    def choose(self, row: Row, before: Tokens) -> int:
        """Return the target's token after `before`, and keep its log-probability."""
        adjusted = self.adjusted(row, before)
        token = super().choose(adjusted, before)
        if self._tells:
            highest = adjusted.max()
            total = float(highest) + float(np.log(np.exp(adjusted - highest).sum()))
            self.logprobs[len(before)] = float(adjusted[token]) - total
        return token
