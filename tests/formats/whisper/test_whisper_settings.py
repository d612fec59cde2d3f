from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tiny_whisper

from localspec.errors import BrokenModel
from localspec.formats.whisper import settings

MULTILINGUAL, ENGLISH = 51_865, 51_864


def generation(folder: Path, vocabulary: int) -> dict[str, Any]:
    marks = settings.tokenizer_marks(folder, tiny_whisper.tokenizer(vocabulary))
    return settings.generation_config(folder, marks, vocabulary, 448)


def test_a_multilingual_model_has_its_languages_and_tasks(tmp_path: Path) -> None:
    tiny_whisper.ctranslate2_folder(tmp_path)
    found = generation(tmp_path, MULTILINGUAL)
    start = found["decoder_start_token_id"]
    assert found["lang_to_id"] == {"<|en|>": start + 1, "<|zh|>": start + 2, "<|de|>": start + 3}
    assert found["task_to_id"] == {"translate": start + 4, "transcribe": start + 5}
    assert found["no_timestamps_token_id"] == MULTILINGUAL - 1502
    assert found["forced_decoder_ids"] == [[1, None], [2, start + 5]]
    assert found["is_multilingual"] is True
    assert found["alignment_heads"] == [[0, 1], [1, 0]]
    assert found["suppress_tokens"] == [1, 2, 7]
    assert found["begin_suppress_tokens"] == [220]


def test_an_english_model_has_none(tmp_path: Path) -> None:
    found = generation(tmp_path, ENGLISH)
    assert found["is_multilingual"] is False
    assert "lang_to_id" not in found
    assert "task_to_id" not in found
    assert found["forced_decoder_ids"] == [[1, found["no_timestamps_token_id"]]]


@pytest.mark.parametrize("listed", ["abc", [1.5], [[1, "a"]], [-1], {"a": 1}, [[[1]]]])
def test_lists_of_something_else_are_damage(tmp_path: Path, listed: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"suppress_ids": listed}))
    with pytest.raises(BrokenModel, match="suppress_ids"):
        generation(tmp_path, ENGLISH)


@pytest.mark.parametrize("added", [None, [], [1], [{"content": "<|endoftext|>", "id": "x"}]])
def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path, added: Any) -> None:
    with pytest.raises(BrokenModel, match="which Whisper needs"):
        settings.tokenizer_marks(tmp_path, {"added_tokens": added})
