from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess
from localspec.drafters.draft_model import ModelDraft
from localspec.drafters.ngram import Ngram
from localspec.engines.toy import Toy
from localspec.verifiers.exact import Exact

TOY = Toy()
DRAFTS = {"the same": TOY, "a near one": Toy(noise=0.5), "a far one": Toy(noise=5), "another": Toy(seed=7)}
SAMPLINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=2.0, top_k=9, min_p=0.05),
    Sampling(temperature=1.0, top_p=0.7, repetition_penalty=1.3, frequency_penalty=0.5),
]


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_sampled_text_is_plain_sampled_text(ask: Callable[..., Any], draft: str, sampling: Sampling) -> None:
    for seed in range(4):
        target = Cursor(TOY.session())
        drafter = ModelDraft(target, DraftModel(DRAFTS[draft]), name="toy")
        found = ask(target, drafter, verifier=Exact(), sampling=sampling, seed=seed, room=40)
        assert found.tokens == ask(target, sampling=sampling, seed=seed, room=40).tokens


def test_so_it_is_with_copied_guesses(ask: Callable[..., Any]) -> None:
    target = Cursor(Toy(vocab_size=3).session())
    sampling = Sampling(temperature=0.5)
    found = ask(target, Ngram(target), sampling=sampling, room=80, prompt=[0, 1, 2])
    assert found.tokens == ask(target, sampling=sampling, room=80, prompt=[0, 1, 2]).tokens
    assert any(0 < each.accepted < each.drafted for each in found.steps)


def test_the_first_guess_that_differs_ends_it() -> None:
    rows = np.eye(6, dtype=np.float32)[[1, 2, 3, 4]]
    greedy = Sampler(Sampling())
    for draft, expected in (([], (0, 1)), ([1, 2, 3], (3, 4)), ([1, 5, 3], (1, 2)), ([0, 2, 3], (0, 1))):
        guesses = [Guess(token) for token in draft]
        assert Exact().verify([0], guesses, rows[: len(draft) + 1], greedy) == expected


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0, 20.0])
def test_coupled_draws_agree_as_often_as_the_theorem_says(noise: float) -> None:
    sampler = Sampler(Sampling(temperature=1.0), seed=2)
    target, draft = Toy(vocab_size=12), Toy(vocab_size=12, noise=noise)
    agreed, least = 0, 0.0
    for at in range(2000):
        left, right = target.table[at % 500], draft.table[at % 500]
        p, q = (sampler.distribution(row, range(at)) for row in (left, right))
        distance = float(np.abs(p.probs - q.probs).sum()) / 2
        least += (1 - distance) / (1 + distance)
        agreed += sampler.guess(right, range(at)).token == sampler.choose(left, range(at))
    assert agreed > least - 3 * np.sqrt(2000) / 2  # three standard deviations at most
    assert agreed < 2000
