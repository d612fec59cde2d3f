"""The trained toy of K-Forcing: what its hints tell, and that drafts with them are plain text."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import plugins
from localspec.core.contracts import HintedSession
from localspec.core.cursor import Cursor
from localspec.core.decode import decode, run_decoding
from localspec.core.sampler import Sampler, Sampling, at_quantile
from localspec.core.stop import OutputProcessor
from localspec.engines.torch import Torch
from localspec.errors import BadValue, BrokenModel, UnsupportedModel
from localspec.formats.k_forcing import layout

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

DATA = Path(__file__).parents[1] / "data" / "k_forcing"
HINTS = "k_forcing:name=toy"
WARM = Sampling(temperature=1.0)


class Silence:
    """Shows no text."""

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@cache
def engine(hints: bool) -> Torch:
    return Torch(DATA / "toy", device="cpu", threads=1, hints=str(DATA / "hints") if hints else "")


def answered(
    draft: str, verifier: str, sampling: Sampling, tokens: int, guesses: int = 3
) -> tuple[list[int], int]:
    """Return the tokens of some answers, and the passes that they took."""
    checked = plugins.parse("verifiers", verifier).make()
    target = Cursor(engine(draft != "none").session())
    drafter = plugins.parse("drafters", draft).make(target)
    found: list[int] = []
    passes = 0
    for seed in range(4):
        parts = plugins.parse("draft_length", f"fixed:tokens={guesses}").make(), checked
        sampler = Sampler(sampling, seed=seed, coupled=checked.coupled, quantiles=checked.quantiles)
        output = OutputProcessor(Silence(), max_new_tokens=tokens)
        steps = list(decode([1, 2, 3, seed], target, drafter, *parts, sampler, output))
        found += [token for step in steps for token in step.tokens]
        passes += len(steps)
    return found, passes


@pytest.mark.parametrize(
    ("verifier", "sampling", "least"),
    [("exact", Sampling(), 2.2), ("exact:noise=position", WARM, 1.4), ("exact", WARM, 1.05)],
    ids=["greedy", "quantiles", "noise of tokens"],
)
def test_a_draft_is_plain_text_in_fewer_passes(verifier: str, sampling: Sampling, least: float) -> None:
    plain, passes = answered("none", verifier, sampling, 120)
    drafted, fewer = answered(HINTS, verifier, sampling, 120)
    assert drafted == plain
    assert passes / fewer > least


def test_fewer_tokens_a_pass_and_short_drafts_are_plain_text_too() -> None:
    plain, passes = answered("none", "exact", Sampling(), 60)
    for draft, guesses in ((f"{HINTS},k=2", 3), (HINTS, 1)):
        drafted, fewer = answered(draft, "exact", Sampling(), 60, guesses)
        assert drafted == plain
        assert fewer < passes


def decoded(k: int, tokens: int, temperature: float, seed: int = 0) -> list[int]:
    spec = plugins.parse("decodings", f"{HINTS},k={k},temperature={temperature},seed={seed}")
    decoding = spec.make(Cursor(engine(True).session()))
    output = OutputProcessor(Silence(), max_new_tokens=tokens)
    return [token for step in run_decoding([1, 2, 3], decoding, output) for token in step.tokens]


def test_a_token_a_pass_is_inverse_cdf_sampling_of_the_target_on_ten_thousand_positions() -> None:
    found = [token for seed in range(50) for token in decoded(1, 200, 1.0, seed)]
    expected: list[int] = []
    for seed in range(50):
        target, noise, text = Cursor(engine(False).session()), Sampler(WARM, seed=seed), [1, 2, 3]
        for _ in range(200):
            law = noise.distribution(target.read(text)[0], text)
            text.append(at_quantile(law, noise.quantile(len(text))))
        expected += text[3:]
    assert len(found) == 10_000
    assert found == expected


@pytest.mark.parametrize(("temperature", "least"), [(0.0, (0.85, 0.75, 0.7)), (1.0, (0.5, 0.25, 0.1))])
def test_hints_tell_the_next_tokens_of_the_target(temperature: float, least: tuple[float, ...]) -> None:
    """Hints after each token of texts that the target wrote, with the noise that wrote them."""
    right = np.zeros(3)
    count = 0
    for seed in range(15):
        sampler = Sampler(Sampling(temperature), seed=seed, quantiles=True)
        text = decoded(1, 44, temperature, seed)
        text = [1, 2, 3, *text]
        session: Any = Cursor(engine(True).session())
        for end in range(6, 42):
            session.session.hint(sampler.quantile, temperature)
            session.read(text[:end])
            rows = session.session.hinted()[0]
            guesses = [sampler.choose(row, text[: end + 1 + at]) for at, row in enumerate(rows)]
            right += np.cumprod(np.equal(guesses, text[end + 1 : end + 4]))
            count += 1
    assert (right / count > least).all(), right / count


def test_the_decoding_writes_a_text_of_its_own() -> None:
    assert decoded(4, 100, 1.0) == decoded(4, 100, 1.0)
    assert decoded(4, 100, 1.0) != decoded(1, 100, 1.0)


def test_hints_change_no_logit_of_the_text() -> None:
    text = list(range(20))
    plain, hinted = engine(False).session(), engine(True).session()
    assert isinstance(hinted, HintedSession)
    hinted.hint(lambda position: 0.3, 1.0)
    found, expected = hinted.forward(text, 4), plain.forward(text, 4)
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert hinted.hinted().shape == (4, 3, 24)
    np.testing.assert_allclose(hinted.forward([5], 1), plain.forward([5], 1), atol=1e-4)
    assert hinted.hinted().size == 0  # nothing asked for them


def test_a_full_context_leaves_hints_out() -> None:
    session = engine(True).session()
    assert isinstance(session, HintedSession)
    session.hint(lambda position: 0.3, 1.0)
    assert session.forward([1] * 255, 2).shape == (2, 24)
    assert session.hinted().size == 0


def test_more_tokens_than_were_trained_are_refused() -> None:
    for kind in ("drafters", "decodings"):
        with pytest.raises(BadValue, match="trained for 4 tokens a pass"):
            plugins.parse(kind, f"{HINTS},k=5").make(Cursor(engine(True).session()))
        with pytest.raises(BadValue, match="needs an engine with `hints`"):
            plugins.parse(kind, HINTS).make(Cursor(engine(False).session()))


def test_hints_of_another_model_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    stored = layout.read(DATA / "hints")
    layout.write(stored, tmp_path)
    config = (tmp_path / layout.CONFIG).read_text("utf-8")
    for old, new, error in (
        ('"layers": 2', '"layers": 3', UnsupportedModel),
        ('"rank": 16', '"rank": 8', UnsupportedModel),
        ('"inner": 32', '"inner": 16', BrokenModel),
        ('"k": 4', '"k": 1', BrokenModel),
        ('"k": 4', '"k": "four"', UnsupportedModel),
    ):
        assert old in config
        (tmp_path / layout.CONFIG).write_text(config.replace(old, new), "utf-8")
        with pytest.raises(error):
            Torch(DATA / "toy", device="cpu", threads=1, hints=str(tmp_path))
    stored.tensors["places"][0, 0] = np.nan
    layout.write(stored, tmp_path)
    with pytest.raises(BrokenModel, match="not finite"):
        layout.read(tmp_path)
