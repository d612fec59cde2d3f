"""Whether a window's draft is worth its time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from localspec.core.types import Step

RATE_AT_FIRST = 4.5  # tokens per second of speech
SAVED_AT_FIRST = 0.6  # of a plain token's seconds
NEW = 0.3  # weight of the latest window
BUDGET = 0.01  # of all seconds, for drafts that may turn out not to pay


class DraftSeconds(NamedTuple):
    """What a window's draft took before the target's first pass: its encoder, and its decoder."""

    encoder: float
    decoder: float


@dataclass(slots=True)
class Worth:
    """Decides for each window whether a draft saves more than it costs, by what drafts did so far.

    A window of n tokens costs n p without a draft and n (1 - s) p + e w + n t / k with one: p seconds of a
    token decoded plainly, s the share of them that a draft saves, e the draft's encoder for a second of the
    window, t a pass of its decoder, which gives a token to each of the k parts that it writes at the same
    time. All are measured; n follows from the seconds w of the window. The first values of e and t are given,
    as they are for the target's own encoder and decoder times the ratio of the weights.
    """

    encoder: float = 0.0
    token: float = 0.0
    plain: float = 0.0
    saved: float = SAVED_AT_FIRST
    rate: float = RATE_AT_FIRST
    seconds: float = 0.0  # of all windows
    lost: float = 0.0  # by drafts that did not pay

    def gain(self, seconds: float, parts: int) -> float:
        """Return the seconds that a draft is expected to save in a window of so many seconds and parts."""
        return seconds * (self.rate * (self.saved * self.plain - self.token / parts) - self.encoder)

    def wanted(self, seconds: float, parts: int) -> bool:
        """Return whether to draft a window: if that pays, or if its loss stays within the budget."""
        gain = self.gain(seconds, parts)
        return gain > 0 or self.lost - gain < BUDGET * self.seconds

    def learn(self, window: float, parts: int, steps: Sequence[Step], draft: DraftSeconds | None) -> None:
        """Learn from the steps of a window of so many seconds and parts, and what its draft took if any."""
        tokens = sum(len(step.tokens) for step in steps)
        spent = sum(step.target_seconds + step.draft_seconds for step in steps)
        self.seconds += spent
        alone = [step.target_seconds for step in steps[1:] if not step.drafted and not step.company.drafts]
        if alone:
            self.plain = _mixed(self.plain, median(alone))
        self.rate = _mixed(self.rate, tokens / max(window, 1.0))
        if draft is not None and tokens and self.plain:
            self.seconds += sum(draft)
            self.encoder = _mixed(self.encoder, draft.encoder / window)
            self.token = _mixed(self.token, parts * draft.decoder / tokens)
            self.saved = _mixed(self.saved, 1 - spent / (tokens * self.plain))
            self.lost = max(0.0, self.lost + spent + sum(draft) - tokens * self.plain)


def _mixed(old: float, new: float) -> float:
    return new if old == 0 else (1 - NEW) * old + NEW * new
