"""Healing as a step: what comes out has learned, and is an OpenVINO graph again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from desk import LAYERS, Workspace, rows

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import MissingExtra, UnknownDevice
from localspec.formats.huggingface import healed, loading

pytestmark = pytest.mark.engines

KEPT = [0, 1, 2, 4, 5]
TEXT = [3, 1, 4, 1, 5]


@pytest.fixture
def cut(source: Artifact, tmp_path: Path, desk: Workspace) -> Artifact:
    folder = tmp_path / "cut"
    folder.mkdir()
    return plugins.parse("steps", f"prune:layers={LAYERS - 1}").make(desk).run(source, folder)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_draft_is_taught_and_written(cut: Artifact, desk: Workspace, into: Path, rank: int) -> None:
    options = f"minutes=0.1,device=cpu,rank={rank},batch=4"
    found = plugins.parse("steps", f"heal:{options}").make(desk).run(cut, into)
    healed = found.facts["healed"]
    assert healed["after"] >= healed["before"]
    assert (healed["rank"], healed["device"]) == (rank, "cpu")
    assert found.facts["precision"] == "FP16"
    assert found.facts["layers"] == cut.facts["layers"]
    assert (into / "tokenizer.json").is_file()
    # the graph and what is kept for other files are the same model
    own = loading.load_trainable(desk.weights("source"), torch.device("cpu"), cut.facts["layers"])
    healed.load(own, cut.facts["layers"], into / healed.FILE)
    with torch.inference_mode():
        expected = own(torch.tensor([TEXT])).logits[0].numpy()
    assert np.allclose(rows(into, TEXT), expected, atol=0.02 * expected.std())


def test_the_texts_of_a_killed_build_are_read_again(cut: Artifact, desk: Workspace, into: Path) -> None:
    step = plugins.parse("steps", "heal:minutes=0.05,device=cpu,rank=0")
    step.make(desk).run(cut, into)
    written = (desk.kept / "heal-texts.jsonl").read_text()
    desk.lines.clear()
    (desk.kept / "heal.pt").unlink()
    step.make(desk).run(cut, into)
    assert (desk.kept / "heal-texts.jsonl").read_text() == written
    assert not any("writes texts" in line for line in desk.lines)


def test_given_prompts_are_what_it_learns_from(cut: Artifact, desk: Workspace, into: Path) -> None:
    desk.asked = [[3, 1, 4], [1, 5, 9], [2, 6, 5]]
    found = plugins.parse("steps", "heal:minutes=0.05,device=cpu,rank=0").make(desk).run(cut, into)
    assert found.facts["healed"]["texts"] == 3


def test_a_device_that_is_not_there_is_named(cut: Artifact, desk: Workspace, into: Path) -> None:
    with pytest.raises(UnknownDevice, match="cuda:9"):
        plugins.parse("steps", "heal:device=cuda:9").make(desk).run(cut, into)


def test_without_torch_the_extra_is_named(
    cut: Artifact, desk: Workspace, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"`peft` is not installed") as caught:
        plugins.parse("steps", "heal").make(desk).run(cut, into)
    assert caught.value.hint == "Type `pip install 'localspec[export]'`"
