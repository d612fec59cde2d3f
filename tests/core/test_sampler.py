from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from localspec.core.sampler import Constraint, Occurrences, Sampler, Sampling, at_quantile, top
from localspec.core.types import Distribution
from localspec.errors import BadValue, ModelError

TEXT = [1, 5, 5, 2, 7, 5, 2, 0, 7, 7]  # the answer begins at 4
DRAWS = 4000
LEAST = 1e-4  # p-value that a right sampler falls below once in 10,000 seeds; the seeds are fixed


def logits(size: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(scale=2.5, size=size).astype(np.float32)


def reference(row: NDArray[np.float32], settings: Sampling) -> NDArray[np.float64]:
    """Return probabilities [vocab] after TEXT as transformers makes them, one plain step after another."""
    scores = row.astype(np.float64)
    for token, bias in settings.logit_bias.items():
        scores[token] += bias
    for token in set(TEXT):
        penalty = settings.repetition_penalty
        scores[token] = scores[token] * penalty if scores[token] < 0 else scores[token] / penalty
    for token, count in Counter(TEXT[4:]).items():
        scores[token] -= settings.presence_penalty + settings.frequency_penalty * count
    scores /= settings.temperature
    if settings.top_k:
        scores[scores < np.sort(scores)[-min(settings.top_k, len(scores))]] = -np.inf
    ascending = np.argsort(scores)
    low = np.cumsum(softmax(scores)[ascending]) <= 1 - settings.top_p
    low[-1] = False
    scores[ascending[low]] = -np.inf
    probs = softmax(scores)
    scores[probs < settings.min_p * probs.max()] = -np.inf
    return softmax(scores)


def softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = np.exp(scores - scores.max())
    return weights / float(weights.sum())


def dense(found: Distribution, vocab: int) -> NDArray[np.float64]:
    probs = np.zeros(vocab)
    probs[found.tokens] = found.probs
    return probs


SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 3.0},
    {"top_k": 3},
    {"top_k": 10_000},
    {"top_p": 0.9},
    {"top_p": 0.3},
    {"top_p": 0.0},
    {"min_p": 0.2},
    {"min_p": 1.0},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"frequency_penalty": -0.5, "presence_penalty": 1.0, "repetition_penalty": 1.2},
    {"logit_bias": {3: 4.0, 5: -100.0}},
    {"logit_bias": {5: 3.0, 7: -2.0}, "repetition_penalty": 1.5},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.95, "repetition_penalty": 1.1, "logit_bias": {2: 1.0}},
]


@pytest.mark.parametrize("vocab", [9, 300])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_a_distribution_is_that_of_transformers(options: dict[str, Any], vocab: int) -> None:
    settings = Sampling(**{"temperature": 1.0, **options})
    for seed in range(5):
        row = logits(vocab, seed)
        kept = row.copy()
        found = Sampler(settings, answer_from=4).distribution(row, TEXT)
        assert np.allclose(dense(found, vocab), reference(row, settings), atol=1e-6)
        assert np.array_equal(row, kept)
        assert np.array_equal(found.tokens, np.unique(found.tokens))
        assert found.probs.dtype == np.float64
        assert found.probs.sum() == pytest.approx(1)


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 2.0, "top_k": 1}])
def test_a_greedy_one_has_one_token(options: dict[str, Any]) -> None:
    row = logits(300)
    sampler = Sampler(Sampling(**options, logit_bias={7: 100.0}))
    assert sampler.choose(row, TEXT) == 7
    assert dense(sampler.distribution(row, TEXT), 300)[7] == 1


def test_a_logit_of_minus_infinity_is_never_chosen() -> None:
    row = logits(8)
    row[:6] = -np.inf
    for options in ({}, {"top_p": 0.99}, {"top_k": 5}, {"min_p": 0.1}):
        sampler = Sampler(Sampling(temperature=1.0, **options))
        assert {sampler.choose(row, range(at)) for at in range(200)} == {6, 7}


LARGEST = np.finfo(np.float32).max
EDGE_ROWS = {
    "usual": logits(130),
    "ties": np.zeros(130, np.float32),
    "one": np.where(np.arange(130) == 77, np.float32(0), np.float32(-np.inf)),
    "some": np.where(np.arange(130) % 3 == 0, logits(130), np.float32(-np.inf)),
    "none": np.full(130, -np.inf, np.float32),
    "infinite": np.where(np.arange(130) == 5, np.float32(np.inf), logits(130)),
    "wide": np.where(np.arange(130) % 2 == 0, LARGEST, -LARGEST).astype(np.float32),
    "tiny": logits(130) * np.float32(1e-44),
}
EDGES = {
    "temperature": (0, 5e-324, 1e-45, 1e-38, 1e-8, 1, 100),
    "top_k": (0, 1, 7, 2**31),
    "top_p": (0, 5e-324, 0.5, 1 - 2**-53, 1),
    "min_p": (0, 5e-324, 1 - 2**-53, 1),
    "repetition_penalty": (0.01, 1, 100),
    "presence_penalty": (-100, 0, 100),
}


class Last(Constraint):
    def allowed(self, answer: Sequence[int]) -> NDArray[np.bool_]:
        return np.arange(130) == 129

    def forced(self, answer: Sequence[int]) -> list[int]:
        return []


@pytest.mark.parametrize("name", EDGE_ROWS)
def test_every_setting_at_its_limits_gives_a_token_of_the_model(name: str) -> None:
    """numpy's warnings are errors in tests."""
    row = EDGE_ROWS[name]
    for values in itertools.product(*EDGES.values()):
        settings = Sampling(**dict(zip(EDGES, values, strict=True)))
        sampler = Sampler(settings)
        token = sampler.choose(row, TEXT)
        found = sampler.distribution(row, TEXT)
        assert found.of(token) > 0
        assert found.probs.sum() == pytest.approx(1)
        assert row[token] > -np.inf or name == "none"
        assert name != "infinite" or token == 5
        assert found.of(sampler.draw(found)) > 0
        sampler.guess(row[:100], TEXT)
        sampler = Sampler(settings, constraint=Last())
        assert sampler.choose(row, TEXT) == 129
        assert sampler.guess(row[:100], TEXT).confidence == 0


@pytest.mark.parametrize("temperature", [5e-324, 1e-45, 1e-31, 1e-12])
def test_a_temperature_next_to_0_is_greedy(temperature: float) -> None:
    for seed in range(50):
        row = logits(1000, seed)
        assert Sampler(Sampling(temperature=temperature), seed=seed).choose(row, TEXT) == row.argmax()


@pytest.mark.parametrize("temperature", [0, 1e-45, 1])
def test_logits_that_are_no_numbers_are_an_error(temperature: float) -> None:
    row = np.where(np.arange(130) == 5, np.float32(np.nan), logits(130))
    with pytest.raises(ModelError, match="not numbers"):
        Sampler(Sampling(temperature=temperature)).choose(row, TEXT)


def test_a_bias_of_a_token_that_a_draft_lacks_is_left_out() -> None:
    sampler = Sampler(Sampling(logit_bias={129: 100.0}))
    assert sampler.choose(logits(130), TEXT) == 129
    assert sampler.guess(logits(130)[:100], TEXT).token == logits(130)[:100].argmax()


def test_the_distribution_knows_single_tokens() -> None:
    found = Distribution(np.array([2, 5]), np.array([0.25, 0.75]))
    assert [found.of(token) for token in (1, 2, 3, 5, 6)] == [0, 0.25, 0, 0.75, 0]


@given(
    st.lists(st.integers(-3, 3).map(float) | st.just(-np.inf), min_size=1, max_size=400), st.integers(1, 400)
)
def test_top_is_what_a_full_sort_gives(values: list[float], count: int) -> None:
    count = min(count, len(values))
    best = sorted(range(len(values)), key=lambda token: (-values[token], token))[:count]
    assert top(np.array(values, np.float32), count).tolist() == sorted(best)


@given(st.integers(0, 6), st.lists(st.tuples(st.integers(0, 20), st.lists(st.integers(0, 7), max_size=9))))
def test_occurrences_stay_in_step(start: int, edits: list[tuple[int, list[int]]]) -> None:
    occurrences = Occurrences(start)
    text: list[int] = []
    for kept, added in edits:
        text = text[:kept] + added
        tokens, counts = occurrences.of(text, 8)
        assert dict(zip(tokens.tolist(), counts.tolist(), strict=True)) == Counter(text[start:])


SHARES = np.array([0.3, 0.0, 0.25, 0.05, 0.1, 0.15, 0.1, 0.05])
EIGHT = Distribution(np.arange(8), SHARES)


def fits(drawn: list[int]) -> float:
    """Return the p-value of tokens drawn from EIGHT; those of probability 0 must not be among them."""
    counts = np.bincount(drawn, minlength=8)
    assert counts[1] == 0
    some = SHARES > 0
    return float(stats.chisquare(counts[some], SHARES[some] * len(drawn)).pvalue)


def coupled(seed: int, first: int = 0) -> list[int]:
    sampler = Sampler(Sampling(temperature=1.0), seed=seed)
    return [sampler.coupled_draw(EIGHT, first + at) for at in range(DRAWS)]


def together(left: list[int], right: list[int]) -> float:
    """Return the p-value of two rows of draws being independent."""
    table = np.zeros((8, 8))
    np.add.at(table, (left, right), 1)
    some = SHARES > 0
    return float(stats.chi2_contingency(table[np.ix_(some, some)]).pvalue)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63, 123_456_789])
def test_coupled_draws_follow_the_distribution(seed: int) -> None:
    assert fits(coupled(seed)) > LEAST


def test_coupled_draws_over_seeds_follow_it_too() -> None:
    draws = [Sampler(Sampling(temperature=1.0), seed=seed).coupled_draw(EIGHT, 5) for seed in range(DRAWS)]
    assert fits(draws) > LEAST


def test_draws_of_positions_and_seeds_are_independent() -> None:
    draws = coupled(0)
    assert together(draws[:-1], draws[1:]) > LEAST
    assert together(draws[:-7], draws[7:]) > LEAST
    assert together(draws, coupled(1)) > LEAST
    assert together(draws[1:], coupled(1)[:-1]) > LEAST


def test_quantiles_of_positions_follow_the_distribution_and_are_shared_by_drafts() -> None:
    row = logits(6)
    chosen, guessed = (
        [ask(Sampler(Sampling(1.0), seed=7, quantiles=True), [0] * at) for at in range(3000)]
        for ask in (
            lambda sampler, before: sampler.choose(row, before),
            lambda sampler, before: sampler.guess(row, before).token,
        )
    )
    assert chosen == guessed
    probs = softmax(row.astype(np.float64))
    counts = np.bincount(chosen, minlength=6)
    assert stats.chisquare(counts, probs * 3000).pvalue > LEAST
    assert chosen != [Sampler(Sampling(1.0), seed=7).choose(row, [0] * at) for at in range(3000)]


def test_the_token_at_a_quantile_is_in_the_order_of_the_vocabulary() -> None:
    law = Distribution(np.array([2, 5, 9]), np.array([0.2, 0.5, 0.3]))
    assert [at_quantile(law, at) for at in (0.0, 0.19, 0.21, 0.69, 0.71, 1 - 1e-16)] == [2, 2, 5, 5, 9, 9]


def test_choosing_depends_on_seed_and_position_alone() -> None:
    row = logits(50)
    one, other = (Sampler(Sampling(temperature=1.0), seed=3) for _ in range(2))
    for at in (9, 2, 5):
        other.draw(EIGHT)
        other.choose(row, range(at + 1))
        assert one.choose(row, range(at)) == other.choose(row, range(at))


def test_choices_follow_the_logits() -> None:
    row = np.log(np.where(SHARES > 0, SHARES, 1e-30)).astype(np.float32)
    sampler = Sampler(Sampling(temperature=1.0), seed=11)
    assert fits([sampler.choose(row, range(at)) for at in range(DRAWS)]) > LEAST


def test_fresh_draws_follow_the_distribution_and_differ() -> None:
    sampler = Sampler(Sampling(temperature=1.0), seed=5)
    draws = [sampler.draw(EIGHT) for _ in range(DRAWS)]
    assert fits(draws) > LEAST
    assert together(draws[:-1], draws[1:]) > LEAST


def test_a_coupled_guess_is_the_choice_and_a_fresh_one_is_drawn() -> None:
    row = logits(50)
    settings = Sampling(temperature=1.0, top_p=0.9)
    coupled, fresh = Sampler(settings, seed=1), Sampler(settings, seed=1, coupled=False)
    guesses = [coupled.guess(row, range(at)) for at in range(50)]
    assert [guess.token for guess in guesses] == [coupled.choose(row, range(at)) for at in range(50)]
    assert len({fresh.guess(row, TEXT).token for _ in range(50)}) > 1
    assert len({coupled.guess(row, TEXT).token for _ in range(50)}) == 1


@pytest.mark.parametrize("sampled", [True, False])
def test_the_confidence_is_the_probability_of_the_guess(sampled: bool) -> None:
    row = logits(50)
    guess = Sampler(Sampling(temperature=float(sampled))).guess(row, TEXT)
    assert guess.confidence == pytest.approx(softmax(row.astype(np.float64))[guess.token], rel=1e-5)
    if sampled:
        assert guess.probs is not None
        assert guess.probs.of(guess.token) == guess.confidence
    else:
        assert guess.probs is None
        assert guess.token == row.argmax()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_k", -1),
        ("top_p", 1.1),
        ("min_p", -0.5),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 101.0),
        ("frequency_penalty", -101.0),
    ],
)
def test_a_bad_setting_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(BadValue, match=f"`{name.replace('_', '-')}` is {value:g}") as caught:
        Sampling(**{name: value})  # type: ignore[arg-type]
    assert "from" in str(caught.value.hint)
