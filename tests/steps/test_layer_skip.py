"""LayerSkip: adapters that teach a model to predict from its first layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from said import Said

from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface import early_exit, loading
from localspec.training import texts as texts_module
from localspec.training.layer_skip import LayerSkipLearner, SkipPlan
from localspec.training.loop import TrainingPlan, train
from localspec.training.texts import write_texts

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

CPU = torch.device("cpu")
PLAN = SkipPlan(exits=(2, 3), rank=4, most=0.2)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "Q8_0", layers=4, interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def texts(gguf: Path) -> list[TargetText]:
    model = loading.load(gguf, CPU, torch.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "MAX_QUESTION", 6)
        patch.setattr(texts_module, "MAX_ANSWER", 20)
        found = write_texts(model, gguf, [([3, 1], [4])], [95], seconds=1e9, max_texts=48, batch=16, seed=0)
        return [text for some in found for text in some]


def test_a_new_adapter_changes_nothing(gguf: Path, texts: list[TargetText]) -> None:
    learner = LayerSkipLearner(loading.load_trainable(gguf, CPU), texts[:8], PLAN)
    growth, exits = learner.measured()
    assert growth == 1.0
    assert [one.layer for one in exits] == [2, 3]
    assert all(one.agreement < 1 for one in exits)
    assert len(learner.parameters) == 4 * 7 * 2  # layers, linear layers of each, A and B


def test_exits_learn_what_the_last_layer_says(gguf: Path, texts: list[TargetText], tmp_path: Path) -> None:
    model, told = loading.load_trainable(gguf, CPU), Said()
    learner = LayerSkipLearner(model, texts[:12], PLAN)
    before = learner.measured()[1]
    plan = TrainingPlan(1e9, 0.003, batch=12, warm=0.0, steps=80)
    result = train(learner, texts[12:], plan, tmp_path / "skip.pt", told)
    growth, after = learner.measured()
    assert result.after > result.before
    assert max(one.agreement for one in after) > max(one.agreement for one in before) + 0.1
    assert growth < 1.1
    assert any(line.startswith("Exits guess ") for line in told.lines)
    again = LayerSkipLearner(loading.load_trainable(gguf, CPU), texts[:12], PLAN)
    train(again, texts[12:], plan, tmp_path / "skip.pt", told)  # the checkpoint is that of the end
    assert again.measured() == (growth, after)
    given = torch.tensor([[*texts[0].prompt, *texts[0].answer]])
    with torch.inference_mode():
        adapted = model(given).logits
        learner.merge()
        merged = model(given).logits
        assert (adapted - merged).abs().max() < 1e-4
        parts: Any = early_exit.split(model, 2)
        hidden = parts.first.base_model(given, use_cache=False).last_hidden_state
        guesses = parts.head(inputs_embeds=hidden, use_cache=False).logits[0].argmax(-1)
    found = LayerSkipLearner(model, texts[:1], PLAN).measured()[1][0].agreement
    first, last = len(texts[0].prompt) - 1, given.shape[1] - 1
    wanted = merged[0].argmax(-1)
    assert (guesses == wanted)[first:last].float().mean().item() == pytest.approx(found)


def test_layers_are_left_out_the_more_the_later_they_come(gguf: Path, texts: list[TargetText]) -> None:
    calm, restless = (
        LayerSkipLearner(loading.load_trainable(gguf, CPU), texts[:4], SkipPlan((2,), most=most))
        for most in (0.0, 1.0)
    )
    assert calm.loss(texts[:4], 0.0).item() == calm.loss(texts[:4], 0.0).item()
    wanted = calm.loss(texts[:4], 0.0).item()
    assert restless.loss(texts[:4], 0.0).item() != pytest.approx(wanted, rel=1e-3)
    assert calm.measured() == restless.measured()  # nothing is left out of an evaluation
