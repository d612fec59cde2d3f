"""The checks of a session: they believe what it does, not what it says."""

from __future__ import annotations

import numpy as np
import pytest

from localspec.core.contracts import Session
from localspec.core.rewind_check import rewind_fault, width_fault
from localspec.core.types import Logits, Tokens
from localspec.engines.toy import Toy

VOCAB = 32


def toy(block_size: int = 1) -> Session:
    return Toy(vocab_size=VOCAB, block_size=block_size).session()


class Forgetful(Session):
    """Says that it rewinds and keeps some of what it was to forget."""

    def __init__(self, kept: int) -> None:
        self._inner = toy()
        self._kept = kept
        self._length = 0

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        self._length += len(tokens)
        return self._inner.forward(tokens, rows)

    def rewind(self, length: int) -> int:
        if length:
            self._inner.rewind(min(length + self._kept, self._length))
        else:
            self._inner.rewind(0)
        self._length = min(length, self._length)
        return self._length


class Blurred(Session):
    """Rows that differ a little each time, as sums in another order do."""

    def __init__(self, blur: float) -> None:
        self._inner = toy()
        self._blur = blur
        self._noise = np.random.default_rng(0)

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        found = self._inner.forward(tokens, rows)
        noise = self._noise.uniform(-self._blur, self._blur, found.shape)
        blurred: Logits = (found + noise).astype(np.float32)
        return blurred

    def rewind(self, length: int) -> int:
        return self._inner.rewind(length)


@pytest.mark.parametrize("kept", [12, 100])
@pytest.mark.parametrize("block_size", [1, 8])
def test_a_true_rewind_holds(block_size: int, kept: int) -> None:
    session = toy(block_size)
    session.forward([1, 2, 3], 0)
    assert rewind_fault(session, VOCAB, kept) is None
    assert session.rewind(5) == 0  # it is left empty


def test_a_state_that_cannot_be_taken_back_is_said_so() -> None:
    assert rewind_fault(toy(block_size=0), VOCAB) == "its state cannot be rewound"


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_a_trace_is_seen(kept: int) -> None:
    told = rewind_fault(Forgetful(kept), VOCAB)
    assert told is not None
    assert told.startswith("a rewind changes its logits")


def test_rounding_is_no_trace() -> None:
    assert rewind_fault(Blurred(1e-3), VOCAB) is None
    assert rewind_fault(Blurred(0.5), VOCAB) is not None


class Uneven(Session):
    """Gives other logits in passes of one width."""

    def __init__(self, width: int) -> None:
        self._inner = toy()
        self._width = width

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        logits = self._inner.forward(tokens, rows)
        return logits + np.float32(0.25) if len(tokens) == self._width else logits

    def rewind(self, length: int) -> int:
        return self._inner.rewind(length)


@pytest.mark.parametrize("block_size", [1, 8])
def test_equal_logits_have_no_fault(block_size: int) -> None:
    session = toy(block_size)
    assert width_fault(session, VOCAB) is None
    assert session.rewind(99) == 0


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8])
def test_a_width_with_other_logits_is_named(width: int) -> None:
    assert width_fault(Uneven(width), VOCAB) == f"a pass over {width} changes logits by 0.25"
