from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess, Tokens, Verdict, shared_prefix
from localspec.draft_length.fixed import Fixed
from localspec.drafters.suffix.automaton import LATER, Automaton, Texts
from localspec.drafters.suffix.drafter import DOUBT, SuffixDraft
from localspec.engines.toy import Toy
from localspec.errors import BadValue
from localspec.state.answers import Store

TARGET = Cursor(Toy().session())
SAMPLER = Sampler(Sampling())
WIDTH = 100

token = st.integers(0, 2)
edits = st.lists(st.tuples(st.integers(0, 40), st.lists(token, max_size=20)), max_size=8)


class Naive:
    """Keeps each token with all that stood before it, and looks through all of them."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.seen: list[tuple[list[int], int]] = []

    def follow(self, tokens: list[int]) -> None:
        same = shared_prefix(self.text, tokens)
        self.seen += [(tokens[:at], tokens[at]) for at in range(same, len(tokens))]
        self.text = tokens

    def after(self, end: list[int]) -> list[int]:
        """Return the tokens that followed `end`, the latest last."""
        return [token for before, token in self.seen if before[max(0, len(before) - len(end)) :] == end]

    def best(self, text: list[int], length: int) -> tuple[int, int, int, int] | None:
        """Return the longest match up to `length`, its best continuation, the count of that and of all."""
        for size in range(min(length, len(text)), 0, -1):
            if followed := self.after(text[len(text) - size :]):
                counts: Counter[int] = Counter()
                best = followed[0]
                for token in followed:
                    counts[token] += 1
                    best = token if LATER * counts[token] >= counts[best] else best
                return size, best, counts[best], len(followed)
        return None

    def guesses(self, reach: float, least: int) -> list[Guess]:
        found = self.best(self.text, len(self.text))
        guesses: list[Guess] = []
        text = [*self.text]
        most = max(1, int(reach * found[0])) if found else 0
        evidence = found[0] if found else 0
        while found and found[0] >= least and len(guesses) < most:
            size, token, count, total = found
            evidence = min(evidence, size)
            guesses.append(Guess(token, None, count / (total + DOUBT / evidence)))
            text.append(token)
            found = self.best(text, size + 1)
        return guesses


def guesses(drafter: SuffixDraft, text: Tokens, count: int = 60) -> list[Guess]:
    return list(islice(drafter.propose(text, SAMPLER), count))


def guessed(drafter: SuffixDraft, text: Tokens, count: int = 60) -> list[int]:
    return [guess.token for guess in guesses(drafter, text, count)]


@given(edits)
def test_the_longest_match_is_that_of_a_naive_scan_after_any_edits(
    edits: list[tuple[int, list[int]]],
) -> None:
    texts, naive = Texts(10_000), Naive()
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        state = texts.automaton.known(texts.follow(text))
        naive.follow(text)
        found = naive.best(text, len(text))
        assert texts.automaton.length[state] == (found[0] if found else 0)
        if found:
            edge = texts.automaton.best[state]
            assert (texts.automaton.token[edge], texts.automaton.count[edge]) == found[1:3]
            assert texts.automaton.total[state] == found[3]


@given(st.sampled_from([0.5, 1.0, 3.0]), st.integers(1, 3), edits)
def test_guesses_are_those_of_a_naive_scan_after_any_edits(
    reach: float, least: int, edits: list[tuple[int, list[int]]]
) -> None:
    drafter, naive = SuffixDraft(TARGET, min_match=least, reach=reach), Naive()
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        naive.follow(text)
        found, expected = guesses(drafter, text, 200), naive.guesses(reach, least)
        assert [guess.token for guess in found] == [guess.token for guess in expected]
        assert [guess.confidence for guess in found] == pytest.approx(
            [guess.confidence for guess in expected]
        )


@settings(max_examples=60)
@given(edits, st.integers(8, 40))
def test_no_more_tokens_are_held_than_allowed(edits: list[tuple[int, list[int]]], most: int) -> None:
    texts = Texts(most)
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        state = texts.follow(text)
        assert texts._held <= most
        assert sum(map(len, texts._earlier)) <= most
        held = texts.automaton.length[state]
        assert (held > 0) == (len(text) > 0)  # the state is still that of the text's end
        walked = 0
        for token in text[len(text) - held :]:
            walked = texts.automaton.target[texts.automaton.edge(walked, token)]
        assert walked == state


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([1, 2, 3], [], id="no match"),
        pytest.param([1, 2, 7, 8, 1, 2], [7, 8, 1, 2], id="twice the match and no more"),
        pytest.param([1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6], id="the latest of equals"),
        pytest.param([1, 2, 5, 1, 2, 5, 1, 2, 6, 1, 2], [6, 1, 2, 6], id="the latest unless it is rare"),
        pytest.param([*[1, 2, 5] * 4, 1, 2, 6, 1, 2], [5, 1, 2, 5], id="the much more frequent"),
        pytest.param([9, 1, 2, 5, 1, 2, 6, 1, 2, 6, 9, 1, 2], [5, 1, 2, 6, 1, 2], id="the longest first"),
        pytest.param([4, 4, 4], [4, 4, 4, 4], id="its period goes on"),
        pytest.param([1, 7, 1], [7, 1], id="a match of one"),
    ],
)
def test_examples(text: list[int], expected: list[int]) -> None:
    assert guessed(SuffixDraft(TARGET), text) == expected


def test_long_and_frequent_matches_are_surer() -> None:
    def sure(text: list[int]) -> float:
        return guesses(SuffixDraft(TARGET), text, 1)[0].confidence

    words = list(range(10, 30))
    short, long = sure([1, 2, 3, 1, 2]), sure([*words, 1, *words])
    often, doubtful = sure([1, 2, 3] * 9 + [5, 1, 2]), sure([1, 2, 3, 1, 2, 4, 1, 2])
    assert doubtful < short < often < 1
    assert short < 0.5 < 0.8 < long < 1


def test_earlier_turns_and_other_conversations_are_looked_in() -> None:
    drafter = SuffixDraft(TARGET)
    guessed(drafter, [1, 2, 3, 4, 5])
    assert guessed(drafter, [1, 2, 3, 4, 5, 8, 2, 3]) == [4, 5, 8, 2]  # the next turn
    assert guessed(drafter, [9, 9, 3, 4]) == [5, 8, 2, 3]  # another conversation
    assert guessed(drafter, [1, 2, 3, 4, 5], 3) == [8, 2, 3]  # back, and asked again


def test_an_expected_answer_is_copied_from_its_first_token_on() -> None:
    drafter = SuffixDraft(TARGET)
    prompt = [5, 6, 7, 8, 5, 6]
    drafter.expect(prompt, [40, 41, 42, 43, 44, 45, 46, 47])
    assert guessed(drafter, prompt, 8) == [40, 41, 42, 43, 44, 45, 46, 47]
    assert guessed(drafter, [*prompt, 40, 41, 99, 45, 46])[:1] == [47]
    assert guessed(drafter, [*prompt, 1]) == []  # harmless afterwards


def test_no_match_runs_from_one_text_into_another() -> None:
    drafter = SuffixDraft(TARGET, min_match=2)
    guessed(drafter, [1, 2, 3, 4])
    guessed(drafter, [5, 6, 7, 8])
    assert guessed(drafter, [9, 3, 4]) == []
    assert guessed(drafter, [0, 4, 5]) == []


def test_what_stood_behind_an_edit_is_an_earlier_text() -> None:
    drafter = SuffixDraft(TARGET)
    guessed(drafter, [1, 2, 3, 4, 5, 6])
    assert guessed(drafter, [1, 2, 3, 7, 3, 4]) == [5, 6]
    assert guessed(drafter, [1, 2, 3]) == [7, 3, 4, 5, 6]


def test_the_text_may_be_any_sequence_and_may_be_changed_by_its_owner() -> None:
    drafter = SuffixDraft(TARGET)
    text = [1, 2, 3, 1]
    guessed(drafter, tuple(text))
    guessed(drafter, text)
    text[1] = 9
    text.append(9)
    assert guessed(drafter, text, 2) == [3, 1]


def test_a_text_longer_than_the_bound_is_known_by_its_end() -> None:
    drafter = SuffixDraft(TARGET, max_tokens=1000)
    text = [*range(5000), 4998]
    assert guessed(drafter, [*text, *range(4900, 4910)])[:3] == [4910, 4911, 4912]
    assert guessed(drafter, [*text, 100, 101]) == []
    assert guessed(drafter, [*range(9), 4990, 4991]) == [4992, 4993, 4994, 4995]


@pytest.mark.parametrize("moment", [1, 3, 8])
def test_an_interrupt_leaves_it_right(monkeypatch: pytest.MonkeyPatch, moment: int) -> None:
    drafter, left = SuffixDraft(TARGET), [moment]
    plain = Automaton._count

    def interrupted(self: Automaton, last: int, token: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt
        plain(self, last, token)

    monkeypatch.setattr(Automaton, "_count", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        guessed(drafter, [1, 2, 1, 2, 1, 2, 3, 4])
    for text in ([1, 2, 3, 1, 2], [1, 2, 3], [4, 4, 4]):
        naive = Naive()
        naive.follow([1, 2, 3, 1, 2])
        naive.follow(text)
        assert guessed(drafter, text)[:1] == [guess.token for guess in naive.guesses(2.0, 2)][:1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_text_is_plain_text_and_guesses_stand(ask: Callable[..., Any], temperature: float) -> None:
    toy = Toy(vocab_size=6)
    sampling = Sampling(temperature=temperature)
    target = Cursor(toy.session())
    drafter = SuffixDraft(target)
    for prompt in ([1, 2, 3], [1, 2, 3], [1, 2]):
        found = ask(target, drafter, Fixed(tokens=4), prompt=prompt, room=60, sampling=sampling)
        assert found.tokens == ask(Cursor(toy.session()), prompt=prompt, room=60, sampling=sampling).tokens
    assert sum(last.accepted for last in found.steps) > 0


# the store


def opened(path: Path, *, width: int = WIDTH, vocabulary: str = "", **options: Any) -> SuffixDraft:
    """Return a drafter that has seen logits of `width`, after a prompt of one token."""
    session = Toy(vocab_size=width).session()
    session.vocabulary = vocabulary
    drafter = SuffixDraft(Cursor(session), store=str(path), **options)
    drafter.begin([0])
    drafter.observe([0], np.zeros((1, width), np.float32), Verdict(0, 0))
    return drafter


def answered(drafter: SuffixDraft, answer: list[int], width: int = WIDTH, prompt: int = 0) -> None:
    """Let the drafter see an answer, two tokens a step."""
    drafter.begin([prompt])
    for end in range(0, len(answer) + 1, 2):
        drafter.observe([prompt, *answer[:end], 0], np.zeros((2, width), np.float32), Verdict(0, 0))
    drafter.end()


def answers(path: Path) -> list[list[int]]:
    found: list[list[int]] = json.loads(path.read_text(encoding="utf-8"))["answers"]
    return found


def test_answers_are_kept_for_the_next_time_and_prompts_are_not(tmp_path: Path) -> None:
    path = tmp_path / "new" / "store"
    drafter = opened(path)
    answered(drafter, [1, 2, 3, 4, 5, 6], prompt=77)
    assert answers(path) == [[1, 2, 3, 4, 5, 6]]
    again = opened(path)
    assert (drafter.note, again.note) == (None, None)
    assert guessed(again, [9, 3, 4]) == [5, 6]
    assert guessed(again, [1, 77]) == []


def test_an_answer_is_written_when_it_ends(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "store")
    drafter.begin([0])
    for end in (0, 2, 4):
        drafter.observe([0, *range(end), 0], np.zeros((2, WIDTH), np.float32), Verdict(0, 0))
    assert not (tmp_path / "store").exists()
    drafter.end()
    assert answers(tmp_path / "store") == [[0, 1, 2, 3]]


def test_the_loop_tells_answers_from_prompts(ask: Callable[..., Any], tmp_path: Path) -> None:
    target = Cursor(Toy(vocab_size=6).session())
    drafter = SuffixDraft(target, store=str(tmp_path / "store"))
    first = ask(target, drafter, Fixed(tokens=2), prompt=[1, 2, 3], room=30)
    text = [1, 2, 3, *first.tokens, *[5] * 20]
    second = ask(target, drafter, Fixed(tokens=2), prompt=text, room=30)
    found = answers(tmp_path / "store")
    assert [len(answer) for answer in found] == [
        30 - len(answer.steps[-1].tokens) for answer in (first, second)
    ]
    assert found[0] == first.tokens[: len(found[0])]


def test_the_file_is_bounded_and_an_answer_is_kept_once(tmp_path: Path) -> None:
    drafter = opened(tmp_path / "store", max_stored=1000)
    words = [at % 90 for at in range(400)]
    for first in (91, 92, 93, 92):
        answered(drafter, [first, *words, 94])
    assert sum(map(len, answers(tmp_path / "store"))) <= 1000
    assert [found[0] for found in answers(tmp_path / "store")][1:] == [93, 92]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param('{"format":"localspec answers 1","vocab', id="cut off"),
        pytest.param(
            '{"format":"localspec answers 1","vocabulary":"","width":100,"answers":[[1,-2]]}', id="no token"
        ),
        pytest.param(
            '{"format":"localspec answers 7","vocabulary":"","width":100,"answers":[]}', id="another version"
        ),
        pytest.param('{"format":"localspec answers 1","vocabulary":"","width":100}', id="no answers"),
    ],
)
def test_a_damaged_file_is_begun_anew(tmp_path: Path, content: str) -> None:
    path = tmp_path / "store"
    path.write_text(content)
    drafter = opened(path)
    assert drafter.note == f"`{path}` was damaged and is started anew"
    answered(drafter, [1, 2, 3, 4])
    assert answers(path) == [[1, 2, 3, 4]]


def test_an_empty_file_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "store").touch()
    drafter = opened(tmp_path / "store")
    answered(drafter, [1, 2, 3, 4])
    assert drafter.note is None
    assert answers(tmp_path / "store") == [[1, 2, 3, 4]]


@pytest.mark.parametrize("content", [b"My thesis", b"\x00\xff" * 99, b'{"answers": []}'])
def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "thesis"
    path.write_bytes(content)
    drafter = opened(path)
    assert drafter.note == f"`{path}` is not a store of answers and was left alone"
    answered(drafter, [1, 2, 3, 4])
    assert guessed(drafter, [1, 2, 5, 1, 2], 1) == [5]
    assert path.read_bytes() == content


@pytest.mark.parametrize("other", [{"width": 50}, {"vocabulary": "beef"}])
def test_the_store_of_another_model_is_left_as_it_is(tmp_path: Path, other: dict[str, Any]) -> None:
    path = tmp_path / "store"
    answered(opened(path), [1, 2, 3, 4])
    drafter = opened(path, **other)
    assert drafter.note == f"`{path}` holds the answers of another model and was left alone"
    answered(drafter, [5, 6, 7, 8], other.get("width", WIDTH))
    assert guessed(drafter, [1, 2]) == []
    assert answers(path) == [[1, 2, 3, 4]]


def test_a_folder_is_refused_and_a_place_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="`store` of `suffix` is the folder"):
        SuffixDraft(TARGET, store=str(tmp_path))
    (tmp_path / "file").write_text("")
    drafter = opened(tmp_path / "file" / "store")
    answered(drafter, [1, 2, 3, 4])
    assert "store` cannot be " in (drafter.note or "")


WRITER = """
import sys
from pathlib import Path
from localspec.state.answers import Store
first = int(sys.argv[2])
for at in range(20):
    store = Store(Path(sys.argv[1]), 10_000)
    store.open(1000, "")
    store.begin(1)
    store.see([0, first + at])
    store.close()
    assert store.note is None, store.note
"""


def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "store"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(first)]) for first in (100, 200)
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    wanted = [[first + at] for first in (100, 200) for at in range(20)]
    assert sorted(answers(path)) == wanted
    assert list(tmp_path.glob("*.partial-*")) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from localspec.state.answers import Store
killed = getattr(signal, "SIGKILL", signal.SIGTERM)
os.fsync = lambda handle: os.kill(os.getpid(), killed)
store = Store(Path(sys.argv[1]), 10_000)
store.open(100, "")
store.begin(1)
store.see([0, 7])
store.close()
"""


def test_a_killed_writer_leaves_the_old_file_and_its_leftovers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "store"
    drafter = opened(path)
    answered(drafter, [1, 2, 3, 4])
    before = path.read_bytes()
    assert subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False).returncode != 0
    assert path.read_bytes() == before
    assert len(list(tmp_path.glob(".store.partial-*"))) == 1
    answered(drafter, [5, 6])
    assert answers(path) == [[1, 2, 3, 4], [5, 6]]
    assert list(tmp_path.glob(".store.partial-*")) == []


def test_a_store_that_is_busy_is_noted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from filelock import FileLock

    monkeypatch.setattr("localspec.state.answers.PATIENCE", 0.05)
    store = Store(tmp_path / "store", 1000)
    store.open(WIDTH, "")
    store.begin(1)
    store.see([0, 1, 2])
    with FileLock(tmp_path / ".store.lock"):
        store.close()
    assert store.note == f"`{tmp_path / 'store'}` is locked by another process"
    store.close()
    assert answers(tmp_path / "store") == [[1, 2]]
