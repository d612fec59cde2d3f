"""Texts that a decoder of our own writes in the rows of one batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from localspec.decoder.loading import of_model
from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface import loading
from localspec.training import writing
from localspec.training.writing import Limits, Start, TextWriter, longest

pytestmark = [pytest.mark.engines, pytest.mark.usefixtures("one_torch_thread")]

BEFORE, AFTER = [3, 1], [4, 9]
LIMITS = Limits(question=6, answer=20)
STOPS = [95, 60]
Write = Callable[..., list[TargetText]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tiny.make("llama", "Q8_0", layers=2, interleaved=True, seed=3)
    return tiny.write_gguf(model, tmp_path_factory.mktemp("tiny") / "tiny.gguf")


@pytest.fixture(scope="module")
def model(file: Path) -> Any:
    return loading.load(file, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def write(file: Path, model: Any) -> Write:
    def written(
        starts: list[Start], rows: int = 5, more: Callable[[], bool] = lambda: True, seed: int = 0
    ) -> list[TargetText]:
        writer = TextWriter(of_model(model, file, 64), rows, STOPS, LIMITS, seed)
        return [text for some in writer.write(starts, more) for text in some]

    return written


def check(model: Any, text: TargetText, *, cut: bool = False) -> None:
    """Check that an answer is the model's greedy one, up to a stop token or the limit."""
    likely = model(torch.tensor([[*text.prompt, *text.answer]])).logits[0].argmax(-1)
    assert likely[len(text.prompt) - 1 : -1].tolist() == text.answer
    stops = [at for at, token in enumerate(text.answer) if token in STOPS]
    assert stops in ([], [len(text.answer) - 1])
    assert cut or stops or len(text.answer) == LIMITS.answer


def test_questions_are_drawn_and_answers_are_greedy(model: Any, write: Write) -> None:
    found = write([Start(BEFORE, AFTER)] * 40)
    assert 36 <= len(found) <= 40  # few questions are drawn empty
    for prompt, answer in found:
        check(model, TargetText(prompt, answer))
        assert (prompt[:2], prompt[-2:]) == (BEFORE, AFTER)
        assert 1 <= len(prompt) - 4 <= LIMITS.question
        assert not set(prompt[2:-2]) & set(STOPS)
    assert len({tuple(text.prompt) for text in found}) > 30
    assert {len(text.answer) for text in found} > {LIMITS.answer}  # some stop before


def test_prompts_are_answered_in_their_order(model: Any, write: Write) -> None:
    prompts = [[3, 1, 4, 1, 5], [9], [2, 6], [5, 3, 5, 8, 9, 7, 9], [3, 2], [3, 8, 4], [6, 2, 6, 4], [3] * 12]
    found = write([Start(prompt) for prompt in prompts], rows=3)
    assert [text.prompt for text in found] == prompts
    for text in found:
        check(model, text)


def test_a_text_without_tokens_between_question_and_answer(model: Any, write: Write) -> None:
    found = write([Start([7], [])] * 30)
    assert len(found) >= 20
    for text in found:
        check(model, text)


def test_texts_come_some_at_a_time(file: Path, model: Any) -> None:
    writer = TextWriter(of_model(model, file, 64), 5, STOPS, LIMITS, 0)
    found = list(writer.write([Start(BEFORE, AFTER)] * 40, lambda: True))
    assert len(found) > 3
    assert all(found[:-1])  # no step yields nothing


def test_drawing_takes_little_memory_at_a_time(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, sorted_rows = [Start(BEFORE, AFTER)] * 12, []
    sort = torch.Tensor.sort
    monkeypatch.setattr(writing, "DRAWING", (4 * 96, 24))  # less than a row of the vocabulary

    def noted(self: Any, *given: Any, **options: Any) -> Any:
        sorted_rows.append(len(self))
        return sort(self, *given, **options)

    monkeypatch.setattr(torch.Tensor, "sort", noted)
    assert len(write(starts)) >= 10
    assert set(sorted_rows) == {1}


def test_the_seed_decides_the_questions_and_the_rows_only_the_time(write: Write) -> None:
    starts = [Start(BEFORE, AFTER)] * 12
    assert write(starts, seed=4) == write(starts, seed=4)
    assert write(starts, seed=4) != write(starts, seed=5)
    prompts = [Start(text.prompt) for text in write(starts)]
    assert write(prompts, rows=1) == write(prompts, rows=12)


def test_questions_have_the_models_distribution(model: Any, write: Write) -> None:
    """The first tokens of questions are those of the nucleus, as often as it says."""
    found = Counter(text.prompt[2] for text in write([Start(BEFORE, AFTER)] * 1200, rows=300))
    probs = model(torch.tensor([BEFORE])).logits[0, -1].softmax(-1)
    probs[STOPS] = 0.0  # such questions are empty
    total = sum(found.values())
    for token, count in found.most_common(8):
        assert abs(count / total - probs[token].item() / 0.95) < 0.03
    ordered = model(torch.tensor([BEFORE])).logits[0, -1].softmax(-1).sort(descending=True)
    nucleus = ordered.indices[ordered.values.cumsum(-1) - ordered.values <= 0.95].tolist()
    assert set(found) <= set(nucleus)


def test_texts_end_where_they_are_when_the_time_is_over(model: Any, write: Write) -> None:
    left, starts = iter([True] * 17), [Start([2, 1, 4]), Start([9]), Start(BEFORE, AFTER), Start([5])]
    found = write(starts, 4, lambda: next(left, False))
    assert [text.prompt for text in found if text.prompt[:2] != BEFORE] == [[2, 1, 4], [9], [5]]
    assert len(found[0].answer) <= 15
    for text in found:
        check(model, text, cut=True)
    assert write([Start([3])], 1, lambda: False) == []


def test_the_room_of_the_longest_text() -> None:
    assert longest([Start([1, 2], [3]), Start([1] * 5)], 10) == 13
    assert longest([Start([1, 2], [3]), Start([1] * 50)], 10) == 50


@pytest.mark.cuda
def test_a_card_writes_what_a_processor_writes(file: Path, write: Write) -> None:
    place = torch.device("cuda")
    prompts = [Start(text.prompt) for text in write([Start(BEFORE, AFTER)] * 30)]
    decoder = of_model(loading.load(file, place, torch.float32), file, 64)
    writer = TextWriter(decoder, 8, STOPS, LIMITS, 0)
    assert [text for some in writer.write(prompts, lambda: True) for text in some] == write(prompts)
    halved = of_model(loading.load(file, place, torch.bfloat16), file, 64)
    drawn = TextWriter(halved, 16, STOPS, LIMITS, 0).write([Start(BEFORE, AFTER)] * 64, lambda: True)
    assert len([text for some in drawn for text in some]) > 50
