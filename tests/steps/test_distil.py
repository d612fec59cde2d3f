"""Teaching a tiny draft: it learns, never gets worse, goes on after a kill, and survives a full card."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from localspec.drafting.build_step import Text
from localspec.formats.huggingface import loading, torch_devices
from localspec.steps.heal import distil as distilling
from localspec.steps.heal import texts as writing
from localspec.steps.heal.distil import Lesson, acceptance, distil
from localspec.steps.heal.texts import write

pytestmark = pytest.mark.engines

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "Q8_0", layers=4, interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def teacher(gguf: Path) -> Any:
    return loading.load(gguf, CPU, torch.float32)


@pytest.fixture(scope="module")
def texts(teacher: Any) -> list[Text]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "QUESTION", 6)
        patch.setattr(writing, "ANSWER", 20)
        found = write(teacher, [([3, 1], [4])], [95], seconds=1e9, most=48, batch=16, seed=0)
        return [text for some in found for text in some]


def learner(gguf: Path) -> Any:
    draft = loading.load_trainable(gguf, CPU, [0, 1, 3])
    draft.requires_grad_(False)
    draft.base_model.layers.requires_grad_(True)
    return draft


def test_texts_are_the_models_own_greedy_answers(teacher: Any, texts: list[Text]) -> None:
    assert len(texts) == 48
    for prompt, answer in texts[:4]:
        assert prompt[:2] == [3, 1]
        assert prompt[-1] == 4
        given = torch.tensor([[*prompt, *answer]])
        likely = teacher(given).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
        assert likely == answer
    assert len({tuple(text.prompt) for text in texts}) > 24  # what users say is drawn


def test_given_prompts_are_answered_and_nothing_is_invented(teacher: Any) -> None:
    asked = [[3, 1, 4, 1], [5, 9, 2]]
    found = write(teacher, [], [95], asked=asked, seconds=1e9, most=9, batch=1, seed=0)
    assert [text.prompt for some in found for text in some] == asked


def test_time_ends_writing(teacher: Any) -> None:
    assert list(write(teacher, [([3], [4])], [95], seconds=0, most=9, batch=4, seed=0)) == []


def test_a_draft_learns_what_its_target_says(
    gguf: Path, teacher: Any, texts: list[Text], tmp_path: Path
) -> None:
    draft, lines = learner(gguf), []
    frozen = {name: value.clone() for name, value in draft.state_dict().items() if ".layers." not in name}
    lesson = Lesson(seconds=1e9, steps=60, rate=3e-3, batch=8)
    taught = distil(teacher, draft, texts[8:], texts[:8], lesson, tmp_path / "state.pt", lines.append)
    assert taught.after > taught.before + 0.05
    assert acceptance(draft, texts[:8]) == pytest.approx(taught.after)  # the best values are in it
    assert all(torch.equal(draft.state_dict()[name], value) for name, value in frozen.items())
    assert any("of the target's tokens are guessed" in line for line in lines)


def test_a_lesson_that_does_harm_leaves_the_draft_as_it_was(
    gguf: Path, teacher: Any, texts: list[Text], tmp_path: Path
) -> None:
    draft = learner(gguf)
    before = {name: value.clone() for name, value in draft.state_dict().items()}
    lesson = Lesson(seconds=1e9, steps=6, rate=10.0, batch=8)
    taught = distil(teacher, draft, texts[8:], texts[:8], lesson, tmp_path / "state.pt", lambda line: None)
    assert taught.after == taught.before
    assert all(torch.equal(draft.state_dict()[name], value) for name, value in before.items())


def test_a_killed_lesson_goes_on(
    gguf: Path, teacher: Any, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, lesson = tmp_path / "state.pt", Lesson(seconds=1e9, steps=30, rate=1e-3, batch=8)
    looks = 0

    def killed(model: Any, some: list[Text]) -> float:
        nonlocal looks
        looks += 1
        if looks == 4:
            raise KeyboardInterrupt
        return acceptance(model, some)

    with monkeypatch.context() as patch:
        patch.setattr(distilling, "acceptance", killed)
        with pytest.raises(KeyboardInterrupt):
            distil(teacher, learner(gguf), texts[8:], texts[:8], lesson, state, lambda line: None)
    steps = torch.load(state, weights_only=True)["numbers"][1]
    lines: list[str] = []
    taught = distil(teacher, learner(gguf), texts[8:], texts[:8], lesson, state, lines.append)
    assert lines[0] == f"Going on after {steps} steps"
    assert taught.steps > steps
    assert not list(tmp_path.glob("*.partial"))


def test_a_full_card_gets_smaller_batches_and_the_user_is_told(
    gguf: Path, teacher: Any, texts: list[Text], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = distilling._logits

    def full(model: Any, batch: Any) -> Any:
        if len(batch.tokens) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(model, batch)

    monkeypatch.setattr(distilling, "_logits", full)
    lines: list[str] = []
    lesson = Lesson(seconds=1e9, steps=3, rate=1e-3, batch=8)
    taught = distil(teacher, learner(gguf), texts[8:], texts[:8], lesson, tmp_path / "state.pt", lines.append)
    assert [line for line in lines if "full" in line] == [
        "The card is full: texts are read 4 at a time",
        "The card is full: texts are read 2 at a time",
    ]
    assert taught.steps > 0


def test_writing_on_a_full_card_takes_fewer_texts_at_a_time() -> None:
    sizes = []

    def run(items: list[int]) -> list[int]:
        if len(items) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(items))
        return [-item for item in items]

    assert torch_devices.run_in_halves(list(range(10)), run) == [-item for item in range(10)]
    assert max(sizes) <= 3
