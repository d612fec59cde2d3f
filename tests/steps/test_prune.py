from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from build_context import IDLE, LAYERS, FakeContext, logits_of

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.drafting.speedup import Speedup
from localspec.errors import BadValue
from localspec.steps.prune import step

TEXT = [3, 1, 4, 1, 5]


def test_idle_layers_are_removed(source: Artifact, context: FakeContext, into: Path) -> None:
    found = plugins.parse("steps", f"prune:layers={LAYERS - len(IDLE)}").make(context).run(source, into)
    assert found.folder == into
    assert (found.facts["layers"], found.facts["of_layers"]) == ([0, 5], LAYERS)
    assert np.allclose(logits_of(into, TEXT), logits_of(source.folder, TEXT), atol=1e-4)
    assert json.loads((into / "config.json").read_text())["num_hidden_layers"] == 2
    assert (into / "tokenizer.json").read_text() == (source.folder / "tokenizer.json").read_text()
    assert any("Without layers 1 to 4: 100% agreement" in line for line in context.lines)
    assert not list(into.glob("*.gguf"))


def test_auto_removes_layers_that_do_not_help(source: Artifact, context: FakeContext, into: Path) -> None:
    context._pass_seconds = [0.05] * 9  # a slow target: agreement is what counts
    found = plugins.parse("steps", "prune").make(context).run(source, into)
    assert {0, 5} <= set(found.facts["layers"])
    assert found.facts["predicted"]["speedup"] > 1
    assert np.allclose(logits_of(into, TEXT), logits_of(source.folder, TEXT), atol=1e-4)


@pytest.mark.parametrize(("share", "kept"), [(0.0, 6), (1.0, 2)])
def test_layers_are_removed_if_that_saves_time(
    source: Artifact, context: FakeContext, into: Path, share: float, kept: int
) -> None:
    """All idle layers are removed, unless a graph without them costs the same."""
    context._pass_seconds = [0.05] * 9
    context.measured = [[0.06, 0.06], [0.06 - 0.02 * share] * 2]  # without two of them
    found = plugins.parse("steps", "prune").make(context).run(source, into)
    assert len(found.facts["layers"]) == kept


@pytest.mark.parametrize("layers", [1, 7])
def test_an_impossible_number_of_layers_is_rejected(
    source: Artifact, context: FakeContext, into: Path, layers: int
) -> None:
    with pytest.raises(BadValue, match=f"is {layers} and the model has {LAYERS}"):
        plugins.parse("steps", f"prune:layers={layers}").make(context).run(source, into)


def test_an_invalid_number_is_rejected(context: FakeContext) -> None:
    with pytest.raises(BadValue, match="`layers` of `prune` is `some`"):
        plugins.parse("steps", "prune:layers=some").make(context)


def test_all_layers_can_be_kept(source: Artifact, context: FakeContext, into: Path) -> None:
    plugins.parse("steps", f"prune:layers={LAYERS}").make(context).run(source, into)
    assert np.array_equal(logits_of(into, TEXT), logits_of(source.folder, TEXT))


def test_of_equal_estimates_the_higher_agreement_wins(
    source: Artifact, context: FakeContext, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = [frozenset({1}), frozenset({2}), frozenset({3})]
    shares = iter([0.7, 0.8, 0.75])
    monkeypatch.setattr(step, "removal_candidates", lambda *_: cuts)
    monkeypatch.setattr(step, "estimate_speedup", lambda *_: (Speedup(0, 1.0, 1.0), next(shares)))
    found = plugins.parse("steps", "prune:layers=5").make(context).run(source, into)
    assert found.facts["layers"] == [0, 1, 3, 4, 5]
