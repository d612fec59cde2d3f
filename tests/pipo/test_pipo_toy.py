"""The trained toy of PIPO: what it says in pairs, its rewinds, and that drafts with it are plain text."""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from localspec import plugins
from localspec.core.contracts import DraftModel, PairSession
from localspec.core.cursor import Cursor
from localspec.core.decode import decode, run_decoding
from localspec.core.rewind_check import rewind_fault
from localspec.core.sampler import Sampler, Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.types import Guess, Step
from localspec.engines.torch import Torch
from localspec.errors import BadValue, BrokenModel, ContextFull, UnsupportedModel, UsageError
from localspec.formats.pipo import layout

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

TOY = Path(__file__).parents[1] / "data" / "k_forcing" / "toy"
PAIRS = Path(__file__).parents[1] / "data" / "pipo"
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]


class Silence:
    """Shows no text."""

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@cache
def engine(pairs: bool) -> Torch:
    return Torch(TOY, device="cpu", threads=1, pairs=str(PAIRS) if pairs else "")


def paired(least: float = 0.0) -> PairSession:
    session = engine(True).session()
    assert isinstance(session, PairSession)
    session.least = least
    return session


def answered(draft: bool, sampling: Sampling, policy: str = "fixed:tokens=4") -> tuple[list[int], list[Step]]:
    """Return the tokens of some answers, and the steps that they took."""
    target = Cursor(engine(False).session())
    spec = plugins.parse("drafters", "pipo:name=toy" if draft else "none")
    drafter = spec.make(target, *([DraftModel(engine(True), 24)] if draft else []))
    tokens: list[int] = []
    found: list[Step] = []
    for seed in range(4):
        parts = (plugins.parse("draft_length", policy).make(), plugins.parse("verifiers", "exact").make())
        output = OutputProcessor(Silence(), max_new_tokens=80)
        steps = list(decode([1, 2, 3, seed], target, drafter, *parts, Sampler(sampling, seed=seed), output))
        tokens += [token for step in steps for token in step.tokens]
        found += steps
    return tokens, found


@pytest.mark.parametrize(
    ("sampling", "least"), [(Sampling(), 3.5), (Sampling(temperature=1.0), 2.0)], ids=["greedy", "sampled"]
)
def test_a_draft_is_plain_text_in_fewer_passes(sampling: Sampling, least: float) -> None:
    plain, passes = answered(False, sampling)
    drafted, fewer = answered(True, sampling)
    assert drafted == plain
    assert len(passes) / len(fewer) > least
    assert drafted == answered(True, sampling, "adaptive")[0]


def test_the_policy_gets_the_confidence_of_the_head() -> None:
    drafter: Any = plugins.parse("drafters", "pipo:name=toy").make(
        Cursor(engine(False).session()), DraftModel(engine(True), 24)
    )
    fresh = paired()
    guesses: list[Guess] = []
    for candidate in islice(drafter.propose(TEXT, Sampler(Sampling())), 4):
        fresh.rewind(0)
        row = fresh.forward([*TEXT, *(each.token for each in guesses)], 1)[0]
        guess = candidate.draw()
        assert guess.token == int(row.argmax())
        sure = fresh.confidence()
        if sure is not None:
            assert guess.confidence == pytest.approx(sure, abs=1e-4)
        guesses.append(guess)
    assert [guess.source for guess in guesses] == ["first", "second", "first", "second"]


def decoded(prompt: list[int], least: float, tokens: int, **options: Any) -> list[int]:
    given = ",".join(f"{name}={value}" for name, value in {"least": least, **options}.items())
    decoding = plugins.parse("decodings", f"pipo:{given}").make(Cursor(engine(True).session()))
    output = OutputProcessor(Silence(), max_new_tokens=tokens)
    return [token for step in run_decoding(prompt, decoding, output) for token in step.tokens]


@pytest.mark.parametrize("prompt", [[1], [1, 2], [1, 2, 3]], ids=["one token", "even", "odd"])
def test_a_prompt_may_have_an_odd_length(prompt: list[int]) -> None:
    target = Cursor(engine(False).session())
    for least in (0.0, 0.95, 1.0):
        text = [*prompt, *decoded(prompt, least, 60)]
        right = [
            int(target.read(text[:end])[0].argmax()) == text[end] for end in range(len(prompt), len(text))
        ]
        assert np.mean(right) > 0.8


def test_the_decoding_writes_a_text_of_its_own() -> None:
    warm = {"temperature": 1, "seed": 3}
    assert decoded([1, 2], 0.5, 60, **warm) == decoded([1, 2], 0.5, 60, **warm)
    assert decoded([1, 2], 0.5, 60, **warm) != decoded([1, 2], 0.5, 60, temperature=1, seed=4)


def test_a_pass_gives_two_tokens_where_the_head_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = {}
    base = type(engine(True).pairs.model.base_model)  # type: ignore[union-attr]
    real, count = base.forward, [0]

    def counted(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        return real(*arguments, **options)

    monkeypatch.setattr(base, "forward", counted)
    for least in (0.0, 0.9, 1.0):
        count[0] = 0
        decoded([1, 2], least, 60)
        passes[least] = count[0]
    assert passes[0.0] == 30
    assert passes[1.0] == 60
    assert 30 <= passes[0.9] < 60


def test_rows_do_not_depend_on_how_the_text_was_read() -> None:
    whole = paired().forward(TEXT, len(TEXT)).copy()
    for sizes in ([1] * 16, [3, 5, 1, 7], [15, 1], [2, 2, 12]):
        session, at, rows = paired(), 0, []
        for size in sizes:
            rows.append(session.forward(TEXT[at : at + size], size).copy())
            at += size
        np.testing.assert_allclose(np.concatenate(rows), whole, atol=1e-4)


@pytest.mark.parametrize("length", range(17))
def test_a_rewind_to_any_length_is_a_fresh_text(length: int) -> None:
    session, other = paired(), [7, 7, 2, 0]
    session.forward(TEXT, 1)
    assert session.rewind(length) == length
    found = session.forward(other, 4).copy()
    np.testing.assert_allclose(found, paired().forward([*TEXT[:length], *other], 4), atol=1e-4)


def test_rewinds_are_exact_as_the_loop_checks_them() -> None:
    assert rewind_fault(paired(), 24) is None


def test_pads_are_rewound_too() -> None:
    session = paired(least=1.0)
    for at in range(9):  # each pair is one token and a pad
        session.forward(TEXT[at : at + 1], 1)
    assert session.confidence() is None
    expected = session.forward(TEXT[9:10], 1).copy()
    session.forward(TEXT[10:14], 1)
    assert session.rewind(9) == 9
    np.testing.assert_allclose(session.forward(TEXT[9:10], 1), expected, atol=1e-4)


def test_a_full_context_leaves_the_text_as_it_was() -> None:
    session = paired()
    session.forward([1] * 255, 0)
    with pytest.raises(ContextFull):
        session.forward([1, 2], 1)
    assert session.forward([3], 1).shape == (1, 24)


def test_other_engines_and_options_beside_are_refused() -> None:
    with pytest.raises(BadValue, match="needs an engine with `pairs`"):
        plugins.parse("decodings", "pipo").make(Cursor(engine(False).session()))
    with pytest.raises(BadValue, match="`hints` and `pairs` exclude each other"):
        Torch(TOY, device="cpu", hints="a", pairs=str(PAIRS))
    for wrong in ("least=1.5", "least=much", "temperature=2", "pads=1"):
        with pytest.raises(UsageError, match=wrong.partition("=")[0]):
            plugins.parse("decodings", f"pipo:{wrong}")


def test_weights_of_another_model_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    stored = layout.read(PAIRS)
    layout.write(stored, tmp_path)
    config = (tmp_path / layout.CONFIG).read_text("utf-8")
    for old, new, error in (
        ('"layers": 2', '"layers": 3', UnsupportedModel),
        ('"rank": 16', '"rank": 8', UnsupportedModel),
        ('"intermediate_size": 128', '"intermediate_size": 64', BrokenModel),
        ('"target_hidden_size": 128', '"target_hidden_size": 64', BrokenModel),
        ('"draft_vocab_size": 24', '"draft_vocab_size": 12', BrokenModel),
        ('"layers": 2', '"layers": "two"', UnsupportedModel),
    ):
        assert old in config
        (tmp_path / layout.CONFIG).write_text(config.replace(old, new), "utf-8")
        with pytest.raises(error):
            Torch(TOY, device="cpu", threads=1, pairs=str(tmp_path))
    stored.tensors["pad"][0] = np.nan
    layout.write(stored, tmp_path)
    with pytest.raises(BrokenModel, match="not finite"):
        layout.read(tmp_path)


def test_large_weights_lie_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = layout.read(PAIRS)
    monkeypatch.setattr(layout, "SHARD", 60_000)
    layout.write(stored, tmp_path)
    files = list(tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert max(file.stat().st_size for file in files) < 66_000
    for name, values in layout.read(tmp_path).tensors.items():
        np.testing.assert_array_equal(values, stored.tensors[name])
