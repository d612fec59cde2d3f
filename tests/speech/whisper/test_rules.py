"""Whisper's rules of timestamps, and how sure it was."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from localspec.core.sampler import Sampling
from localspec.core.types import Row
from localspec.speech.whisper.rules import SpeechSampler
from localspec.speech.whisper.vocabulary import SpeechTokens

END, NO_TIMES = 50, 60
VOCAB = NO_TIMES + 1 + 1501
TOKENS = SpeechTokens(
    start=51,
    end=END,
    no_timestamps=NO_TIMES,
    languages={"en": 52, "de": 53},
    tasks={"translate": 54, "transcribe": 55},
    suppressed=(3, 4),
    alignment_heads=(),
)
PROMPT = TOKENS.prompt("en", "transcribe")


def at(seconds: float) -> int:
    return TOKENS.first_time + round(seconds / 0.02)


def allowed(answer: list[int], row: Row | None = None) -> set[int]:
    sampler = SpeechSampler(TOKENS, Sampling(), answer_from=len(PROMPT))
    row = np.zeros(VOCAB, np.float32) if row is None else row
    found: set[int] = set(np.flatnonzero(sampler.adjusted(row, [*PROMPT, *answer]) > -np.inf).tolist())
    return found


TEXT = set(range(END)) - {3, 4}
TEXT_ROW = np.where(np.arange(VOCAB) < END, np.float32(20), np.float32(0))  # text is likelier than all times


def test_an_answer_begins_with_a_time_within_the_first_second() -> None:
    assert allowed([]) == {at(step * 0.02) for step in range(51)}


def test_text_follows_the_first_time_and_nothing_special_ever_comes() -> None:
    assert allowed([at(0.2)], TEXT_ROW) == TEXT | {END}


def test_a_time_that_closes_a_segment_is_followed_by_one_no_earlier_or_the_end() -> None:
    row = np.where(np.arange(VOCAB) == END, np.float32(20), np.float32(0))
    following = allowed([at(0.2), 7, 8, at(2.0)], row)
    assert following == {END} | {at(2.0 + 0.02 * step) for step in range(1401)}


def test_two_times_are_followed_by_text() -> None:
    assert allowed([at(0), 7, at(2.0), at(2.0)], TEXT_ROW) == TEXT | {END}


def test_times_never_go_back_and_no_segment_is_empty() -> None:
    later = {at(2.02 + 0.02 * step) for step in range(1400)}
    assert allowed([at(0), 7, at(2.0), at(2.0), 8], TEXT_ROW) == TEXT | {END} | later


def test_a_time_comes_if_all_times_together_are_likelier_than_any_text() -> None:
    row = np.zeros(VOCAB, np.float32)
    row[7] = 6.0
    assert allowed([at(0), 8], row) & TEXT == set()  # 1,500 times against e^6
    row[7] = 8.0
    assert 7 in allowed([at(0), 8], row)


@given(st.lists(st.floats(-5, 5, width=32), min_size=20, max_size=20), st.integers(0, 2**31))
def test_log_probabilities_are_those_of_what_the_rules_leave(values: list[float], seed: int) -> None:
    row = np.zeros(VOCAB, np.float32)
    row[10:30] = np.array(values, np.float32) + 20
    sampler = SpeechSampler(TOKENS, Sampling(0.7), seed=seed, answer_from=len(PROMPT))
    before = [*PROMPT, at(0), 8]
    token = sampler.choose(row, before)
    left = sampler.adjusted(row, before).astype(np.float64)
    wanted = left[token] - left.max() - np.log(np.exp(left - left.max()).sum())
    assert sampler.logprobs == {len(before): pytest.approx(wanted, abs=1e-4)}


@pytest.mark.engines
def test_the_rules_are_those_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    from transformers import GenerationConfig
    from transformers.generation.logits_process import WhisperTimeStampLogitsProcessor

    config = GenerationConfig(
        eos_token_id=END, bos_token_id=END, no_timestamps_token_id=NO_TIMES, max_initial_timestamp_index=50
    )
    theirs = WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT))
    dice = np.random.default_rng(0)
    for answer in (
        [at(0)],
        [at(0), 7],
        [at(0), 7, at(1)],
        [at(0), 7, at(1), at(1)],
        [at(0), 7, at(1), at(1), 8],
    ):
        for _ in range(20):
            row = dice.normal(size=VOCAB).astype(np.float32) * 3
            row[[*TOKENS.never]] = -np.inf
            text = torch.tensor([[*PROMPT, *answer]])
            expected = theirs(text, torch.tensor(row[None]))[0].numpy()
            sampler = SpeechSampler(TOKENS, Sampling(), answer_from=len(PROMPT))
            np.testing.assert_array_equal(sampler.adjusted(row, [*PROMPT, *answer]), expected)
