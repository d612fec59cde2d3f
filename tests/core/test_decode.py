from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stats import Stats
from localspec.core.stop import OutputProcessor
from localspec.core.types import Branch, Guess, Logits, Step, Tokens, Verdict
from localspec.draft_length.fixed import Fixed
from localspec.drafters.draft_model import ModelDraft
from localspec.drafters.none import NoDraft
from localspec.engines.toy import Toy
from localspec.verifiers.exact import Exact

TOY = Toy()
Ask = Callable[..., Any]


class Silence:
    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Eager(Drafter):
    """Counts what was asked of it, and guesses 0 for ever."""

    def __init__(self) -> None:
        self.asked = 0

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        while True:
            self.asked += 1
            yield Guess(0)


def perfect(target: Cursor) -> ModelDraft:
    return ModelDraft(target, DraftModel(TOY), name="toy")


def test_plain_decoding_takes_a_pass_a_token(ask: Ask) -> None:
    answer = ask(Cursor(TOY.session()))
    assert [len(found.tokens) for found in answer.steps] == [1] * 24
    assert answer.text == "".join(f"{token}." for token in answer.tokens)
    assert {found.drafted for found in answer.steps} == {0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("guesses", "room", "passes"), [(4, 20, 4), (4, 21, 5), (1, 24, 12), (3, 3, 1), (9, 1, 1)]
)
def test_a_perfect_drafter_saves_the_passes_it_should(
    ask: Ask, temperature: float, guesses: int, room: int, passes: int
) -> None:
    target = Cursor(TOY.session())
    sampling = Sampling(temperature=temperature)
    answer = ask(target, perfect(target), Fixed(tokens=guesses), room=room, sampling=sampling)
    assert len(answer.steps) == passes
    assert answer.tokens == ask(target, room=room, sampling=sampling).tokens
    assert all(found.accepted == found.drafted for found in answer.steps)


def test_rounds_add_up(ask: Ask) -> None:
    target = Cursor(TOY.session())
    answer = ask(target, ModelDraft(target, DraftModel(Toy(noise=0.7)), name="toy"))
    stats = Stats()
    for found in answer.steps:
        assert len(found.tokens) == found.accepted + 1
        assert 0 <= found.accepted <= found.drafted <= 4
        assert min(found.draft_seconds, found.target_seconds) >= 0
        stats.add(found)
    assert stats.tokens == 24
    assert 0 < stats.accepted < stats.drafted
    assert stats.tokens_per_pass > 1
    assert target.tokens[8 : 8 + 23] == answer.tokens[:-1]


def test_no_more_is_drafted_than_there_is_room_for(ask: Ask) -> None:
    drafter = Eager()
    ask(Cursor(TOY.session()), drafter, Fixed(tokens=50), room=1)
    assert drafter.asked == 0
    answer = ask(Cursor(TOY.session()), drafter, Fixed(tokens=50), room=3)
    assert answer.steps[0].drafted == 2


@pytest.mark.parametrize("guesses", [0, 1, 5])
def test_finish_reasons(ask: Ask, guesses: int) -> None:
    target = Cursor(TOY.session())
    plain = ask(target, room=12).tokens
    ended = ask(target, perfect(target), Fixed(tokens=guesses), stop_tokens=[plain[6]])
    first = plain.index(plain[6])
    assert (ended.finish, ended.tokens) == ("stop", plain[: first + 1])
    assert ended.text == "".join(f"{token}." for token in plain[:first])
    word = f".{plain[4]}.{plain[5]}."
    said = ask(target, perfect(target), Fixed(tokens=guesses), stop=[word])
    assert (said.finish, said.tokens) == ("stop", plain[:6])
    assert said.text + word == "".join(f"{token}." for token in plain[:6])
    full = ask(target, perfect(target), Fixed(tokens=guesses), room=12)
    assert (full.finish, full.tokens) == ("length", plain)
    assert [found.finish for found in full.steps[:-1]] == [None] * (len(full.steps) - 1)


def test_a_round_cut_at_a_stop_counts_no_guess_behind_it(ask: Ask) -> None:
    target = Cursor(TOY.session())
    plain = ask(target).tokens
    first = plain.index(plain[2])
    answer = ask(target, perfect(target), Fixed(tokens=8), stop_tokens=[plain[2]])
    assert answer.steps[-1].accepted == first + 1 == len(answer.steps[-1].tokens)


@pytest.mark.parametrize("read", [0, 1, 3])
def test_an_answer_left_early_leaves_the_cursor_good_for_another(ask: Ask, read: int) -> None:
    target = Cursor(TOY.session())
    drafter = perfect(target)
    steps = decode(
        [1, 2, 3],
        target,
        drafter,
        Fixed(tokens=2),
        Exact(),
        Sampler(Sampling()),
        OutputProcessor(Silence(), max_new_tokens=50),
    )
    for _ in range(read):
        next(steps)
    steps.close()
    fresh = Cursor(TOY.session())
    assert ask(target, drafter).tokens == ask(fresh, NoDraft(fresh)).tokens


def test_an_interrupted_drafter_is_good_for_another_answer(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Cursor(TOY.session())
    drafter = perfect(target)
    with monkeypatch.context() as patch:
        patch.setattr(target, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(target, drafter)
    assert ask(target, drafter).tokens == ask(target).tokens


class Noting(Eager):
    """Notes when an answer begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def begin(self, prompt: Tokens) -> None:
        self.events.append(f"begin after {len(prompt)}")

    def end(self) -> None:
        self.events.append("end")


class NotingPolicy(Fixed):
    """Notes the same, and each step."""

    def __init__(self) -> None:
        super().__init__(tokens=2)
        self.events: list[str] = []

    def begin(self, prompt: Tokens) -> None:
        self.events.append(f"begin after {len(prompt)}")

    def learn(self, last: Step) -> None:
        self.events.append(f"learn {last.drafted}")
        assert [proposal.taken for proposal in last.proposals].count(True) == last.drafted

    def end(self) -> None:
        self.events.append("end")


@pytest.mark.parametrize("how", ["finished", "left", "interrupted"])
def test_every_answer_begins_and_ends_once(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, drafter, policy = Cursor(TOY.session()), Noting(), NotingPolicy()
    processor = OutputProcessor(Silence(), max_new_tokens=3)
    steps = decode([1, 2, 3], target, drafter, policy, Exact(), Sampler(Sampling()), processor)
    if how == "finished":
        assert list(steps)[-1].finish == "length"
    elif how == "left":
        next(steps)
        steps.close()
    else:
        monkeypatch.setattr(target, "read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(steps)
    assert drafter.events == ["begin after 3", "end"]
    assert (policy.events[0], policy.events[-1]) == ("begin after 3", "end")
    assert all(event.startswith("learn") for event in policy.events[1:-1])


def interrupted(tokens: Tokens, rows: int = 1, branches: Sequence[Branch] = ()) -> None:
    raise KeyboardInterrupt


class Watcher(Eager):
    """Keeps what it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[list[int], Logits]] = []

    def observe(self, tokens: Tokens, rows: Logits, verdict: Verdict) -> None:
        self.seen.append((list(tokens), rows.copy()))


@pytest.mark.parametrize("guesses", [0, 3])
def test_a_drafter_sees_every_checked_row_once_a_round(ask: Ask, guesses: int) -> None:
    drafter = Watcher()
    answer = ask(Cursor(TOY.session()), drafter, Fixed(tokens=guesses), prompt=[1, 2, 3])
    assert len(drafter.seen) == len(answer.steps)
    told = [1, 2, 3]
    for (tokens, rows), last in zip(drafter.seen, answer.steps, strict=True):
        assert tokens == told + [0] * last.drafted
        assert len(rows) == last.drafted + 1
        assert np.array_equal(rows, TOY.session().forward(tokens, len(rows)))
        told += last.tokens


def test_what_observing_costs_is_the_drafts_cost(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter = Watcher()
    monkeypatch.setattr("localspec.core.decode.perf_counter", lambda: float(len(drafter.seen)))
    answer = ask(Cursor(TOY.session()), drafter, room=3)
    assert {(found.draft_seconds, found.target_seconds) for found in answer.steps} == {(1.0, 0.0)}
