"""Training a tiny draft: it improves, never gets worse, resumes after a kill, and survives a full GPU."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from localspec.drafting.build_step import TargetText
from localspec.drafting.time_limit import TimeLimit
from localspec.errors import UnsupportedModel
from localspec.formats.huggingface import loading, torch_devices
from localspec.steps.heal import distil as distil_module
from localspec.steps.heal.distil import acceptance, distil
from localspec.training import loop
from localspec.training import texts as texts_module
from localspec.training.loop import TrainingPlan
from localspec.training.texts import write_texts

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

CPU = torch.device("cpu")


class Listening:
    """Adds what it is told to a list, and counts seconds."""

    def __init__(self, lines: list[str]) -> None:
        self._lines, self.seconds = lines, 0

    def say(self, line: str) -> None:
        self._lines.append(line)

    def advance(self, count: int = 1) -> None:
        self.seconds += count


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "Q8_0", layers=4, interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def teacher(gguf: Path) -> Any:
    return loading.load(gguf, CPU, torch.float32)


@pytest.fixture(scope="module")
def texts(gguf: Path, teacher: Any) -> list[TargetText]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts_module, "MAX_QUESTION", 6)
        patch.setattr(texts_module, "MAX_ANSWER", 20)
        found = write_texts(teacher, gguf, [([3, 1], [4])], [95], seconds=1e9, max_texts=48, batch=16, seed=0)
        return [text for some in found for text in some]


def learner(gguf: Path) -> Any:
    draft = loading.load_trainable(gguf, CPU, [0, 1, 3])
    draft.requires_grad_(False)
    draft.base_model.layers.requires_grad_(True)
    return draft


@pytest.fixture
def by_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write as for a family that the decoder of our own does not compute."""

    def refused(*given: Any) -> Any:
        raise UnsupportedModel("This test")

    monkeypatch.setattr(texts_module, "of_model", refused)


def test_transformers_writes_what_our_decoder_writes(
    gguf: Path, teacher: Any, texts: list[TargetText], by_transformers: None
) -> None:
    asked = [text.prompt for text in texts[:6]]
    found = write_texts(teacher, gguf, [], [95], prompts=asked, seconds=1e9, max_texts=9, batch=4, seed=0)
    answers = {tuple(text.prompt): text.answer for some in found for text in some}
    for prompt, answer in texts[:6]:
        assert answers[tuple(prompt)][: len(answer)] == answer


def test_texts_are_the_models_own_greedy_answers(teacher: Any, texts: list[TargetText]) -> None:
    assert len(texts) == 48
    for prompt, answer in texts:
        assert prompt[:2] == [3, 1]
        assert prompt[-1] == 4
        given = torch.tensor([[*prompt, *answer]])
        likely = teacher(given).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
        assert likely == answer
    assert len({tuple(text.prompt) for text in texts}) > 24  # what users say is drawn


def test_given_prompts_are_answered(gguf: Path, teacher: Any) -> None:
    asked = [[3, 1, 4, 1], [5, 9, 2]]
    found = write_texts(teacher, gguf, [], [95], prompts=asked, seconds=1e9, max_texts=9, batch=1, seed=0)
    assert [text.prompt for some in found for text in some] == asked


def test_writing_ends_in_time(gguf: Path, teacher: Any) -> None:
    assert list(write_texts(teacher, gguf, [([3], [4])], [95], seconds=0, max_texts=9, batch=4, seed=0)) == []


def test_a_batch_that_would_end_too_late_does_not_begin(
    gguf: Path, teacher: Any, by_transformers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, given = [0.0], []

    def generate(model: Any, prompts: Any, stops: Any, options: dict[str, Any]) -> list[list[int]]:
        now[0] += 20.0
        given.append(options["max_time"])
        return [[7] * 12 for _ in prompts]

    monkeypatch.setattr(texts_module, "TimeLimit", lambda seconds: TimeLimit(seconds, clock=lambda: now[0]))
    monkeypatch.setattr(texts_module, "_generate_batch", generate)
    found = list(
        write_texts(teacher, gguf, [], [95], prompts=[[3]] * 99, seconds=70, max_texts=99, batch=1, seed=0)
    )
    assert len(found) == 3
    assert now[0] == 60.0
    assert given == [70.0, 50.0, 30.0]  # a generation that takes longer is cut


def test_a_step_that_would_end_too_late_does_not_begin(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, real = [0.0], distil_module._logits

    def slow(model: Any, batch: Any) -> Any:
        now[0] += len(batch.tokens)
        return real(model, batch)

    limit = functools.partial(TimeLimit, clock=lambda: now[0])
    monkeypatch.setattr(loop, "TimeLimit", limit)
    monkeypatch.setattr(distil_module, "_logits", slow)
    plan, listening = TrainingPlan(seconds=200, rate=1e-3, batch=8), Listening([])
    result = distil(teacher, learner(gguf), texts[8:], texts[:8], plan, tmp_path / "state.pt", listening)
    assert result.steps > 1
    assert now[0] <= 200
    assert 0 < listening.seconds <= 200
    began, short = now[0], TrainingPlan(seconds=20, rate=1e-3, batch=8)
    result = distil(teacher, learner(gguf), texts[8:], texts[:8], short, tmp_path / "other.pt", listening)
    assert result.steps == 0  # one would not end in time
    assert now[0] - began <= 22


def test_a_draft_learns_from_its_target(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path
) -> None:
    draft = learner(gguf)
    lines: list[str] = []
    frozen = {name: value.clone() for name, value in draft.state_dict().items() if ".layers." not in name}
    plan = TrainingPlan(seconds=1e9, steps=60, rate=3e-3, batch=8)
    known = texts[8:16]  # a random target has nothing that holds for other texts
    result = distil(teacher, draft, texts[8:], known, plan, tmp_path / "state.pt", Listening(lines))
    assert result.after > result.before + 0.05
    assert acceptance(draft, known) == pytest.approx(result.after)  # the best values are in it
    assert all(torch.equal(draft.state_dict()[name], value) for name, value in frozen.items())
    assert any("Acceptance rate" in line for line in lines)


def test_a_harmful_training_leaves_the_draft_unchanged(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path
) -> None:
    draft = learner(gguf)
    before = {name: value.clone() for name, value in draft.state_dict().items()}
    plan = TrainingPlan(seconds=1e9, steps=6, rate=10.0, batch=8)
    result = distil(teacher, draft, texts[8:], texts[:8], plan, tmp_path / "state.pt", Listening([]))
    assert result.after == result.before
    assert all(torch.equal(draft.state_dict()[name], value) for name, value in before.items())


def test_a_killed_training_resumes(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, plan = tmp_path / "state.pt", TrainingPlan(seconds=1e9, steps=30, rate=1e-3, batch=8)
    looks = 0

    def killed(model: Any, some: list[TargetText]) -> float:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt
        return acceptance(model, some)

    with monkeypatch.context() as patch:
        patch.setattr(distil_module, "acceptance", killed)
        with pytest.raises(KeyboardInterrupt):
            distil(teacher, learner(gguf), texts[8:], texts[:8], plan, state, Listening([]))
    steps = torch.load(state, weights_only=True)["counters"][1]
    lines: list[str] = []
    result = distil(teacher, learner(gguf), texts[8:], texts[:8], plan, state, Listening(lines))
    assert lines[0] == f"Resuming after {steps} steps"
    assert result.steps > steps
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_gpu_gets_smaller_batches_with_a_message(
    gguf: Path, teacher: Any, texts: list[TargetText], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = distil_module._logits

    def full(model: Any, batch: Any) -> Any:
        if len(batch.tokens) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, batch)

    monkeypatch.setattr(distil_module, "_logits", full)
    lines: list[str] = []
    plan = TrainingPlan(seconds=1e9, steps=3, rate=1e-3, batch=8)
    result = distil(
        teacher, learner(gguf), texts[8:], texts[:8], plan, tmp_path / "state.pt", Listening(lines)
    )
    assert [line for line in lines if "GPU memory" in line] == [
        "Out of GPU memory; continuing with 4 texts at a time",
        "Out of GPU memory; continuing with 2 texts at a time",
    ]
    assert result.steps > 0


def test_a_full_gpu_generates_fewer_texts_at_a_time() -> None:
    sizes = []

    def run(items: list[int]) -> list[int]:
        if len(items) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(items))
        return [-item for item in items]

    assert torch_devices.run_in_halves(list(range(10)), run) == [-item for item in range(10)]
    assert max(sizes) <= 3
