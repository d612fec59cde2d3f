"""Decides whether a draft model should read the tokens it has missed: paid at once, gained token by token."""

from __future__ import annotations

from localspec.draft_length.adaptive.source_stats import SourceStats

USUAL = 128.0  # tokens of an answer until some have been seen
LEARNED = 0.2  # of the way to the length of each finished answer
PRIOR = 16.0  # tokens that the share seen in earlier answers is worth
KEPT = 0.99  # of what earlier tokens weigh is left after each token
TOKENS_PER_GUESS = 8.0  # tokens read in the time of a guess, until that has been measured
PROBED = 0.03  # share of all time that may be spent on reading for guesses that may not pay


class PrefillPolicy:
    """Estimates how long answers are, and what share of this one a draft model would guess.

    A draft model that has missed a text, such as a prompt, reads it before it can guess. That pays if it
    costs less than what guessing gains over the rest of the answer: seconds per token, times the tokens still
    to come, times the share of them that no other source guesses. An answer longer than usual is expected to
    continue for as long as it has so far (Lindy's law): the rent-or-buy rule, which loses at most as much as
    it could have gained (Karlin et al. 1988).
    """

    def __init__(self) -> None:
        self.usual_length = USUAL
        self.waited = 0.0  # seconds since a draft model read for guesses that may not pay
        self._length = 0  # tokens of this answer
        self._open = self._total = PRIOR  # tokens that no other source guessed, and all of them, faded

    def begin(self) -> None:
        """Start an answer; the share seen in earlier ones counts for PRIOR tokens."""
        self._length = 0
        self._open, self._total = PRIOR * self._open / self._total, PRIOR

    def affords(self, stats: SourceStats, plain: float, behind: int) -> bool:
        """Return whether reading `behind` tokens pays for the source of `stats`.

        `plain` is the seconds of a one-token pass. A source that does not pay is tried now and then, for a
        small share of the time.
        """
        per_token = stats.prefill_cost if stats.prefill_cost is not None else stats.cost / TOKENS_PER_GUESS
        price = behind * per_token
        if not stats.pays:
            return price <= PROBED * self.waited
        ahead = max(self.usual_length - self._length, self._length)
        return price <= ahead * self._open / self._total * max(plain - 1 / stats.rate, 0.0)

    def learn(self, tokens: int, seconds: float, open_to_draft: bool, finished: bool) -> None:
        """Take in a step, and whether a draft model could have led it."""
        self._length += tokens
        self.waited += seconds
        fade = KEPT**tokens
        self._total = fade * self._total + tokens
        self._open = fade * self._open + tokens * open_to_draft
        if finished:
            self.usual_length += LEARNED * (self._length - self.usual_length)
