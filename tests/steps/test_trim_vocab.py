from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from build_context import FakeContext, logits_of
from tokenizers import Tokenizer

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import BadValue
from localspec.steps import trim_vocab
from localspec.steps.trim_vocab import rank_tokens

TEXT = [3, 1, 4, 1, 5]


def test_special_tokens_rank_first_then_written_ones_and_low_ids(
    source: Artifact, context: FakeContext
) -> None:
    tokenizer = Tokenizer.from_file(str(source.folder / "tokenizer.json"))
    order = rank_tokens(tokenizer, context.target_texts(), tiny.VOCAB).tolist()
    assert sorted(order) == list(range(tiny.VOCAB))
    assert set(order[:2]) == {94, 95}
    written = {token for text in context.target_texts() for token in (*text.prompt, *text.answer)}
    assert 0 in order[2:5]
    high = max(written - {94, 95})
    never = max(set(range(94)) - written)
    assert order.index(high) < order.index(never)


def test_kept_tokens_keep_their_logits(source: Artifact, context: FakeContext, into: Path) -> None:
    found = plugins.parse("steps", "trim_vocab:tokens=40").make(context).run(source, into)
    assert (found.facts["tokens"], found.facts["of_tokens"]) == (40, tiny.VOCAB)
    whole, cut = logits_of(source.folder, TEXT), logits_of(into, TEXT)
    kept = np.flatnonzero(cut[0] > -60000)
    assert len(kept) == 40
    assert np.array_equal(cut[:, kept], whole[:, kept])


@pytest.mark.parametrize("asked", ["all", "auto"])
def test_a_small_vocabulary_is_kept(source: Artifact, context: FakeContext, into: Path, asked: str) -> None:
    found = plugins.parse("steps", f"trim_vocab:tokens={asked}").make(context).run(source, into)
    assert found.facts["tokens"] == tiny.VOCAB
    assert np.array_equal(logits_of(into, TEXT), logits_of(source.folder, TEXT))


def test_auto_keeps_the_fastest_number(
    source: Artifact, context: FakeContext, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4, 16 and 60 tokens, 4 are fewer than the target writes, and 60 cost more than 16."""
    monkeypatch.setattr(trim_vocab, "SIZES", (4, 16, 60))
    context._pass_seconds = [0.05] * 9
    context.measured = [[0.06, 0.06], [0.001, 0.001]]
    found = plugins.parse("steps", "trim_vocab").make(context).run(source, into)
    assert found.facts["tokens"] == 16


def test_more_tokens_than_the_model_has(source: Artifact, context: FakeContext, into: Path) -> None:
    with pytest.raises(BadValue, match="is 97 and the model has 96"):
        plugins.parse("steps", "trim_vocab:tokens=97").make(context).run(source, into)


@pytest.mark.parametrize("asked", ["0", "-3", "few"])
def test_an_invalid_number_is_rejected(context: FakeContext, asked: str) -> None:
    with pytest.raises(BadValue, match=f"`tokens` of `trim_vocab` is `{asked}`"):
        plugins.parse("steps", f"trim_vocab:tokens={asked}").make(context)
