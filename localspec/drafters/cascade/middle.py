"""The middle tier: what reads a block of guesses in one pass, below the target."""

from __future__ import annotations

from abc import ABC, abstractmethod

from localspec.core.contracts import DraftModel, EarlyExit, ReducibleSession
from localspec.core.cursor import Cursor
from localspec.core.types import Logits, Tokens, shared_prefix
from localspec.drafting import skip_mask
from localspec.errors import BadValue


class MiddleTier(ABC):
    """A model that is smaller than the target and has its vocabulary."""

    @abstractmethod
    def behind(self, text: Tokens) -> int:
        """Return how many tokens of `text` it must read before its first logits."""

    @abstractmethod
    def read(self, text: Tokens, guesses: Tokens) -> Logits:
        """Return the logits [len(guesses), vocab] after `text` and after each guess but the last.

        The result may be a view, valid until the next call. Raises ContextFull.
        """


class FirstLayers(MiddleTier):
    """The target's first layers and its head; the verification continues from their hidden states."""

    def __init__(self, target: Cursor, session: EarlyExit) -> None:
        self._target, self._session = target, session

    def behind(self, text: Tokens) -> int:
        """Return 1: the target's first layers have read the text."""
        return 1

    def read(self, text: Tokens, guesses: Tokens) -> Logits:
        """Read the guesses ahead of the target's text."""
        if not self._continues(text):
            self._target.read(text[:-1], rows=0)
        return self._session.early([*text[len(self._target.tokens) :], *guesses[:-1]], len(guesses))

    def _continues(self, text: Tokens) -> bool:
        """Return whether `text` goes on where the target's text ends, as it does within a step."""
        held = self._target.tokens
        return 0 < len(held) < len(text) and held == list(text[: len(held)])


class OtherModel(MiddleTier):
    """A model with a KV cache of its own: another one, or the target without some of its sub-blocks."""

    def __init__(self, cursor: Cursor, vocab: int | None) -> None:
        self._cursor, self._vocab = cursor, vocab

    def behind(self, text: Tokens) -> int:
        """Return the number of tokens that its KV cache lacks."""
        return max(len(text) - shared_prefix(self._cursor.tokens, text), 1)

    def read(self, text: Tokens, guesses: Tokens) -> Logits:
        """Read what the KV cache lacks, then the guesses."""
        return self._cursor.read([*text, *guesses[:-1]], len(guesses))[:, : self._vocab]


def middle_tier(name: str, target: Cursor, model: DraftModel | None) -> MiddleTier:
    """Return the tier that the option `middle` names; raises BadValue for one that the target lacks."""
    if model is not None:
        return OtherModel(Cursor(model.engine.session()), model.vocab)
    session = target.session
    if name.isdigit() and isinstance(session, EarlyExit):
        return FirstLayers(target, session)
    if skip_mask.is_mask(name) and isinstance(session, ReducibleSession):
        return OtherModel(Cursor(session.reduced(name)), None)
    raise BadValue(
        f"The target has no middle tier `{name}`",
        "Choose an engine that has it: `localspec parts engines`, or name a model",
    )
