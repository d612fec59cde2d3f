"""The source of each token of an answer, and its log-probability, for clients that ask for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from localspec.core.text import TextStream
from localspec.core.types import Step
from localspec.formats.tokenizer.translation import bytes_reader
from localspec.runtime.generation import Runtime

Source = tuple[str, str | None]  # a text, and the source of its accepted guess; None for the target's own


class Scored(NamedTuple):
    """A token of an answer: its bytes, its log-probability, and those of the likeliest in its place."""

    text: bytes
    logprob: float
    best: Sequence[tuple[bytes, float]]


class Scores:
    """Tells how likely the tokens of an answer were; the token that ends it has no text and is left out."""

    def __init__(self, runtime: Runtime) -> None:
        self._bytes_of = bytes_reader(runtime.tokenizer)
        self._ends = frozenset(runtime.model.stop_tokens())
        self._scored: list[Scored] = []

    def add(self, step: Step) -> None:
        """Take in a step."""
        for token, likelihood in zip(step.tokens, step.likelihoods, strict=True):
            if token not in self._ends:
                best = [(self._bytes_of(each), logprob) for each, logprob in likelihood.best]
                self._scored.append(Scored(self._bytes_of(token), likelihood.logprob, best))

    def take(self) -> Sequence[Scored]:
        """Return the tokens since the last call."""
        taken, self._scored = self._scored, []
        return taken


class Sources:
    """Finds for the texts of an answer, in order, which source guessed each part of them."""

    def __init__(self, runtime: Runtime, shown: bool | Collection[str]) -> None:
        """`shown` are the special tokens whose texts the answer has, as for a TextStream."""
        self._stream = TextStream(runtime.tokenizer, shown=shown)
        self._only = runtime.draft_spec.name
        self._parts: list[Source] = []

    def add(self, step: Step) -> None:
        """Take in a step."""
        for position, token in enumerate(step.tokens):
            source = step.draft[position].source or self._only if position < step.accepted else None
            self._parts.append((self._stream.push(token), source))
        if step.finish:
            self._parts.append((self._stream.flush(), None))

    def take(self, text: str) -> list[Source]:
        """Return the next text of the answer in parts; what lies before it is a mark or a call."""
        whole = "".join(part for part, _ in self._parts)
        at = whole.find(text)
        if at < 0:
            return [(text, None)]
        self._drop(at)
        taken: list[Source] = []
        for part, source in self._drop(len(text)):
            if taken and taken[-1][1] == source:
                taken[-1] = (taken[-1][0] + part, source)
            elif part:
                taken.append((part, source))
        return taken

    def _drop(self, count: int) -> list[Source]:
        """Remove so many characters, and return them in parts."""
        dropped: list[Source] = []
        while count:
            text, source = self._parts[0]
            dropped.append((text[:count], source))
            if len(text) > count:
                self._parts[0] = (text[count:], source)
            else:
                del self._parts[0]
            count -= min(count, len(text))
        return dropped
