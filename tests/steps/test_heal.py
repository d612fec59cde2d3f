"""Healing as a step: the result is trained, and an OpenVINO graph again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from build_context import LAYERS, FakeContext, logits_of

from localspec import plugins
from localspec.drafting.build_step import Artifact
from localspec.errors import MissingExtra, UnknownDevice
from localspec.formats.huggingface import healed, loading
from localspec.installation import install_command

pytestmark = pytest.mark.engines

KEPT = [0, 1, 2, 4, 5]
TEXT = [3, 1, 4, 1, 5]


@pytest.fixture
def cut(source: Artifact, tmp_path: Path, context: FakeContext) -> Artifact:
    folder = tmp_path / "cut"
    folder.mkdir()
    return plugins.parse("steps", f"prune:layers={LAYERS - 1}").make(context).run(source, folder)


@pytest.mark.parametrize("rank", [0, 4])
def test_a_draft_is_trained_and_written(cut: Artifact, context: FakeContext, into: Path, rank: int) -> None:
    options = f"minutes=0.1,device=cpu,rank={rank},batch=4"
    found = plugins.parse("steps", f"heal:{options}").make(context).run(cut, into)
    result = found.facts["healed"]
    assert result["after"] >= result["before"]
    assert (result["rank"], result["device"]) == (rank, "cpu")
    assert found.facts["precision"] == "FP16"
    assert found.facts["layers"] == cut.facts["layers"]
    assert (into / "tokenizer.json").is_file()
    # the graph and healed.safetensors are the same model
    own = loading.load_trainable(context.weights("source"), torch.device("cpu"), cut.facts["layers"])
    healed.load(own, cut.facts["layers"], into / healed.FILE)
    with torch.inference_mode():
        expected = own(torch.tensor([TEXT])).logits[0].numpy()
    assert np.allclose(logits_of(into, TEXT), expected, atol=0.02 * expected.std())


def test_the_texts_of_a_killed_build_are_used_again(cut: Artifact, context: FakeContext, into: Path) -> None:
    step = plugins.parse("steps", "heal:minutes=0.05,device=cpu,rank=0")
    step.make(context).run(cut, into)
    written = (context.work_folder / "heal-texts.jsonl").read_text()
    context.lines.clear()
    (context.work_folder / "heal.pt").unlink()
    step.make(context).run(cut, into)
    assert (context.work_folder / "heal-texts.jsonl").read_text() == written
    assert not any("writes texts" in line for line in context.lines)


def test_given_prompts_are_used_for_training(cut: Artifact, context: FakeContext, into: Path) -> None:
    context.prompts = [[3, 1, 4], [1, 5, 9], [2, 6, 5]]
    found = plugins.parse("steps", "heal:minutes=0.05,device=cpu,rank=0").make(context).run(cut, into)
    assert found.facts["healed"]["texts"] == 3


def test_a_missing_device_is_named(cut: Artifact, context: FakeContext, into: Path) -> None:
    with pytest.raises(UnknownDevice, match="cuda:9"):
        plugins.parse("steps", "heal:device=cuda:9").make(context).run(cut, into)


def test_without_torch_the_extra_is_named(
    cut: Artifact, context: FakeContext, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(MissingExtra, match=r"`peft` is not installed") as caught:
        plugins.parse("steps", "heal").make(context).run(cut, into)
    assert caught.value.hint == f"Type `{install_command('export')}`"
