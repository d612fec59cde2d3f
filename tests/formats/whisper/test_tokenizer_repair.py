from __future__ import annotations

import json
from typing import Any

import pytest
import tiny_whisper
from tokenizers import Tokenizer

from localspec.formats.whisper.tokenizer_repair import repaired

VOCABULARY = 2000
TEXT = " the hat in an attic"


def encoded(tokenizer: dict[str, Any]) -> list[str]:
    return list(Tokenizer.from_str(json.dumps(tokenizer)).encode(TEXT).tokens)


def test_the_first_merge_comes_back() -> None:
    whole, broken = tiny_whisper.tokenizer(VOCABULARY), tiny_whisper.tokenizer(VOCABULARY, broken=True)
    assert encoded(broken)[:2] == ["Ġ", "t"]
    found = repaired(broken)
    assert found == whole
    assert encoded(found) == encoded(whole)
    assert encoded(found)[0] == "Ġt"


def test_pairs_stay_pairs() -> None:
    broken = tiny_whisper.tokenizer(VOCABULARY, broken=True)
    broken["model"]["merges"] = [merge.split(" ") for merge in broken["model"]["merges"]]
    found = repaired(broken)
    assert found
    assert found["model"]["merges"][:2] == [["Ġ", "t"], ["Ġ", "a"]]


def test_a_whole_tokenizer_stays_as_it_is() -> None:
    assert repaired(tiny_whisper.tokenizer(VOCABULARY)) is None


@pytest.mark.parametrize(
    "model",
    [
        None,
        [],
        {"type": "Unigram"},
        {"type": "BPE"},
        {"type": "BPE", "vocab": {}, "merges": []},
        {"type": "BPE", "vocab": [], "merges": ["a b"] * 9},
        {"type": "BPE", "vocab": {"a": 0}, "merges": [1, None, {}, "a"]},
        {"type": "BPE", "vocab": {"a b c": 256}, "merges": ["a b c"] * 4},
    ],
)
def test_other_tokenizers_stay_as_they_are(model: Any) -> None:
    assert repaired({"model": model}) is None
    assert repaired({}) is None
