from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from scipy import stats as distributions  # type: ignore[import-untyped]

from localspec.core.contracts import DraftModel, TieredDrafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Guess, Tokens
from localspec.draft_length.fixed import Fixed
from localspec.drafters.cascade import CascadeDraft
from localspec.drafters.ngram import Ngram
from localspec.engines.toy import Toy
from localspec.verifiers.via import Via

Ask = Callable[..., Any]
WIDTH, PROMPT = 5, [3, 1, 4]
ANSWERS, LEAST = 3000, 1e-4
TARGET, MIDDLE, DRAFT = (Toy(vocab_size=WIDTH, seed=seed) for seed in (0, 4, 6))
WARM = Sampling(temperature=3.0)


class Told(TieredDrafter):
    """Stands for what it is told, by position."""

    def __init__(self, tiers: dict[int, str]) -> None:
        self.tiers = tiers

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess]:
        yield from ()

    def tier(self, position: int, token: int) -> str:
        return self.tiers.get(position, "")


def following(drafter: Any) -> Via:
    verifier = Via()
    verifier.follow(drafter)
    return verifier


def row_of(engine: Toy) -> Any:
    """Return the probabilities of the first token after PROMPT."""
    sampler = Sampler(WARM, answer_from=len(PROMPT))
    return sampler.distribution(engine.session().forward(PROMPT, 1)[0], PROMPT).probs


@pytest.mark.parametrize(("accept", "escalate"), [(0.6, 0.3), (0.9, 0.5), (0.5, 0.0), (1.0, 1.0)])
def test_the_law_is_that_of_the_paper(ask: Ask, accept: float, escalate: float) -> None:
    p, middle, q = (row_of(engine) for engine in (DRAFT, MIDDLE, TARGET))
    relative = middle / middle.max()
    kept, left = np.where(relative >= accept, p, 0), np.where(relative < escalate, p, 0).sum()
    law = kept + (1 - kept.sum() - left) * middle + left * q
    target = Cursor(TARGET.session())
    models = DraftModel(DRAFT, WIDTH), DraftModel(MIDDLE, WIDTH)
    drafter = CascadeDraft(target, *models, middle="toy", accept=accept, escalate=escalate)
    verifier, counts = following(drafter), np.zeros(WIDTH)
    for seed in range(ANSWERS):
        asked = {"prompt": PROMPT, "sampling": WARM, "seed": seed, "room": 2}
        counts[ask(target, drafter, Fixed(tokens=1), verifier, **asked).tokens[0]] += 1
    assert distributions.chisquare(counts, law * ANSWERS).pvalue > LEAST
    if escalate < 1:
        assert distributions.chisquare(counts, q * ANSWERS).pvalue < LEAST  # not the target's


def test_what_a_tier_stands_for_is_accepted_unseen_and_the_rest_verified() -> None:
    rows = np.eye(6, dtype=np.float32)[[1, 2, 3, 4]]  # the target's own tokens
    draft = [Guess(0, None, 0.5), Guess(2, None, 0.9), Guess(5, None, 0.9)]
    verifier = following(Told({2: "draft", 4: "middle"}))
    assert verifier.verify([7, 7], draft, rows, Sampler(Sampling())) == (3, 4)
    share = np.exp(0) / (5 + np.exp(1))
    tiers, overshoots = zip(*verifier.emitted, strict=True)
    assert tiers == ("draft", "full", "middle", "full")
    assert overshoots == pytest.approx((0.5 - share, 0, 0.9 - share, 0), abs=1e-6)
    unseen = following(Told({2: "draft"}))
    assert unseen.verify([7, 7], [*draft[:1], Guess(3), Guess(3)], rows, Sampler(Sampling())) == (1, 2)
    assert [one.tier for one in unseen.emitted] == ["draft", "full"]


def test_without_tiers_it_writes_plain_text(ask: Ask) -> None:
    target = Cursor(TARGET.session())
    drafter = Ngram(target)
    for sampling in (Sampling(), WARM):
        found = ask(target, drafter, verifier=following(drafter), sampling=sampling, seed=3, room=60)
        assert found.tokens == ask(target, sampling=sampling, seed=3, room=60).tokens


def test_its_greedy_text_is_that_of_the_published_loop(ask: Ask) -> None:
    def best(engine: Toy, text: list[int]) -> Any:
        return engine.session().forward(text, 1)[0]

    target = Cursor(TARGET.session())
    drafter = CascadeDraft(target, DraftModel(DRAFT, WIDTH), DraftModel(MIDDLE, WIDTH), middle="toy", block=1)
    found = ask(target, drafter, Fixed(tokens=1), following(drafter), prompt=PROMPT, room=60)
    text = list(PROMPT)
    for last in found.steps:
        for at, token in enumerate(last.tokens):
            row, guess = best(MIDDLE, text), int(best(DRAFT, text).argmax())
            relative = np.exp(row[guess] - row.max())
            tier = guess if relative >= 0.6 else int(row.argmax()) if relative >= 0.3 else None
            own = int(best(TARGET, text).argmax())
            unseen = at < len(last.tokens) - 1 and tier is not None
            assert token == (tier if unseen else own)
            text.append(token)
    plain = ask(Cursor(TARGET.session()), prompt=PROMPT, room=60).tokens
    assert found.tokens != plain
