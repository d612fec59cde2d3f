"""Copies of what was said earlier in a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec import plugins
from localspec.core.contracts import Drafter
from localspec.core.decode import make_draft
from localspec.core.sampler import Sampling
from localspec.core.types import Candidate, Guess, LazyGuess, Verdict
from localspec.speech import transcriber
from localspec.speech.transcriber import Request, Transcriber
from localspec.speech.types import RATE, Window
from localspec.speech.whisper.copies import COPIES, SpeechCopies, earlier_texts
from localspec.speech.whisper.decoding import Decoded, WindowDecoder
from localspec.speech.whisper.drafting import Drafting
from localspec.speech.whisper.model import SpeechModel
from localspec.speech.whisper.rules import SpeechSampler
from localspec.speech.whisper.vocabulary import SpeechTokens

TOKENS = SpeechTokens(
    start=51, end=50, no_timestamps=60, languages={"en": 52}, tasks={"transcribe": 55}, suppressed=(9,),
    alignment_heads=(),
)  # fmt: skip
PROMPT = TOKENS.prompt("en", "transcribe")
TARGET: Any = SimpleNamespace()
NOISE = np.random.default_rng(0).normal(size=20 * RATE).astype(np.float32) / 10


def at(seconds: float) -> int:
    return TOKENS.first_time + round(seconds / 0.02)


class Other(Drafter):
    """Offers what it is told to, whatever the text is; keeps the texts that it was asked about."""

    def __init__(self, *candidates: Candidate) -> None:
        self.candidates, self.asked = candidates, list[list[int]]()

    def propose(self, tokens: Sequence[int], sampler: Any) -> Iterator[Candidate]:
        self.asked.append(list(tokens[len(PROMPT) :]))
        yield from self.candidates


def copying(*answers: list[int], other: Drafter | None = None) -> SpeechCopies:
    """Return a drafter that has seen answers, and begins another one."""
    found = SpeechCopies(
        TOKENS, earlier_texts(TARGET), other or plugins.parse("drafters", "none").make(TARGET)
    )
    for answer in answers:
        found.begin(PROMPT)
        found.observe([*PROMPT, *answer[:-1]], np.zeros((1, 1), np.float32), Verdict(0, answer[-1]))
        found.end()
    found.begin(PROMPT)
    return found


def sampler() -> SpeechSampler:
    return SpeechSampler(TOKENS, Sampling(), answer_from=len(PROMPT))


def guessed(drafter: SpeechCopies, *answer: int, most: int = 5) -> list[int]:
    """Return the guesses after an answer, all of which the policy takes."""
    policy = plugins.parse("draft_length", f"fixed:tokens={most}").make()
    draft = make_draft([*PROMPT, *answer], drafter, policy, sampler(), most)
    return [guess.token for guess in draft.guesses]


def test_what_followed_the_same_words_in_an_earlier_window_follows_here() -> None:
    drafter = copying([at(0), 1, 2, 3, 4, 5, at(4), TOKENS.end])
    assert guessed(drafter, at(0.5), 7, 2, 3) == [4, 5]  # when the segment closes is not known


def test_a_window_may_begin_as_an_earlier_one() -> None:
    assert guessed(copying([at(0), 1, 2, 3]), most=3) == [at(0), 1, 2]


def test_a_segment_opens_as_long_after_the_one_before_as_earlier_ones() -> None:
    drafter = copying([at(0), 1, 2, at(4), at(4), 3, 4, at(6), at(6), 5])
    assert guessed(drafter, at(0), 8, at(9)) == [at(9), 5]
    drafter = copying([at(0), 1, 2, at(4), at(5), 3])
    assert guessed(drafter, at(0), 8, at(9)) == [at(10), 3]


def test_the_text_before_in_the_prompt_is_no_text_of_its_own() -> None:
    """It is in the earlier windows, with its times."""
    drafter = copying([at(0), 1, 2, 3])
    before = TOKENS.prompt("en", "transcribe", [4, 2, 6])
    drafter.begin(before)
    own = SpeechSampler(TOKENS, Sampling(), answer_from=len(before))
    first = next(drafter.propose([*before, at(0), 2], own))
    assert isinstance(first, Guess)
    assert first.token == 3


def test_what_was_cut_off_and_is_read_again_is_copied() -> None:
    drafter = copying([at(0), 1, 2, at(5), at(5), 3, 4, 5, 6, 7])  # cut off at its limit, read again from 5 s
    assert guessed(drafter, at(0), 3) == [4, 5, 6, 7]


def test_a_copy_that_the_rules_forbid_is_left_out() -> None:
    drafter = copying([at(0), 1, at(2), at(22), 3])  # a pause of 20 seconds
    assert guessed(drafter, at(0), 8, at(9)) == [at(29), 3]
    assert guessed(drafter, at(0), 8, at(11)) == []
    assert guessed(copying([at(2), 1, 2])) == []  # the first segment begins within the first second


def test_guesses_of_any_drafter_that_the_rules_forbid_are_left_out() -> None:
    policy = plugins.parse("draft_length", "fixed:tokens=5").make()
    for guesses, left in (
        ([at(2), 3], [at(2)]),  # text after a segment has closed
        ([3, 9, 4], [3]),  # a token that never comes
        ([3, at(0.5)], [3]),  # a time that goes back
        ([3, TOKENS.start], [3]),
        ([3, 4, at(2), at(2), 5], [3, 4, at(2), at(2), 5]),
    ):
        other = Other(*(Guess(token) for token in guesses))
        draft = make_draft([*PROMPT, at(1), 1], other, policy, sampler(), 5)
        assert [guess.token for guess in draft.guesses] == left


@given(st.lists(st.integers(1, 8), max_size=5), st.integers(0, 3), st.integers(1, TOKENS.first_time + 1500))
def test_the_rules_allow_the_tokens_whose_logits_they_leave(words: list[int], times: int, token: int) -> None:
    answer = [[], [at(0.5), *words], [at(0.5), 3, *words, at(7)], [at(0.5), 3, at(7), at(8), *words]][times]
    row = np.where(np.arange(TOKENS.first_time + 1501) <= TOKENS.end, np.float32(20), np.float32(0))
    left = sampler().adjusted(row, [*PROMPT, *answer])
    assert sampler().allows(token, [*PROMPT, *answer]) == bool(left[token] > -np.inf)


def test_the_more_confident_guess_is_taken() -> None:
    other = Other(Guess(6, None, 0.05), Guess(7, None, 0.9))
    drafter = copying([at(0), 1, 2, 3, 4], other=other)
    text = [*PROMPT, at(0), 1, 2]
    found = list(islice(drafter.propose(text, sampler()), 2))
    assert [(guess.source, getattr(guess, "token", 0)) for guess in found] == [(COPIES, 3), (COPIES, 4)]
    assert other.asked == [[at(0), 1, 2], [at(0), 1, 2, 3]]  # it goes on from the copy
    other.candidates = (Guess(9, None, 0.9),)  # a token that never comes
    found = list(islice(drafter.propose(text, sampler()), 2))
    assert [guess.source for guess in found] == [COPIES, COPIES]
    other.candidates = (Guess(6, None, 0.9), Guess(7, None, 0.9))
    found = list(islice(drafter.propose(text, sampler()), 2))
    assert [guess.source for guess in found] == ["", ""]


def test_a_copy_comes_in_place_of_a_lazy_guess_that_is_declined() -> None:
    other = Other(LazyGuess(lambda: Guess(6), behind=3))
    drafter = copying([at(0), 1, 2, 3, 4], other=other)
    text = [*PROMPT, at(0), 1, 2]
    candidates = drafter.propose(text, sampler())
    first = next(candidates)
    assert isinstance(first, LazyGuess)
    assert first.instead is not None
    assert (first.behind, first.instead.token) == (3, 3)
    assert next(candidates) is first.instead
    assert other.asked[1:] == []
    second = next(candidates)
    assert isinstance(second, LazyGuess)
    assert other.asked[1:] == [[at(0), 1, 2, 3]]
    assert second.draw() == Guess(6)
    assert next(candidates, None) is None  # nothing follows 6, and the other drafter has no more


def decoded(model: SpeechModel, samples: Any, drafter: Drafter, temperature: float | None = 0.0) -> Decoded:
    """Return what a model says of samples; of all attempts without a temperature."""
    model.hear(model.encode(Window(0.0, samples)))
    decoder = WindowDecoder(
        model.cursor, model.tokenizer, model.tokens, plugins.parse("verifiers", "exact").make()
    )
    prompt, policy = model.tokens.prompt("en", "transcribe"), plugins.parse("draft_length", "fixed:tokens=6")
    if temperature is None:
        return decoder.decode(prompt, drafter, policy.make(), 0.0)
    return decoder.attempt(prompt, drafter, policy.make(), temperature=temperature)


def test_a_window_that_says_what_an_earlier_one_said_needs_few_passes(model: SpeechModel) -> None:
    none = plugins.parse("drafters", "none").make(model.cursor)
    texts = earlier_texts(model.cursor)
    for number, samples in enumerate((NOISE, NOISE[: 9 * RATE], NOISE)):
        plain = decoded(model, samples, none)
        found = decoded(model, samples, SpeechCopies(model.tokens, texts, none))
        assert (found.tokens, found.logprobs, found.text) == (plain.tokens, plain.logprobs, plain.text)
        if number == 2:
            assert len(found.steps) < len(plain.steps) / 2
            assert sum(step.accepted for step in found.steps) > len(found.tokens) / 2
            assert {guess.source for step in found.steps for guess in step.draft} == {COPIES}


def test_attempts_at_other_temperatures_say_the_same_with_copies(model: SpeechModel) -> None:
    """The random model is unsure of all its tokens, so every temperature is tried."""
    none = plugins.parse("drafters", "none").make(model.cursor)
    plain = decoded(model, NOISE, none, None)
    found = decoded(model, NOISE, SpeechCopies(model.tokens, earlier_texts(model.cursor), none), None)
    assert (found.tokens, found.logprobs) == (plain.tokens, plain.logprobs)
    assert found.temperature == plain.temperature == 1.0
    assert sum(step.drafted for step in found.steps) > 0


def test_an_attempt_copies_from_the_one_before(model: SpeechModel) -> None:
    none = plugins.parse("drafters", "none").make(model.cursor)
    drafter = SpeechCopies(model.tokens, earlier_texts(model.cursor), none)
    first = decoded(model, NOISE, drafter)
    again = decoded(model, NOISE, drafter, 1e-6)
    assert again.tokens == first.tokens
    assert len(again.steps) < len(first.steps)


@pytest.fixture
def to(model: SpeechModel, monkeypatch: pytest.MonkeyPatch) -> Transcriber:
    """A transcriber of files whose two windows are the same noise; each draft has up to four guesses."""
    found = [Window(0.0, NOISE[: 9 * RATE]), Window(20.0, NOISE[: 9 * RATE])]
    monkeypatch.setattr(transcriber, "windows", lambda blocks, voices: iter(found))
    monkeypatch.setattr(transcriber, "blocks", lambda path: iter(()))
    monkeypatch.setattr(transcriber, "duration", lambda path: None)
    for size in ("SMALL", "LARGE"):
        monkeypatch.setattr(transcriber, size, ("fixed:tokens=4", 4))
    return Transcriber(Drafting(model, [], 0.0, copies_from=0.0))


def test_windows_of_a_file_share_their_texts_and_files_do_not(to: Transcriber) -> None:
    list(to.transcribe(Path("a"), Request("en")))
    first = to.stats
    assert set(first.sources) == {COPIES}
    assert (first.sources[COPIES].accepted, first.drafted_windows) == (first.accepted, 2)
    assert first.passes < first.tokens
    list(to.transcribe(Path("b"), Request("en")))
    assert (to.stats.passes, to.stats.accepted) == (first.passes, first.accepted)


def test_where_passes_are_short_there_are_no_copies(to: Transcriber) -> None:
    to.drafting.copies_from = 1e6
    list(to.transcribe(Path("a"), Request("en")))
    assert (to.stats.drafted, to.stats.passes, to.stats.sources) == (0, to.stats.tokens, {})
