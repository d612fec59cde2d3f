"""The rules of Whisper's timestamps, and how sure it was of each token."""

from __future__ import annotations

import numpy as np

from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Row, Tokens
from localspec.speech.whisper.vocabulary import LAST, SpeechTokens

FIRST_WITHIN = 50  # timestamps: the first segment begins within the first second


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

    def adjusted(self, row: Row, before: Tokens) -> Row:
        """Return the logits [vocab] with -inf for tokens that the rules forbid after `before`."""
        own, answer = self._tokens, before[self._start :]
        row = row.copy()
        row[own.never[own.never < len(row)]] = -np.inf
        first = own.first_time
        if not answer:
            row[list(own.blank)] = -np.inf
            row[:first] = -np.inf
            row[first + FIRST_WITHIN + 1 :] = -np.inf
            return row
        self._keep_pairs(row, answer)
        times, text = row[first:], row[:first]
        highest = times.max()
        if highest > -np.inf:
            together = float(highest) + float(np.log(np.exp(times - highest).sum()))
            if together > text.max():
                row[:first] = -np.inf
        return row

    def _keep_pairs(self, row: Row, answer: Tokens) -> None:
        own = self._tokens
        first, end = own.first_time, own.end
        row[first + LAST + 1 :] = -np.inf
        if own.is_time(answer[-1]):
            if len(answer) < 2 or own.is_time(answer[-2]):
                row[first:] = -np.inf
            else:
                row[:end] = -np.inf
        last = next((token for token in reversed(answer) if own.is_time(token)), None)
        if last is not None:
            begins = own.is_time(answer[-1]) and not (len(answer) < 2 or own.is_time(answer[-2]))
            row[first : last if begins else last + 1] = -np.inf

    def choose(self, row: Row, before: Tokens) -> int:
        """Return the target's token after `before`, and keep its log-probability."""
        adjusted = self.adjusted(row, before)
        token = super().choose(adjusted, before)
        if self._tells:
            highest = adjusted.max()
            total = float(highest) + float(np.log(np.exp(adjusted - highest).sum()))
            self.logprobs[len(before)] = float(adjusted[token]) - total
        return token
