from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from desk import IDLE, LAYERS, Workspace, rows

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.drafting.speedup import Worth
from localspec.errors import BadValue
from localspec.steps.prune import step

TEXT = [3, 1, 4, 1, 5]


def test_layers_that_do_nothing_go(source: Artifact, desk: Workspace, into: Path) -> None:
    found = plugins.parse("steps", f"prune:layers={LAYERS - len(IDLE)}").make(desk).run(source, into)
    assert found.folder == into
    assert (found.facts["layers"], found.facts["of_layers"]) == ([0, 5], LAYERS)
    assert np.allclose(rows(into, TEXT), rows(source.folder, TEXT), atol=1e-4)
    assert json.loads((into / "config.json").read_text())["num_hidden_layers"] == 2
    assert (into / "tokenizer.json").read_text() == (source.folder / "tokenizer.json").read_text()
    assert any("without layers 1 to 4: 100% agree" in line for line in desk.lines)
    assert not list(into.glob("*.gguf"))


def test_auto_takes_out_what_costs_and_does_not_help(source: Artifact, desk: Workspace, into: Path) -> None:
    desk._passes = [0.05] * 9  # a slow target: agreement is what counts
    found = plugins.parse("steps", "prune").make(desk).run(source, into)
    assert {0, 5} <= set(found.facts["layers"])
    assert found.facts["predicted"]["speed_up"] > 1
    assert np.allclose(rows(into, TEXT), rows(source.folder, TEXT), atol=1e-4)


@pytest.mark.parametrize(("share", "kept"), [(0.0, 6), (1.0, 2)])
def test_as_many_layers_go_as_their_cost_is_worth(
    source: Artifact, desk: Workspace, into: Path, share: float, kept: int
) -> None:
    """Of layers that do nothing all go, unless a graph without them costs the same."""
    desk._passes = [0.05] * 9
    desk.measured = [[0.06, 0.06], [0.06 - 0.02 * share] * 2]  # without two of them
    found = plugins.parse("steps", "prune").make(desk).run(source, into)
    assert len(found.facts["layers"]) == kept


@pytest.mark.parametrize("layers", [1, 7])
def test_a_number_of_layers_that_cannot_be_kept_is_refused(
    source: Artifact, desk: Workspace, into: Path, layers: int
) -> None:
    with pytest.raises(BadValue, match=f"is {layers} and the model has {LAYERS}"):
        plugins.parse("steps", f"prune:layers={layers}").make(desk).run(source, into)


def test_a_number_that_is_none_is_refused(desk: Workspace) -> None:
    with pytest.raises(BadValue, match="`layers` of `prune` is `some`"):
        plugins.parse("steps", "prune:layers=some").make(desk)


def test_all_layers_stay_when_asked_to(source: Artifact, desk: Workspace, into: Path) -> None:
    plugins.parse("steps", f"prune:layers={LAYERS}").make(desk).run(source, into)
    assert np.array_equal(rows(into, TEXT), rows(source.folder, TEXT))


def test_of_cuts_that_promise_the_same_the_one_that_agrees_more_is_taken(
    source: Artifact, desk: Workspace, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuts = [frozenset({1}), frozenset({2}), frozenset({3})]
    shares = iter([0.7, 0.8, 0.75])
    monkeypatch.setattr(step, "candidates", lambda *_: cuts)
    monkeypatch.setattr(step, "promise", lambda *_: (Worth(0, 1.0, 1.0), next(shares)))
    found = plugins.parse("steps", "prune:layers=5").make(desk).run(source, into)
    assert found.facts["layers"] == [0, 1, 3, 4, 5]
