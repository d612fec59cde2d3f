"""The end of an answer (stop tokens, stop strings, limit, repetition), and its text in whole characters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from localspec.core.types import Tokens

STOP = "stop"
LENGTH = "length"
REPEATING = "repeating"


class Detokenizer(Protocol):
    """Turns tokens into text as they come. `TextStream` in text.py is one."""

    def push(self, token: int) -> str:
        """Return the characters that `token` completes."""

    def flush(self) -> str:
        """Return the rest at the end, incomplete characters included."""


class Output(NamedTuple):
    """The tokens that are part of the answer, the text they add, and the finish reason if it ends there.

    `marks` are the places, in the text of the whole answer, where those of the tokens that are marks begin.
    """

    tokens: tuple[int, ...]
    text: str
    finish: str | None
    marks: tuple[int, ...] = ()


class OutputProcessor:
    """Turns the accepted tokens of one answer into output; any split into runs gives the same output.

    A stop token ends the answer and is one of its tokens, but has no text. A stop string ends the answer
    before the string, wherever token borders lie; the tokens that wrote it are kept. `remaining` is the
    number of tokens that the answer may still have. `marks` are tokens, with their texts, whose places are
    told; the same text in other tokens is no mark. `repeats` is called with each token, and ends the answer
    behind it by returning true.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        *,
        stop_tokens: Collection[int] = (),
        stop: Sequence[str] = (),
        marks: Mapping[int, str] | None = None,
        repeats: Callable[[int], bool] | None = None,
        max_new_tokens: int,
    ) -> None:
        self._detokenizer = detokenizer
        self._stop_tokens = frozenset(stop_tokens)
        self._stop = tuple(stop)
        self._marks = dict(marks or {})
        self._repeats = repeats
        self._places: list[int] = []  # of marks since the last output
        self.remaining = max_new_tokens
        self._length = 0  # of the text before the held one
        self._held = ""

    def process(self, run: Tokens) -> Output:
        """Return the part of `run`, the next accepted tokens, that belongs to the answer."""
        text, finish, count = "", None, 0
        while finish is None and count < len(run):
            more, finish = self._take(run[count])
            text, count = text + more, count + 1
        places, self._places = tuple(self._places), []
        return Output(tuple(run[:count]), text, finish, places)

    def _take(self, token: int) -> tuple[str, str | None]:
        self.remaining -= 1
        if token in self._stop_tokens:
            return self._rest(STOP)
        self._held += self._detokenizer.push(token)
        if token in self._marks:
            self._places.append(self._length + len(self._held) - len(self._marks[token]))
        before = self._before_stop()
        if before is not None:
            return before, STOP
        if self.remaining <= 0:
            return self._rest(LENGTH)
        if self._repeats and self._repeats(token):
            return self._rest(REPEATING)
        return self._release(), None

    def _rest(self, finish: str) -> tuple[str, str]:
        """Return the held text; flushing may still complete a stop string."""
        self._held += self._detokenizer.flush()
        before = self._before_stop()
        return (self._held, finish) if before is None else (before, STOP)

    def _before_stop(self) -> str | None:
        """Return the held text before its first stop string, or None without one."""
        places = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        return self._held[: min(places)] if places else None

    def _release(self) -> str:
        """Return the held text except an end that may be the start of a stop string."""
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        self._length += len(text)
        return text


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
