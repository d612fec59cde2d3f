from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.contracts import Session
from localspec.core.cursor import Cursor
from localspec.core.types import Logits, Tokens, shared_prefix
from localspec.engines.toy import Toy
from localspec.errors import ContextFull

TOYS = {block_size: Toy(block_size=block_size) for block_size in (1, 8, 0)}

token = st.integers(0, 3)  # few different ones, so that edits often come back to what was read
grains = st.sampled_from(sorted(TOYS))
# a text is an earlier one cut to a length, and something new behind
edits = st.lists(st.tuples(st.integers(0, 40), st.lists(token, max_size=25), st.integers(0, 6)), max_size=12)


class Watched(Session):
    """A session that counts what it was asked, and is interrupted at the chosen events."""

    def __init__(self, inner: Session, interrupted: Iterable[int] = ()) -> None:
        self.inner = inner
        self.interrupted = set(interrupted)
        self.events = 0
        self.read: list[int] = []  # tokens of each forward

    def forward(self, tokens: Tokens, rows: int) -> Logits:
        self.event()
        if self.events in self.interrupted:  # in the middle: some tokens are in already
            self.inner.forward(tokens[: len(tokens) // 2], 0)
        self.event()
        logits = self.inner.forward(tokens, rows)
        self.event()
        self.read.append(len(tokens))
        return logits

    def rewind(self, length: int) -> int:
        self.event()
        kept = self.inner.rewind(length)
        self.event()
        return kept

    def event(self) -> None:
        self.events += 1
        if self.events - 1 in self.interrupted:
            raise KeyboardInterrupt


def texts(edits: Iterable[tuple[int, list[int], int]]) -> Iterable[tuple[list[int], int]]:
    text: list[int] = []
    for kept, added, rows in edits:
        text = text[:kept] + added
        yield text, min(rows, len(text))


def fresh(engine: Toy, text: Sequence[int], rows: int) -> Logits:
    return engine.session().forward(text, rows)


@given(grains, edits, st.integers(1, 12))
def test_an_edited_text_is_read_as_by_a_fresh_session(
    block_size: int, edits: list[tuple[int, list[int], int]], chunk: int
) -> None:
    engine = TOYS[block_size]
    cursor = Cursor(engine.session(), chunk)
    for text, rows in texts(edits):
        assert np.array_equal(cursor.read(text, rows), fresh(engine, text, rows))
        assert cursor.tokens == text


@given(grains, edits, st.integers(1, 12), st.sets(st.integers(0, 60), max_size=6))
def test_an_interrupt_anywhere_leaves_it_right(
    block_size: int, edits: list[tuple[int, list[int], int]], chunk: int, interrupted: set[int]
) -> None:
    engine = TOYS[block_size]
    cursor = Cursor(Watched(engine.session(), interrupted), chunk)
    for text, rows in texts(edits):
        try:
            logits = cursor.read(text, rows)
        except KeyboardInterrupt:
            continue
        assert np.array_equal(logits, fresh(engine, text, rows))
    cursor.session = cursor.session.inner  # type: ignore[attr-defined]
    text = [1, 2, *cursor.tokens[2:], 3]
    assert np.array_equal(cursor.read(text), fresh(engine, text, 1))


@pytest.mark.parametrize("events", [{4}, {5}, {6}, {7}, {6, 8}, {6, 9}])
def test_an_interrupted_edit_is_read_again(events: set[int]) -> None:
    session = Watched(TOYS[1].session(), events)
    cursor = Cursor(session)
    cursor.read([1, 2, 3, 1])  # events 0 to 2; the edit has 3 and 4 (rewind), 5 to 7, then 8 and 9
    with pytest.raises(KeyboardInterrupt):
        cursor.read([1, 2, 0, 0])
    session.interrupted.clear()
    assert np.array_equal(cursor.read([1, 2, 0, 0], 2), fresh(TOYS[1], [1, 2, 0, 0], 2))


def test_only_what_differs_is_read() -> None:
    session = Watched(TOYS[1].session())
    cursor = Cursor(session)
    for text in ([1, 2, 3, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 7], [1, 2, 3, 7]):
        cursor.read(text)
    assert session.read == [4, 2, 1, 1]


def test_a_long_text_is_read_in_pieces() -> None:
    session = Watched(TOYS[1].session())
    Cursor(session, chunk=8).read(list(range(20)), rows=3)
    assert session.read == [8, 8, 4]


@pytest.mark.parametrize("chunk", [2, 512])
def test_a_full_context_leaves_what_was_read(chunk: int) -> None:
    session = Watched(Toy(context=10).session())
    cursor = Cursor(session, chunk)
    text = list(range(9))
    cursor.read(text)
    with pytest.raises(ContextFull) as caught:
        cursor.read([*text, 1, 2, 3])
    assert caught.value.context == 10
    assert cursor.tokens[:9] == text
    session.read.clear()
    assert np.array_equal(cursor.read([*text, 4]), fresh(Toy(), [*text, 4], 1))
    assert session.read == [1]


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_shared_prefix_is_the_naive_one(left: list[int], right: list[int]) -> None:
    differing = (at for at, (one, other) in enumerate(zip(left, right, strict=False)) if one != other)
    assert shared_prefix(left, right) == next(differing, min(len(left), len(right)))


@given(st.lists(token, max_size=300), st.integers(0, 300))
def test_shared_prefix_of_texts_with_one_difference(text: list[int], at: int) -> None:
    other = [*text]
    if at < len(text):
        other[at] = 9
    assert shared_prefix(text, other) == min(at, len(text))
