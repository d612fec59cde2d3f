"""Should a draft model read what it has missed? That is paid at once; what it gains comes token by token."""

from __future__ import annotations

from localspec.draft_length.adaptive.source_stats import Pace

USUAL = 128.0  # tokens of an answer until some have been seen
LEARNED = 0.2  # of the way to the length of each answer
HELD = 16.0  # tokens of earlier answers that count for what this one is like
KEPT = 0.99  # of what earlier tokens weigh is left after each one
A_GUESS = 8.0  # tokens that are read for what a guess costs, until that has been seen
PROBED = 0.03  # of all time may be spent on reading for guesses that may not pay


class Answers:
    """How long answers are, and how much of this one a draft model would be asked for.

    A draft that has missed a text, such as a prompt, reads it before it can guess. That pays where its price
    is less than what guessing gains over the rest of the answer: seconds a token, times the tokens still to
    come, times the share of them that nobody else guesses. An answer that is longer than usual is expected to
    go on for as long as it has by now (Lindy's law): the rent-or-buy rule, which loses at most as much as it
    could have gained (Karlin et al. 1988).
    """

    def __init__(self) -> None:
        self.usual = USUAL
        self.waited = 0.0  # seconds since something was read for a guess that may not pay
        self._said = 0
        self._asked = self._told = HELD  # tokens that nobody else guessed, and all of them, faded

    def affords(self, pace: Pace, plain: float, behind: int) -> bool:
        """Tell whether reading `behind` tokens pays for who guesses at this pace; `plain` is a pass's cost.

        Who does not pay is tried now and then, for a small share of the time.
        """
        price = behind * (pace.reading if pace.reading is not None else pace.cost / A_GUESS)
        if not pace.pays:
            return price <= PROBED * self.waited
        ahead = max(self.usual - self._said, self._said)
        return price <= ahead * self._asked / self._told * max(plain - 1 / pace.rate, 0.0)

    def learn(self, tokens: int, seconds: float, asked: bool, ended: bool) -> None:
        """Take in a round: its tokens and seconds, and whether a draft model was what could have led it."""
        self._said += tokens
        self.waited += seconds
        fade = KEPT**tokens
        self._told = fade * self._told + tokens
        self._asked = fade * self._asked + tokens * asked
        if ended:
            self.usual += LEARNED * (self._said - self.usual)
            self._asked, self._told = HELD * self._asked / self._told, HELD
            self._said = 0
