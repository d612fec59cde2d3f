from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.special import log_softmax

from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.types import Likelihood, Logits, Step, Tokens
from localspec.draft_length.fixed import Fixed
from localspec.drafters.none import NoDraft
from localspec.drafters.suffix.drafter import SuffixDraft
from localspec.engines.toy import Toy
from localspec.verifiers.exact import Exact

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1, 5]


def likelihoods(logits: Logits, tokens: Tokens, count: int | None) -> list[Likelihood]:
    return Sampler(Sampling(), alternatives=count).likelihoods(logits, tokens)


def test_they_are_the_log_softmax_of_the_logits() -> None:
    logits = np.random.default_rng(1).normal(0, 9, (3, 500)).astype(np.float32)
    right = log_softmax(logits.astype(np.float64), axis=1)
    found = likelihoods(logits, [7, 8, 9], 5)
    for row, token, one in zip(right, [7, 8, 9], found, strict=True):
        best = np.argsort(-row)[:5]
        assert one.logprob == pytest.approx(row[token], abs=1e-4)
        assert [each for each, _ in one.best] == best.tolist()
        assert [logprob for _, logprob in one.best] == pytest.approx(row[best], abs=1e-4)
    assert [one.best for one in likelihoods(logits, [7, 8, 9], 0)] == [(), (), ()]
    assert likelihoods(logits, [7, 8, 9], None) == []


def test_infinite_logits_have_finite_likelihoods_of_their_own() -> None:
    row = np.array([[np.inf, 0.0, np.inf, -np.inf]], np.float32)
    (found,) = likelihoods(row, [2], 1)
    assert found.logprob == pytest.approx(np.log(0.5))
    (found,) = likelihoods(np.array([[0.0, -np.inf, 500.0]], np.float32), [1], 2)
    assert found.logprob == -np.inf
    assert found.best[0] == (2, 0.0)


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.3}, {"logit_bias": {5: -100.0}}])
def test_drafts_change_no_likelihood(sampling: dict[str, Any]) -> None:
    def steps(drafter: Callable[[Cursor], Any]) -> list[Step]:
        target = Cursor(Toy().session())
        sampler = Sampler(Sampling(**sampling), seed=3, answer_from=len(PROMPT), alternatives=3)
        processor = OutputProcessor(Nothing(), max_new_tokens=40)
        return list(decode(PROMPT, target, drafter(target), Fixed(tokens=4), Exact(), sampler, processor))

    plain, drafted = steps(NoDraft), steps(SuffixDraft)
    assert len(drafted) < len(plain) == 40
    for found in (plain, drafted):
        assert all(len(step.tokens) == len(step.likelihoods) for step in found)
    told, again = ([one for step in found for one in step.likelihoods] for found in (plain, drafted))
    assert [one.logprob for one in told] == pytest.approx([one.logprob for one in again], abs=1e-5)
    assert [[each for each, _ in one.best] for one in told] == [
        [each for each, _ in one.best] for one in again
    ]


class Nothing:
    """Text of no tokens."""

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""
