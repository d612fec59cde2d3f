"""Write the parts of a window at the same time, in common passes: a quick first version of its text.

A decoder that is given a time as its first token writes what is said from then on. So one text for each part
of a window, each begun with the part's time, needs as many passes as its longest part, and a pass over a few
tokens costs little more than one over one. The parts know nothing of each other, so they serve as a draft.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from localspec.core.contracts import Drafter, Read, Session
from localspec.core.sampler import Sampling
from localspec.core.types import UNKNOWN, Company
from localspec.speech.types import RATE
from localspec.speech.whisper.rules import SpeechSampler
from localspec.speech.whisper.vocabulary import STEP

if TYPE_CHECKING:
    from localspec.core.contracts import ExpectingDrafter
    from localspec.core.sampler import Sampler
    from localspec.core.types import Candidate, Logits, Tokens
    from localspec.speech.whisper.model import SpeechModel
    from localspec.speech.whisper.vocabulary import SpeechTokens

MOST_PARTS = 6
PART = 4.0  # seconds that a part should have
AROUND = 0.4  # of a part's length: how far from an even cut a pause is looked for
QUIET = RATE // 5  # samples over which loudness is judged
NEAR = 0.3  # seconds around the next part's beginning: a part that ends there leaves it to the next
TOKENS_FIRST, TOKENS_PER_SECOND = 8, 6  # that a part may have: more is a loop
MET = 6  # tokens of the next part's beginning that end a part
OVER = 8  # tokens per second that both parts may have said


def cuts(samples: NDArray[np.float32], most: int = MOST_PARTS) -> list[float]:
    """Return the times at which at most so many parts of a window begin: its start, and quiet places."""
    seconds = len(samples) / RATE
    count = min(most, round(seconds / PART))
    if count < 2:
        return [0.0]
    sums = np.cumsum(np.abs(samples), dtype=np.float64)
    loudness = sums[QUIET:] - sums[:-QUIET]  # of the samples behind each place
    found, part = [0.0], seconds / count
    for number in range(1, count):
        first, last = (round((number + side) * part * RATE) for side in (-AROUND, AROUND))
        found.append((first + int(loudness[first:last].argmin()) + QUIET // 2) / RATE)
    return found


class Parts:
    """The texts of a window's parts, which grow with each pass."""

    def __init__(
        self, model: SpeechModel, prompt: Sequence[int], starts: Sequence[float], end: float, first: int = 0
    ) -> None:
        """Begin the texts of the parts from number `first` on, which begin at `starts`, and end at `end`."""
        spans = list(zip(starts, [*starts[1:], end], strict=True))[first:]
        self.tokens = model.tokens
        self.parts = [Part(model.tokens, prompt, *span) for span in spans]
        self._passes = model.session.beside(len(self.parts))
        self._sessions = [self._passes.session() for _ in self.parts]

    @property
    def growing(self) -> bool:
        """Return whether a part is not at its end yet."""
        return not all(part.done for part in self.parts)

    def grow(self, beside: Read | None = None) -> Logits | None:
        """Run a pass, which gives each part that is not at its end a token; return the logits of `beside`."""
        live = [at for at, part in enumerate(self.parts) if not part.done]
        reads = [Read(self._sessions[at], self.parts[at].unread(), 1) for at in live]
        found = self._passes.forward([beside, *reads] if beside else reads)
        own = found.pop(0) if beside else None
        for at, rows in zip(live, found, strict=True):
            following = self.parts[at + 1].words if at + 1 < len(self.parts) else []
            self.parts[at].take(rows[0], following)
        return own


def written(model: SpeechModel, prompt: Sequence[int], starts: Sequence[float], end: float) -> list[int]:
    """Return the tokens of what was heard up to `end`, with times, from parts that begin at `starts`."""
    parts = Parts(model, prompt, starts, end)
    while parts.growing:
        parts.grow()
    return joined(model.tokens, parts.parts)


class JointSession(Session):
    """The session of an answer in whose passes the parts of its window grow."""

    def __init__(self, session: Session, parts: Parts) -> None:
        self._session, self._parts = session, parts
        self.vocabulary, self.chunk = session.vocabulary, session.chunk

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return the logits [rows, vocab] of the last `rows` of them."""
        self.company = Company(drafts=sum(not part.done for part in self._parts.parts))
        if not tokens or not self._parts.growing:
            return self._session.forward(tokens, rows)
        found = self._parts.grow(Read(self._session, tokens, rows))
        assert found is not None
        return found

    def rewind(self, length: int) -> int:
        """Keep at most the first `length` tokens and return the number that was kept."""
        return self._session.rewind(length)


class TogetherDraft(Drafter):
    """Guesses from the parts of a window, wherever the answer has come in them."""

    def __init__(self, parts: Parts, expected: ExpectingDrafter, prompt: Sequence[int]) -> None:
        """Draft for the answer to `prompt`, with guesses of `expected`."""
        self._parts, self._expected, self._prompt = parts, expected, prompt
        self._known = False
        expected.expect(prompt, [])

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield what the parts say after the place that the answer has reached."""
        if not self._known:
            said = joined(self._parts.tokens, self._parts.parts)
            self._expected.expect(self._prompt, [UNKNOWN, *said])
            self._known = not self._parts.growing
        yield from self._expected.propose(tokens, sampler)


class Part:
    """One part's text as it grows. `words` are its tokens that are no times, `done` whether it has ended."""

    def __init__(self, tokens: SpeechTokens, prompt: Sequence[int], start: float, end: float) -> None:
        self._tokens, self.start, self._end = tokens, start, end
        self._text = [*prompt, tokens.first_time + round(start / STEP)]
        self._first, self._read = len(prompt), 0
        self._most = TOKENS_FIRST + TOKENS_PER_SECOND * (end - start)
        self._sampler = SpeechSampler(tokens, Sampling(), answer_from=len(prompt), tells=False)
        self.words: list[int] = []
        self.done = self._met = False

    @property
    def answer(self) -> list[int]:
        return [token for token in self._text[self._first :] if token != self._tokens.end]

    def over(self, start: float) -> int:
        """Return how many tokens at its end may be said after the time `start`, when the next part begins."""
        if self._met:
            return MET
        last = next((token for token in reversed(self._text) if self._tokens.is_time(token)), 0)
        closed = self._tokens.is_time(self.answer[-1])
        seconds = self._tokens.seconds(last) - start if closed else self._end - start + PART
        return round(OVER * seconds) if seconds > NEAR else 0

    def unread(self) -> list[int]:
        """Return the tokens that the next pass reads."""
        found, self._read = self._text[self._read :], len(self._text)
        return found

    def take(self, row: NDArray[np.float32], following: Sequence[int]) -> None:
        """Take in the logits [vocab] of the next token; `following` are the words of the next part so far."""
        own, token = self._tokens, self._sampler.choose(row, self._text)
        closes = own.is_time(token) and not own.is_time(self._text[-1])
        self._text.append(token)
        if not own.is_time(token):
            self.words.append(token)
        self._met = len(following) >= MET and self.words[-MET:] == list(following[:MET])
        over = closes and own.seconds(token) >= self._end - NEAR
        self.done = token == own.end or over or self._met or len(self.words) > self._most


def joined(tokens: SpeechTokens, parts: Sequence[Part]) -> list[int]:
    """Return the parts as one text: what the end of one and the beginning of the next both say comes once.

    Only where a part has run over the beginning of the next one do both say something. UNKNOWN follows a part
    that is not at its end; the end follows the last one.
    """
    whole: list[int] = []
    for before, part in zip([None, *parts], parts, strict=False):
        answer = part.answer
        reach = before.over(tokens.seconds(answer[0])) if before is not None and before.done else 0
        tail, head = _last_words(tokens, whole, reach), _words(tokens, answer)[:reach]
        same = SequenceMatcher(None, _words(tokens, tail), head, autojunk=False).find_longest_match()
        if same.size > 1:
            kept = len(whole) - len(tail) + _place(tokens, tail, same.a + same.size)
            whole, answer = whole[:kept], answer[_place(tokens, answer, same.b + same.size) :]
        whole += answer if part.done else [*answer, UNKNOWN]
    return [*whole, tokens.end] if parts and parts[-1].done else whole


def _last_words(tokens: SpeechTokens, text: Sequence[int], count: int) -> list[int]:
    """Return the end of a text with `count` tokens that are no times."""
    at = len(text)
    while at and count:
        at -= 1
        count -= not tokens.is_time(text[at])
    return list(text[at:])


def _words(tokens: SpeechTokens, text: Sequence[int]) -> list[int]:
    return [token for token in text if not tokens.is_time(token)]


def _place(tokens: SpeechTokens, text: Sequence[int], count: int) -> int:
    """Return the place behind the first `count` tokens of a text that are no times."""
    for at, token in enumerate(text):
        if count == 0:
            return at
        count -= not tokens.is_time(token)
    return len(text)
