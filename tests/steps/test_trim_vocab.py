from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from desk import Workspace, rows
from tokenizers import Tokenizer

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import BadValue
from localspec.steps import trim_vocab
from localspec.steps.trim_vocab import ranked

TEXT = [3, 1, 4, 1, 5]


def test_kept_are_special_tokens_then_what_was_written_then_low_numbers(
    source: Artifact, desk: Workspace
) -> None:
    tokenizer = Tokenizer.from_file(str(source.folder / "tokenizer.json"))
    order = ranked(tokenizer, desk.texts(), tiny.VOCAB).tolist()
    assert sorted(order) == list(range(tiny.VOCAB))
    assert set(order[:2]) == {94, 95}
    written = {token for text in desk.texts() for token in (*text.prompt, *text.answer)}
    assert 0 in order[2:5]
    high = max(written - {94, 95})
    never = max(set(range(94)) - written)
    assert order.index(high) < order.index(never)


def test_a_smaller_head_says_the_same_of_what_it_keeps(source: Artifact, desk: Workspace, into: Path) -> None:
    found = plugins.parse("steps", "trim_vocab:tokens=40").make(desk).run(source, into)
    assert (found.facts["tokens"], found.facts["of_tokens"]) == (40, tiny.VOCAB)
    whole, cut = rows(source.folder, TEXT), rows(into, TEXT)
    kept = np.flatnonzero(cut[0] > -60000)
    assert len(kept) == 40
    assert np.array_equal(cut[:, kept], whole[:, kept])


@pytest.mark.parametrize("asked", ["all", "auto"])
def test_a_small_vocabulary_stays_whole(source: Artifact, desk: Workspace, into: Path, asked: str) -> None:
    found = plugins.parse("steps", f"trim_vocab:tokens={asked}").make(desk).run(source, into)
    assert found.facts["tokens"] == tiny.VOCAB
    assert np.array_equal(rows(into, TEXT), rows(source.folder, TEXT))


def test_auto_keeps_as_many_tokens_as_pays(
    source: Artifact, desk: Workspace, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 4, 16 and 60 tokens, 4 are fewer than the target writes, and 60 cost more than 16."""
    monkeypatch.setattr(trim_vocab, "SIZES", (4, 16, 60))
    desk._passes = [0.05] * 9
    desk.measured = [[0.06, 0.06], [0.001, 0.001]]
    found = plugins.parse("steps", "trim_vocab").make(desk).run(source, into)
    assert found.facts["tokens"] == 16


def test_more_tokens_than_there_are_is_refused(source: Artifact, desk: Workspace, into: Path) -> None:
    with pytest.raises(BadValue, match="is 97 and the model has 96"):
        plugins.parse("steps", "trim_vocab:tokens=97").make(desk).run(source, into)


@pytest.mark.parametrize("asked", ["0", "-3", "few"])
def test_a_number_that_is_none_is_refused(desk: Workspace, asked: str) -> None:
    with pytest.raises(BadValue, match=f"`tokens` of `trim_vocab` is `{asked}`"):
        plugins.parse("steps", f"trim_vocab:tokens={asked}").make(desk)
