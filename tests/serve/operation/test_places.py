"""The places of a model: which one a request gets, and what the free ones keep."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from localspec.core.cursor import Cursor
from localspec.engines.toy import Toy
from localspec.serve.pool import Served


class Place:
    """A runtime of the toy, as far as a place needs one."""

    def __init__(self, tokens: list[int]) -> None:
        self.engine = Toy(context=100)
        self.target = Cursor(self.engine.session())
        self.target.read(tokens, rows=0)

    def drop_text(self) -> None:
        self.target.read([], rows=0)


@pytest.fixture
def served() -> Iterator[Any]:
    places: Any = [Place([1] * 40), Place([1, 2, 3, *[2] * 30]), Place([1, 2])]
    found = Served("toy", places, 1, threading.Event())
    yield found
    found.close()


def held(served: Any) -> list[int]:
    return [len(place.target.tokens) for place in served._free]


def test_a_request_takes_the_place_that_holds_most_of_its_prompt(served: Any) -> None:
    assert served._take([1, 2, 3, 4]).target.tokens[:3] == [1, 2, 3]
    assert served._take([1, 1, 4]).target.tokens[:2] == [1, 1]
    assert served._take([5]).target.tokens == [1, 2]


def test_a_new_prompt_takes_the_place_that_was_used_least_recently(served: Any) -> None:
    first = served._take([5])
    served._give_back(first)
    assert served._take([5]) is not first


def test_free_places_keep_as_many_tokens_as_one_text_may_have(served: Any) -> None:
    last = served._take([1, 2])
    last.target.read([1, 2, *[3] * 60], rows=0)
    assert held(served) == [40, 2]
    served._give_back(last)  # 104 of 100 tokens
    assert held(served) == [0, 2, 62]
