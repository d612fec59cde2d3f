"""Copies of what was said earlier in a file, beside the guesses of another drafter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.contracts import Drafter
from localspec.core.types import Guess, LazyGuess

if TYPE_CHECKING:
    from localspec.core.contracts import CopyingDrafter, CopyWalk
    from localspec.core.cursor import Cursor
    from localspec.core.sampler import Sampler
    from localspec.core.types import Candidate, Logits, Tokens, Verdict
    from localspec.speech.whisper.vocabulary import SpeechTokens

COPIES = "copies"  # the source of these guesses
TEXTS = ("drafters", "suffix")  # what finds them


def earlier_texts(target: Cursor) -> CopyingDrafter:
    """Return a drafter that copies from the windows of one file."""
    found: CopyingDrafter = plugins.parse(*TEXTS).make(target)
    return found


class SpeechCopies(Drafter):
    """Offers at each position the more confident of a copy and another drafter's guess.

    Copies come from the answers to earlier windows and to earlier attempts at this one, and are no pass of a
    model. The same words are hardly ever said at the same times, so copies follow an answer in which times
    are those since the time before (`_Relative`). A copy that the rules of times forbid is left out.
    """

    def __init__(self, tokens: SpeechTokens, texts: CopyingDrafter, other: Drafter) -> None:
        """Copy from `texts`, which learn the answer, beside the guesses of `other`."""
        self._relative, self._texts, self._other = _Relative(tokens), texts, other
        self._start, self._said = 0, list[int]()

    def begin(self, prompt: Tokens) -> None:
        """Start an answer."""
        self._start, self._said = len(prompt), list(prompt)
        self._other.begin(prompt)

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield a guess for each position; a lazy one of the other drafter has the copy in its place."""
        text, walk = list(tokens), self._texts.walk(self._relative.text(tokens[self._start :]))
        others = iter(self._other.propose(list(text), sampler))
        while True:
            offered, copy = next(others, None), self._copy(walk, text, sampler)
            if isinstance(offered, LazyGuess):
                asked = _Asked(offered)
                yield LazyGuess(asked.draw, offered.source, offered.behind, copy)
                own = asked.guess
                taken = own or copy
            else:
                own = sampler.permitted(offered, text)
                taken = _surer(own, copy)
            if taken is None:
                return
            if taken is copy or isinstance(offered, Guess):
                yield taken
            walk.go(self._relative.token(taken.token, text[self._start :][-1:]), copied=taken is copy)
            text.append(taken.token)
            if offered is not None and (own is None or own.token != taken.token):
                others = iter(self._other.propose(list(text), sampler))

    def _copy(self, walk: CopyWalk, text: list[int], sampler: Sampler) -> Guess | None:
        """Return a copy that may follow `text`, None without one."""
        found = self._texts.guess(walk)
        token = self._relative.said(found.token, text[self._start :][-1:]) if found else None
        if found is None or token is None:
            return None
        return sampler.permitted(found._replace(token=token, source=COPIES), text)

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Keep the answer so far."""
        self._said = [*tokens[: len(tokens) - len(logits) + 1 + verdict.accepted], verdict.token]
        self._other.observe(tokens, logits, verdict)

    def end(self) -> None:
        """End the answer, which is an earlier text from now on."""
        self._texts.walk(self._relative.text(self._said[self._start :]))
        self._other.end()


def _surer(own: Guess | None, copy: Guess | None) -> Guess | None:
    """Return the more confident guess."""
    return copy if own is None or (copy is not None and copy.confidence > own.confidence) else own


class _Asked:
    """A lazy guess, and what came of it."""

    def __init__(self, lazy: LazyGuess) -> None:
        self._lazy = lazy
        self.guess: Guess | None = None

    def draw(self) -> Guess | None:
        """Return the guess."""
        self.guess = self._lazy.draw()
        return self.guess


class _Relative:
    """Answers with relative times, in which what is said again is the same again.

    A time that opens a segment is that since the one before closed, mostly none. A time that closes one is
    always the same token: when that will be, no earlier text tells.
    """

    def __init__(self, tokens: SpeechTokens) -> None:
        self._tokens = tokens
        self._first, self._closing = tokens.first_time, tokens.no_timestamps  # which comes in no answer

    def text(self, answer: Tokens) -> list[int]:
        """Return an answer so, after the token that begins each."""
        found = [self._tokens.start]
        for at, token in enumerate(answer):
            found.append(token if token < self._first else self.token(token, answer[max(at - 1, 0) : at]))
        return found

    def token(self, token: int, before: Tokens) -> int:
        """Return what stands for a token; `before` is the one before it in the answer, if there is one."""
        if token < self._first or not before:
            return token
        return self._first + token - before[0] if before[0] >= self._first else self._closing

    def said(self, token: int, before: Tokens) -> int | None:
        """Return the token that something stands for, None for a time that cannot be known."""
        if token == self._closing:
            return None
        return before[0] + token - self._first if before and token >= self._first else token
