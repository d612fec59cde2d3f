"""A session in two parts, on the toy: every token goes through the first layers once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.contracts import EarlyExit
from localspec.core.cursor import Cursor
from localspec.core.rewind_check import rewind_fault
from localspec.engines.toy import LAYERS, Toy
from localspec.errors import BadValue, ContextFull

WHOLE, SPLIT = Toy(), Toy(exit=2)
tokens = st.lists(st.integers(0, 63), min_size=1, max_size=6)


def opened(engine: Toy = SPLIT) -> Any:
    session = engine.session()
    assert isinstance(session, EarlyExit)
    return session


def counted(session: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the list that every pass of the session's first layers adds its tokens to."""
    seen: list[list[int]] = []
    first = session._first
    monkeypatch.setattr(session, "_first", lambda new, at: [seen.append(list(new)), first(new, at)][1])
    return seen


@given(st.lists(st.tuples(st.sampled_from(["read", "early", "rewind"]), tokens, st.integers(0, 30))))
def test_whatever_is_asked_the_rows_are_those_of_the_whole_model(
    steps: list[tuple[str, list[int], int]],
) -> None:
    session, text = opened(), []
    for what, new, length in steps:
        if what == "rewind":
            del text[length:]
            assert session.rewind(length) == len(text)
        elif what == "early":
            expected = opened().early([*text, *new], len(new))
            assert np.array_equal(session.early(new, len(new)), expected)
        else:
            text += new
            expected = WHOLE.session().forward(text, len(new))
            assert np.array_equal(session.forward(new, len(new)), expected)


def test_the_first_layers_read_each_token_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    session.forward([1, 2, 3], 0)
    seen = counted(session, monkeypatch)
    for draft in ([4], [4, 5], [4, 5, 6]):
        session.early(draft, 1)
    session.early([4, 5, 6], 3)
    session.forward([4, 5, 6, 7], 4)
    assert seen == [[4], [5], [6], [7]]


def test_guesses_that_are_dropped_are_read_anew_from_where_they_part(monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    seen = counted(session, monkeypatch)
    session.early([1, 2, 3], 1)
    session.early([1, 9], 1)
    session.forward([1], 1)
    session.forward([9, 8], 1)
    assert seen == [[1, 2, 3], [9], [8]]
    session.early([5], 1)
    assert session.rewind(2) == 2
    session.early([5], 1)
    assert seen[3:] == [[5], [5]]


@pytest.mark.parametrize("part", ["_first", "_rest", "_leave"])
def test_an_interrupt_leaves_no_trace(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session = opened()
    cursor = Cursor(session)
    cursor.read([1, 2, 3], 0)
    session.early([4, 5], 1)
    whole = getattr(session, part)

    def interrupted(*given: Any) -> Any:
        whole(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(session, part, interrupted)
        with pytest.raises(KeyboardInterrupt):
            cursor.read([1, 2, 3, 4, 9, 9], 3) if part == "_rest" else session.early([4, 9, 9], 1)
    assert np.array_equal(session.early([4, 5], 2), opened().early([1, 2, 3, 4, 5], 2))
    assert np.array_equal(cursor.read([1, 2, 3, 4, 5], 2), WHOLE.session().forward([1, 2, 3, 4, 5], 2))


def test_a_full_context_is_said_and_harms_nothing() -> None:
    session = opened(Toy(exit=1, context=4))
    session.forward([1, 2], 0)
    for ask in (session.early, session.forward):
        with pytest.raises(ContextFull, match="5 tokens .* holds 4"):
            ask([3, 4, 5], 1)
    assert session.early([3, 4], 0).shape == session.forward([], 0).shape == (0, 64)
    assert np.array_equal(session.forward([3, 4], 2), Toy().session().forward([1, 2, 3, 4], 2))


@pytest.mark.parametrize("block_size", [1, 8])
def test_its_rewind_holds(block_size: int) -> None:
    assert rewind_fault(opened(Toy(exit=1, block_size=block_size)), 64) is None


def test_an_exit_is_one_of_the_layers() -> None:
    assert not isinstance(Toy().session(), EarlyExit)
    for layer in (LAYERS, 99):
        with pytest.raises(
            BadValue, match=f"Cannot exit after layer {layer}: the model has 4 layers"
        ) as caught:
            Toy(exit=layer)
        assert caught.value.hint == "Choose one from 1 to 3"
