"""Logits that stay on a device: greedy choices need no row of them, and everything else finds an array."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from localspec import plugins
from localspec.core.contracts import DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import DeviceRow
from localspec.decoder import rows
from localspec.drafters.draft_model import ModelDraft
from localspec.engines.torch.engine import Torch

pytestmark = pytest.mark.engines

TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 60)]
Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_folder(tiny.make("qwen3"), tmp_path_factory.mktemp("qwen3"), vocab_size=tiny.VOCAB)


def engine(model: Path, keeps: bool) -> Torch:
    """Return an engine whose rows stay where they are, as on a card, or not."""
    found = Torch(model, device="cpu", decoder="own")
    assert found.own is not None
    found.own.keeps_rows = keeps
    return found


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each fetch."""
    counts: list[int] = []
    fetch = rows.Fetched.__call__

    def noted(self: rows.Fetched) -> Any:
        if self._rows is None:
            counts.append(len(self._logits))
        return fetch(self)

    monkeypatch.setattr(rows.Fetched, "__call__", noted)
    return counts


@pytest.mark.parametrize("count", [1, 5, 30])
def test_rows_act_as_an_array(model: Path, count: int, fetched: list[int]) -> None:
    kept, plain = (engine(model, keeps).session() for keeps in (True, False))
    for session in (kept, plain):
        session.forward(TEXT[:10], 0)
    found, expected = kept.forward(TEXT[10 : 10 + count], count), plain.forward(TEXT[10 : 10 + count], count)
    assert isinstance(found, rows.DeviceRows)
    assert isinstance(expected, np.ndarray)
    assert (found.shape, found.dtype, len(found)) == (expected.shape, expected.dtype, count)
    assert found.argmax(axis=1).tolist() == expected.argmax(axis=1).tolist()
    for row, same in zip(found, expected, strict=True):
        assert isinstance(row, DeviceRow)
        assert (row.argmax(), row[row.best], len(row)) == (same.argmax(), same.max(), len(same))
        assert row.weight == pytest.approx(np.exp(same - same.max()).sum(), rel=1e-5)
    assert not fetched
    other = (int(expected[0].argmax()) + 1) % tiny.VOCAB
    assert found[0][other] == expected[0][other]
    assert np.array_equal(found[-1][:40], expected[-1][:40])
    assert np.array_equal(found[-1, :40], expected[-1, :40])
    assert found[-1, :].best == expected[-1].argmax()  # type: ignore[attr-defined]
    assert np.array_equal(np.concatenate([found[:2], found[2:]]), expected)
    assert np.abs(found - expected).max() == 0
    assert np.array_equal(found.copy(), expected)
    assert found.std() == expected.std()
    assert fetched == [count]


def test_rows_of_an_earlier_pass_are_refused(model: Path) -> None:
    session = engine(model, True).session()
    early = session.forward(TEXT[:3], 1)
    session.forward(TEXT[3:5], 1)
    with pytest.raises(AssertionError, match="until the next pass"):
        early.copy()


@pytest.mark.parametrize("draft", ["none", "ngram", "recycle", "itself"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9), Sampling(repetition_penalty=1.2)]
)
def test_texts_are_those_of_rows_in_main_memory(
    model: Path, ask: Ask, draft: str, sampling: Sampling, fetched: list[int]
) -> None:
    texts = []
    for keeps in (True, False):
        made = engine(model, keeps)
        target = Cursor(made.session())
        source = (
            ModelDraft(target, DraftModel(made, made.vocab), name="itself")
            if draft == "itself"
            else plugins.parse("drafters", draft).make(target)
        )
        texts.append(ask(target, source, prompt=TEXT[:20], room=40, sampling=sampling).tokens)
        if keeps:
            assert bool(fetched) == (sampling != Sampling())
    assert texts[0] == texts[1]


def test_likelihoods_are_those_of_rows_in_main_memory(model: Path) -> None:
    told = []
    for keeps in (True, False):
        found = engine(model, keeps).session().forward(TEXT[:9], 4)
        told.append(Sampler(Sampling(), alternatives=3).likelihoods(found, [1, 2, 3, 4]))
    for left, right in zip(*told, strict=True):
        assert left.logprob == pytest.approx(right.logprob, abs=1e-5)
        assert [token for token, _ in left.best] == [token for token, _ in right.best]
