"""Where an accepted run ends: stop tokens, stop strings, the token cap, and text in whole characters."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from localspec.core.types import Tokens

STOP = "stop"
LENGTH = "length"


class Pieces(Protocol):
    """Turns tokens into text as they come. `TextStream` in tokenizer.py is one."""

    def push(self, token: int) -> str:
        """Return the whole characters that are certain after `token`."""

    def flush(self) -> str:
        """Return what is left at the end, incomplete characters included."""


class Processed(NamedTuple):
    """The part of a run that stands, the text it adds, and why the answer ends with it, if it does."""

    tokens: tuple[int, ...]
    text: str
    finish: str | None


class OutputProcessor:
    """Settles the runs of one answer. Any cut of an answer into runs gives the same tokens and text.

    A stop token ends the answer and is one of its tokens, but has no text. A stop string ends it before the
    string, wherever token borders lie; the tokens that wrote it are kept. `room` is how many tokens are left.
    """

    def __init__(
        self, pieces: Pieces, *, stop_tokens: Collection[int] = (), stop: Sequence[str] = (), room: int
    ) -> None:
        self._pieces = pieces
        self._stop_tokens = frozenset(stop_tokens)
        self._stop = tuple(stop)
        self.room = room
        self._held = ""

    def settle(self, run: Tokens) -> Processed:
        """Return what stands of `run`, the next tokens of the answer."""
        text = ""
        for count, token in enumerate(run, 1):
            more, finish = self._take(token)
            text += more
            if finish is not None:
                return Processed(tuple(run[:count]), text, finish)
        return Processed(tuple(run), text, None)

    def _take(self, token: int) -> tuple[str, str | None]:
        self.room -= 1
        if token in self._stop_tokens:
            return self._rest(STOP)
        self._held += self._pieces.push(token)
        before = self._before_stop()
        if before is not None:
            return before, STOP
        if self.room <= 0:
            return self._rest(LENGTH)
        return self._release(), None

    def _rest(self, finish: str) -> tuple[str, str]:
        """Return all that is held; what flushing adds may still complete a stop string."""
        self._held += self._pieces.flush()
        before = self._before_stop()
        return (self._held, finish) if before is None else (before, STOP)

    def _before_stop(self) -> str | None:
        """Return the held text before the first stop string in it, or None."""
        found = [at for at in (self._held.find(stop) for stop in self._stop) if at >= 0]
        return self._held[: min(found)] if found else None

    def _release(self) -> str:
        """Return the held text, less an end that may be the start of a stop string."""
        keep = max((overlap(self._held, stop) for stop in self._stop), default=0)
        text = self._held[: len(self._held) - keep]
        self._held = self._held[len(text) :]
        return text


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a start of `stop` but not all of it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
