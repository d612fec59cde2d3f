"""Answers in several threads whose passes are shared."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import sleep
from types import SimpleNamespace
from typing import Any

import pytest

from localspec import plugins
from localspec.core.contracts import Read, Session, SharedPasses
from localspec.core.cursor import Cursor
from localspec.core.types import Logits
from localspec.drafters.hybrid import HybridDraft
from localspec.engines.toy import Toy
from localspec.errors import ContextFull
from localspec.runtime.generation import divided
from localspec.runtime.loading import LoadSpec
from localspec.runtime.shared_passes import DRAFT, TARGET, Passes, SharedEngine, shared_engines

TOY = Toy(vocab_size=6, context=200)
PROMPTS = [[1, 2, 3, 1, 2], [4, 4, 1], [5, 0, 5, 0, 5, 0, 1], [2]]


class Counted(SharedPasses):
    """Passes of the toy, counted by the number of texts in each."""

    def __init__(self) -> None:
        shared = TOY.shared_passes(4)
        assert shared is not None
        self.shared, self.texts = shared, list[int]()
        self.reading = threading.Lock()

    def session(self) -> Session:
        return self.shared.session()

    def forward(self, reads: Sequence[Read]) -> list[Logits]:
        assert self.reading.acquire(blocking=False), "two passes at once"
        try:
            self.texts.append(len(reads))
            sleep(0.001)  # without the GIL, as engines read
            return self.shared.forward(reads)
        finally:
            self.reading.release()


@pytest.fixture
def counted() -> Counted:
    return Counted()


def texts_of(counted: Counted, patience: float = TARGET, count: int = 4) -> list[SharedEngine]:
    passes = Passes(counted, patience)
    return [SharedEngine(TOY, passes) for _ in range(count)]


@pytest.mark.parametrize("draft_length", ["fixed:tokens=3", "adaptive"])
def test_texts_are_those_of_passes_of_their_own(
    ask: Callable[..., Any], counted: Counted, draft_length: str
) -> None:
    opened = threading.Barrier(4)

    def answer(engine: SharedEngine, prompt: list[int]) -> list[int]:
        target = Cursor(engine.session())
        opened.wait(timeout=30)
        policy = plugins.parse("draft_length", draft_length).make()
        found: list[int] = ask(target, HybridDraft(target), policy, prompt=prompt, room=60).tokens
        engine.leave()
        return found

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(answer, texts_of(counted, patience=1e4), PROMPTS))
    assert found == [ask(Cursor(TOY.session()), prompt=prompt, room=60).tokens for prompt in PROMPTS]
    assert counted.texts.count(4) > len(counted.texts) / 2


def test_a_pass_waits_for_the_text_that_is_away_and_not_for_one_that_has_ended(counted: Counted) -> None:
    here, away = texts_of(counted, patience=1e9, count=2)
    one, other = here.session(), away.session()
    other.forward([1], 1)  # it is open from now on
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.forward, [1, 2], 1)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=0.2)
        other.forward([3], 1)
        waiting.result(timeout=30)
        assert counted.texts == [1, 2]
        assert (one.company.texts, one.company.tokens) == (1, 1)
        assert (other.company.texts, other.company.tokens) == (1, 2)
        assert one.company.waited > 0.1 > other.company.waited
        waiting = pool.submit(one.forward, [1, 2], 1)
        away.leave()
        waiting.result(timeout=30)
    assert counted.texts == [1, 2, 1]
    assert one.company.texts == 0


def test_a_draft_that_takes_long_joins_a_later_pass(counted: Counted) -> None:
    here, away = texts_of(counted, patience=0.0, count=2)
    away.session().forward([1], 1)
    assert here.session().forward([1], 1).shape == (1, 6)
    assert counted.texts == [1, 1]


def test_a_read_that_fails_fails_alone(counted: Counted) -> None:
    engines = texts_of(counted, patience=1e9, count=2)
    sessions = [engine.session() for engine in engines]
    with ThreadPoolExecutor(2) as pool:
        sessions[0].forward([1], 1)
        engines[1].passes.opened(engines[1])
        fine = pool.submit(sessions[0].forward, [2, 3], 1)
        full = pool.submit(sessions[1].forward, [1] * 201, 1)
        with pytest.raises(ContextFull):
            full.result(timeout=30)
        expected = TOY.session()
        expected.forward([1], 1)
        assert (fine.result(timeout=30) == expected.forward([2, 3], 1)).all()
        again = pool.submit(sessions[1].forward, [1, 2], 2)
        sessions[0].forward([4], 1)
        assert again.result(timeout=30).shape == (2, 6)


def test_engines_share_what_they_can() -> None:
    target, draft = (
        LoadSpec(plugins.parse("engines", text), SimpleNamespace(folder="toy"))  # type: ignore[arg-type]
        for text in ("toy", "toy:noise=1")
    )
    assert shared_engines({target: TOY}, target, 1) == [{target: TOY}]
    hidden = Toy(hidden=True)
    assert shared_engines({target: hidden}, target, 3) == [{target: hidden}]
    found = shared_engines({target: TOY, draft: hidden}, target, 3)
    assert len(found) == 3
    assert all(isinstance(one[target], SharedEngine) and one[draft] is hidden for one in found)
    assert 0 < DRAFT < TARGET < 1


def test_a_text_that_comes_waits_for_one_pass_of_a_long_prompt(counted: Counted) -> None:
    here, comes = texts_of(counted, count=2)
    long, short = here.session(), comes.session()
    short.forward([1, 2, 3], 1)
    comes.leave()
    begun = threading.Event()

    def read() -> None:
        for _ in range(150):
            long.forward([1], 0)
            begun.set()

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        begun.wait(timeout=30)
        before = len(counted.texts)
        short.rewind(2)
        short.forward([4], 1)
        assert len(counted.texts) - before <= 4
        assert not reading.done()
        comes.leave()
        reading.result(timeout=30)


@pytest.mark.parametrize(
    ("spec", "searched"),
    [
        ("hybrid", 50_000),
        ("suffix:max_tokens=80000", 20_000),
        ("suffix:max_tokens=2000", 1000),
        ("ngram", None),
    ],
)
def test_texts_at_once_divide_what_their_drafts_search(spec: str, searched: int | None) -> None:
    drafter = plugins.parse("drafters", spec)
    assert divided(drafter, 4).get("max_tokens") == searched
    assert divided(drafter, 1) == drafter.options
