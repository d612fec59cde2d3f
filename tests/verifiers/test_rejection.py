from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from localspec.core.contracts import Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Distribution, Guess, Tokens
from localspec.draft_length.confidence import Confidence
from localspec.draft_length.fixed import Fixed
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.toy import Toy
from localspec.verifiers.rejection import Rejection, residual

WIDTH = 5
TARGET = Toy(vocab_size=WIDTH)
PROMPT = [3, 1, 4]
ANSWERS = 1500
LEAST = 1e-4
Ask = Callable[..., Any]


class Copies(Drafter):
    """Guesses the same tokens always, as a point mass."""

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        yield from map(Guess, (4, 3, 0))


def joint(sampling: Sampling) -> NDArray[np.float64]:
    """Return the target's own probabilities [first, second] of the two tokens after PROMPT."""
    sampler = Sampler(sampling, answer_from=len(PROMPT))
    probs = np.zeros((WIDTH, WIDTH))
    first = sampler.distribution(TARGET.session().forward(PROMPT, 1)[0], PROMPT)
    for token, share in zip(first.tokens.tolist(), first.probs, strict=True):
        text = [*PROMPT, token]
        second = sampler.distribution(TARGET.session().forward(text, 1)[0], text)
        probs[token, second.tokens] = share * second.probs
    return probs


def fits(pairs: list[tuple[int, int]], probs: NDArray[np.float64]) -> float:
    """Return the p-value of `pairs` under `probs`; impossible ones must not occur."""
    counts = np.zeros_like(probs)
    np.add.at(counts, tuple(np.transpose(pairs)), 1)
    expected = probs * len(pairs)
    assert counts[expected == 0].sum() == 0
    rare = expected < 5  # counted together
    seen = [*counts[~rare], counts[rare].sum()]
    due = [*expected[~rare], expected[rare].sum()]
    if due[-1] == 0:
        seen, due = seen[:-1], due[:-1]
    return float(stats.chisquare(seen, due).pvalue)


SAMPLINGS = {
    "whole": Sampling(temperature=3.0),
    "top-p": Sampling(temperature=4.0, top_p=0.8),
    "top-k": Sampling(temperature=3.0, top_k=3),
    "penalties": Sampling(temperature=3.0, min_p=0.2, presence_penalty=1.0, repetition_penalty=1.3),
}
DRAFTERS: dict[str, Callable[[Cursor], Drafter]] = {
    "near": lambda target: ModelDraft(target, DraftModel(Toy(vocab_size=WIDTH, noise=0.5)), name="toy"),
    "another": lambda target: ModelDraft(target, DraftModel(Toy(vocab_size=WIDTH, seed=5)), name="toy"),
    "point mass": lambda target: Copies(),
}


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_text_keeps_the_distribution_of_the_target(ask: Ask, drafter: str, sampling: str) -> None:
    settings = SAMPLINGS[sampling]
    target = Cursor(TARGET.session())
    source = DRAFTERS[drafter](target)
    stood, pairs = 0, []
    for seed in range(ANSWERS):
        found = ask(
            target, source, Fixed(tokens=2), Rejection(), prompt=PROMPT, sampling=settings, seed=seed, room=3
        )
        pairs.append((found.tokens[0], found.tokens[1]))
        stood += found.steps[0].accepted
    assert fits(pairs, joint(settings)) > LEAST
    assert 0 < stood < 2 * ANSWERS


def test_stopping_at_a_doubtful_guess_changes_nothing(ask: Ask) -> None:
    settings, target = SAMPLINGS["whole"], Cursor(TARGET.session())
    source = DRAFTERS["another"](target)
    found = [
        ask(target, source, Confidence(), Rejection(), prompt=PROMPT, sampling=settings, seed=seed, room=3)
        for seed in range(ANSWERS)
    ]
    assert {answer.steps[0].drafted for answer in found} == {1, 2}
    assert fits([(answer.tokens[0], answer.tokens[1]) for answer in found], joint(settings)) > LEAST


def test_more_guesses_stand_than_by_agreement_and_as_many_as_the_distributions_share() -> None:
    sampler = Sampler(Sampling(temperature=1.0), seed=4, coupled=False)
    draft = Toy(vocab_size=WIDTH, noise=1.0)
    stood, expected = 0, 0.0
    for at in range(2000):
        row, rows = draft.table[at % 500], TARGET.table[[at % 500, 0]]
        guess = sampler.guess(row, [0])
        stood += Rejection().verify([0], [guess], rows, sampler).accepted
        assert guess.probs is not None
        expected += float(np.minimum(guess.probs.probs, sampler.distribution(rows[0], [0]).probs).sum())
    assert abs(stood - expected) < 4 * np.sqrt(2000) / 2


def test_greedy_answers_are_plain_ones(ask: Ask) -> None:
    target = Cursor(Toy().session())
    drafter = ModelDraft(target, DraftModel(Toy(noise=0.5)), name="toy")
    assert ask(target, drafter, verifier=Rejection()).tokens == ask(target).tokens


def distribution(**shares: float) -> Distribution:
    """Return a distribution from shares by token, as in `_3=0.5`."""
    return Distribution(np.array([int(name[1:]) for name in shares]), np.array(list(shares.values())))


@pytest.mark.parametrize(
    ("p", "q", "expected"),
    [
        pytest.param({"_1": 0.5, "_4": 0.5}, {"_1": 0.5, "_4": 0.5}, {"_1": 0.5, "_4": 0.5}, id="the same"),
        pytest.param({"_1": 0.5, "_4": 0.5}, {"_0": 0.5, "_9": 0.5}, {"_1": 0.5, "_4": 0.5}, id="apart"),
        pytest.param({"_1": 0.5, "_4": 0.5}, {"_1": 1.0}, {"_1": 0.0, "_4": 1.0}, id="a point mass"),
        pytest.param({"_1": 0.5, "_4": 0.5}, {"_7": 1.0}, {"_1": 0.5, "_4": 0.5}, id="one outside"),
        pytest.param(
            {"_2": 0.6, "_3": 0.4}, {"_2": 0.2, "_3": 0.3, "_5": 0.5}, {"_2": 0.8, "_3": 0.2}, id="q wider"
        ),
        pytest.param({"_0": 0.2, "_3": 0.8}, {"_3": 0.9, "_6": 0.1}, {"_0": 1.0, "_3": 0.0}, id="across"),
    ],
)
def test_residual(p: dict[str, float], q: dict[str, float], expected: dict[str, float]) -> None:
    found = residual(distribution(**p), distribution(**q))
    wanted = distribution(**expected)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    assert found.probs == pytest.approx(wanted.probs)
