"""A toy model without weights: a fake for tests, an example for readers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from localspec.core.contracts import (
    Engine,
    HeadSession,
    HiddenStates,
    HintedSession,
    LayerStates,
    PairSession,
    Read,
    Session,
    SharedPasses,
    TreeSession,
)
from localspec.core.sampler import Sampler, Sampling, at_quantile
from localspec.core.sessions import SplitSession
from localspec.core.types import Branch, Logits, Row, Tokens
from localspec.engines.toy.blocks import STATES, ToyBlockSession, next_state
from localspec.errors import ContextFull, no_such_layer, one_of
from localspec.plugins import Option

LAYERS = 4
WIDTH = 8  # of a hidden state


class Toy(Engine):
    """Writes tokens by a hash of the whole text, in numpy: no weights, no tokenizer.

    The logits are a fixed random row chosen by the hash of the text, so a wrong rewind shows at once. `noise`
    blurs them: a toy with noise is a draft for the one without. A rewind keeps multiples of `block_size`
    tokens: every position (1), each n-th (n), nothing (0). Its layers go from blurred logits to its own, so
    an early `exit` predicts them worse than a late one. With a `block` its last token is a mask, and it
    fills in blocks (blocks.py).
    """

    def __init__(
        self,
        model: Path | None = None,
        cache: Path | None = None,
        *,
        vocab_size: Annotated[int, Option("tokens in the vocabulary", least=2, most=200_000)] = 64,
        context: Annotated[int, Option("most tokens of a text", least=1, most=10_000_000)] = 4096,
        seed: Annotated[int, Option("which toy model", least=0, most=2**31)] = 0,
        noise: Annotated[float, Option("how far it is from the toy without noise", least=0, most=100)] = 0.0,
        block_size: Annotated[int, Option("what a rewind keeps: multiples of it, 0 nothing", least=0)] = 1,
        exit: Annotated[int, Option("the layer that a draft may leave at, 0 for none", least=0)] = 0,
        hidden: Annotated[bool, Option("show the last hidden states")] = False,
        taps: Annotated[str, Option("layers whose hidden states are shown, such as 1-2")] = "",
        head: Annotated[bool, Option("read the hidden states of a target")] = False,
        hints: Annotated[str, Option("read hints of tokens that are not known yet, empty for none")] = "",
        pairs: Annotated[str, Option("read the text in pairs, empty for single tokens")] = "",
        block: Annotated[int, Option("fill in blocks of so many masks, 0 for none", least=0, most=64)] = 0,
    ) -> None:
        del model, cache
        if exit >= LAYERS:
            raise no_such_layer(exit, LAYERS)
        one_of(exit=exit, hidden=hidden, taps=taps, head=head, block=block, hints=hints, pairs=pairs)
        self.vocab = vocab_size
        self.context = context
        self.block_size, self.block = block_size, block
        shape = (STATES, vocab_size)
        rows = np.random.default_rng(seed).normal(scale=2.0, size=shape)
        blur = np.random.default_rng(seed + 1).normal(scale=1.0, size=shape)
        self.table: Logits = (rows + noise * blur).astype(np.float32)
        blur = np.random.default_rng(seed + 2).normal(scale=1.0, size=shape)
        self.exits: Logits = (self.table + (1 - exit / LAYERS) * blur).astype(np.float32)
        self.states: Logits = np.random.default_rng(seed + 3).normal(size=(STATES, WIDTH)).astype(np.float32)
        extras: list[tuple[Callable[[Toy], Session], object]] = [
            (ToySplitSession, exit),
            (ToyHiddenSession, hidden),
            (ToyTappedSession, taps),
            (ToyHeadSession, head),
            (ToyHintedSession, hints),
            (ToyPairSession, pairs),
            (lambda toy: ToyBlockSession(toy.table, toy.context, toy.block), block),
        ]
        wanted = [made for made, asked in extras if asked]
        self._session = wanted[0] if wanted else ToySession

    def session(self) -> Session:
        """Return a new, empty session."""
        return self._session(self)

    def shared_passes(self, texts: int) -> SharedPasses | None:
        """Return sessions that are read in turn, as if in one pass; None where a session has an extra."""
        return ToySharedPasses(self) if self._session is ToySession else None


class ToySession(TreeSession):
    """Keeps the hash after each token."""

    def __init__(self, engine: Toy) -> None:
        self._engine = engine
        self._states = [1]

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        self.check(tokens)
        for token in tokens:
            self._states.append(next_state(self._states[-1], token))
        return self._engine.table[self._states[len(self._states) - rows :]]

    def forward_tree(self, tokens: Tokens, rows: int, branches: Sequence[Branch]) -> Logits:
        """Append `tokens` and return logits [rows + branches, vocab]."""
        self.check([*tokens, *(branch.token for branch in branches)])
        own = self.forward(tokens, rows)
        states = self._states[len(self._states) - rows :]
        for token, parent in branches:
            states.append(next_state(states[parent], token))
        return np.concatenate([own, self._engine.table[states[rows:]]])

    def check(self, tokens: Tokens) -> None:
        """Raise ContextFull if the context has no room for `tokens`."""
        length = len(self._states) - 1 + len(tokens)
        if length > self._engine.context:
            raise ContextFull(length, self._engine.context)

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens, down to a multiple of the engine's block_size."""
        block_size = self._engine.block_size
        if length < len(self._states) - 1:
            length = length // block_size * block_size if block_size else 0
            del self._states[length + 1 :]
        return len(self._states) - 1


class ToySharedPasses(SharedPasses):
    """Reads texts in turn."""

    def __init__(self, engine: Toy) -> None:
        self._engine = engine

    def session(self) -> Session:
        """Return a new, empty session."""
        return ToySession(self._engine)

    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        """Read the tokens of each text; a text that is too long leaves all unchanged."""
        found: list[Logits] = []
        for session, tokens, _, branches in reads:
            assert isinstance(session, ToySession)
            session.check([*tokens, *(branch.token for branch in branches)])
        for session, tokens, rows, branches in reads:
            assert isinstance(session, ToySession)
            found.append(session.forward_tree(tokens, rows, branches))
        return found


class ToyHiddenSession(ToySession, HiddenStates):
    """Keeps the hash after each token, and has a vector for each."""

    def hidden(self) -> Logits:
        """Return the hidden states [tokens, width]."""
        return self._engine.states[self._states[1:]]


class ToyTappedSession(ToySession, LayerStates):
    """Keeps the hash after each token, and shows it."""

    def states(self) -> Logits:
        """Return the hashes [tokens, 1]."""
        return np.array(self._states[1:], np.float32)[:, None]


class ToyHintedSession(ToySession, HintedSession):
    """Reads hints as the tokens that they stand for, which it looks up."""

    k = 4

    def __init__(self, engine: Toy) -> None:
        super().__init__(engine)
        self._hint: tuple[Callable[[int], float], float] | None = None
        self._count = self.k - 1
        self._hinted: Logits = np.empty((0, 0, engine.vocab), np.float32)

    def hint(self, noise: Callable[[int], float], temperature: float, count: int = 0) -> None:
        """Let the next pass that has rows read hints after each."""
        self._hint, self._count = (noise, temperature), count or self.k - 1

    def hinted(self) -> Logits:
        """Return the logits [rows, hints, vocab] after the hints of the last pass."""
        return self._hinted

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        found = super().forward(tokens, rows)
        if rows:
            asked, self._hint = self._hint, None
            count = len(self._states)
            read = [self._after(place, *asked) for place in range(count - rows, count)] if asked else []
            self._hinted = np.array(read, np.float32).reshape(len(read), self._count, self._engine.vocab)
        return found

    def _after(self, place: int, noise: Callable[[int], float], temperature: float) -> list[Row]:
        """Return rows [vocab] after the hints that follow a place of the text."""
        state, found = self._states[place], []
        for position in range(place, place + self._count):
            law = Sampler(Sampling(temperature)).distribution(self._engine.table[state], ())
            state = next_state(state, at_quantile(law, noise(position)))
            found.append(self._engine.table[state])
        return found


class ToyPairSession(ToySession, PairSession):
    """Is rather sure of the second token of each pair."""

    def confidence(self) -> float | None:
        """Return how sure it is after a text of an odd length."""
        return None if len(self._states) % 2 else 0.75


class ToyHeadSession(HeadSession):
    """Continues the hash of a target, as far as it was shown it, by a table of its own."""

    def __init__(self, engine: Toy) -> None:
        self.tokens = np.arange(engine.vocab)
        self._engine = engine
        self._led: list[int] = []
        self._states: list[int] = []  # the hash after each token

    def fuse(self, states: Logits) -> Logits:
        """Return the hashes [tokens, 1]."""
        return states

    def lead(self, states: Logits) -> None:
        """Let the next tokens continue these hashes."""
        self._led = states[:, 0].astype(int).tolist()

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        """Append `tokens` and return logits [rows, vocab]."""
        if (total := len(self._states) + len(tokens)) > self._engine.context:
            raise ContextFull(total, self._engine.context)
        self._states += [next_state(state, token) for state, token in zip(self._led, tokens, strict=True)]
        return self._engine.table[self._states[len(self._states) - rows :]]

    def own(self) -> Logits:
        """Return the hash after the last token."""
        return np.array(self._states[-1:], np.float32)[:, None]

    def rewind(self, length: int) -> int:
        """Keep at most `length` tokens."""
        del self._states[length:]
        return len(self._states)


class ToySplitSession(SplitSession):
    """Lets the first layers hash the text, and the rest only look rows up."""

    def __init__(self, engine: Toy) -> None:
        super().__init__(engine.context, engine.vocab)
        self._engine = engine
        self._states = [1]

    def _first(self, tokens: Tokens, at: int) -> Sequence[int]:
        del self._states[at + 1 :]
        for token in tokens:
            self._states.append(next_state(self._states[-1], token))
        return self._states[at + 1 :]

    def _rest(self, hidden: Sequence[int], at: int, rows: int) -> Logits:
        return self._engine.table[list(hidden[len(hidden) - rows :])]

    def _leave(self, hidden: Sequence[int]) -> Logits:
        return self._engine.exits[list(hidden)]

    def _kept(self, length: int) -> int:
        block_size = self._engine.block_size
        return length // block_size * block_size if block_size else 0
