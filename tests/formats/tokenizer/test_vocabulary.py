from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

import models
from localspec.errors import BrokenModel, UnsupportedModel, VocabularyMismatch
from localspec.formats.gguf.file import GgufFile
from localspec.formats.tokenizer import vocabulary
from localspec.formats.tokenizer.gguf.tokens import GgufTokens

DATA = Path(__file__).parents[2] / "data"

TINY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": [*"abc", "ab", "abc", "<|begin|>", "<|im_end|>", "<|eot_id|>", "</s>", "<x y>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 3, 3, 3, 1, 4],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 5,
    "tokenizer.ggml.eos_token_id": 6,
}


def pairs(name: str) -> list[tuple[str, list[int]]]:
    """Read strings and llama.cpp's ids for them."""
    found: list[tuple[str, list[int]]] = json.loads((DATA / name).read_text())
    return found


def stops(metadata: dict[str, Any]) -> list[int]:
    return GgufTokens.read(metadata).stops


def first(metadata: dict[str, Any]) -> list[int]:
    return GgufTokens.read(metadata).first


def check(tokenizer: Tokenizer, expected: list[tuple[str, list[int]]]) -> None:
    assert len(expected) >= 100
    for text, ids in expected:
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, repr(text)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.fixture(scope="session")
def of_smollm2(smollm2: Path) -> dict[str, Any]:
    return GgufFile.open(smollm2).metadata


def test_smollm2_gives_llama_cpps_ids(of_smollm2: dict[str, Any]) -> None:
    check(vocabulary.from_gguf(of_smollm2), pairs("tokens_smollm2.json"))
    assert stops(of_smollm2) == [0, 2, 4]  # <reponame> begins another file
    assert first(of_smollm2) == []


def test_a_saved_tokenizer_is_the_same(of_smollm2: dict[str, Any], tmp_path: Path) -> None:
    vocabulary.from_gguf(of_smollm2).save(str(tmp_path / "tokenizer.json"))
    check(Tokenizer.from_file(str(tmp_path / "tokenizer.json")), pairs("tokens_smollm2.json"))


@pytest.mark.parametrize("rule", sorted(json.loads((DATA / "tokens_rules.json").read_text())))
def test_every_rule_cuts_words_as_llama_cpp_does(of_smollm2: dict[str, Any], rule: str) -> None:
    expected = json.loads((DATA / "tokens_rules.json").read_text())[rule]
    check(vocabulary.from_gguf({**of_smollm2, "tokenizer.ggml.pre": rule}), expected)


def test_every_rule_is_one_of_those_checked() -> None:
    checked = {"smollm", *json.loads((DATA / "tokens_rules.json").read_text())}
    assert {rule for rule, words in vocabulary.PRE_TOKENIZERS.items()} >= checked
    assert set(vocabulary.PRE_TOKENIZERS.values()) == {vocabulary.PRE_TOKENIZERS[rule] for rule in checked}


@pytest.mark.large
def test_qwen2_gives_llama_cpps_ids() -> None:
    path = models.large("qwen2.5-coder-0.5b").files_in("gguf")
    assert path is not None
    metadata = GgufFile.open(path).metadata
    check(vocabulary.from_gguf(metadata), pairs("tokens_qwen2.json"))
    # Its ordinary token `</s>` is what people write in HTML, and ends nothing.
    assert stops(metadata) == [151643, 151645, 151662, 151663, 151664]


def test_some_rules_prefer_whole_words_to_merges() -> None:
    assert vocabulary.from_gguf(TINY).encode("abc", add_special_tokens=False).ids == [4]
    other = {**TINY, "tokenizer.ggml.pre": "gpt-2"}
    assert vocabulary.from_gguf(other).encode("abc", add_special_tokens=False).ids == [3, 2]


def test_control_and_user_defined_tokens_stand_for_their_text() -> None:
    tokenizer = vocabulary.from_gguf(TINY)
    assert tokenizer.encode("a<x y>b<|im_end|>", add_special_tokens=False).ids == [0, 9, 1, 6]
    assert tokenizer.decode([0, 9, 6]) == "a<x y>"  # control tokens are silent, user-defined ones are not


def test_stop_tokens() -> None:
    assert stops(TINY) == [6, 7]
    assert stops({**TINY, "tokenizer.ggml.eot_token_id": 5}) == [5, 6, 7]
    assert stops({**TINY, "tokenizer.ggml.eos_token_id": 99}) == [6, 7]


def test_the_bos_token_is_added_only_if_configured() -> None:
    assert first({**TINY, "tokenizer.ggml.add_bos_token": False}) == []
    assert first({**TINY, "tokenizer.ggml.add_bos_token": True}) == [5]
    assert first(TINY) == [5]  # llama.cpp adds it for Llama 3 when the file is silent
    assert first({**TINY, "tokenizer.ggml.pre": "qwen2"}) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "has no tokens of bytes"),
        ({"tokenizer.ggml.model": "bert"}, "Tokenizers of type `bert` cannot be read"),
        ({"tokenizer.ggml.model": "t5"}, "Tokenizers of type `t5` cannot be read"),
        ({"tokenizer.ggml.model": "rwkv"}, "Tokenizers of type `rwkv` cannot be read"),
        ({"tokenizer.ggml.model": None}, "Tokenizers of type `None` cannot be read"),
        ({"tokenizer.ggml.pre": "viking"}, "Unknown pre-tokenizer `viking`"),
        ({"tokenizer.ggml.pre": None}, "Unknown pre-tokenizer `None`"),
        ({"tokenizer.ggml.pre": "default"}, "Unknown pre-tokenizer `default`"),
    ],
)
def test_unknown_tokenizers_are_rejected(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        vocabulary.from_gguf({**TINY, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.tokens": None}, "no list of tokens"),
        ({"tokenizer.ggml.token_type": [1]}, "10 tokens and 1 token types"),
        ({"tokenizer.ggml.merges": None}, "no list of merges"),
        ({"tokenizer.ggml.merges": ["x y"]}, "The vocabulary cannot be read"),
    ],
)
def test_a_vocabulary_that_contradicts_itself(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BrokenModel, match=message):
        vocabulary.from_gguf({**TINY, **change})


def with_tokens(tokens: list[str]) -> Tokenizer:
    kinds = [1] * len(tokens)
    return vocabulary.from_gguf({**TINY, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": kinds})


def test_vocabularies_are_compared_id_by_id() -> None:
    target = with_tokens(["a", "b", "ab", "c", "d"])
    assert vocabulary.first_difference(target, with_tokens(["a", "b", "ab", "c", "d"])) is None
    assert vocabulary.first_difference(target, with_tokens(["a", "b", "ab", "c", "d", "[PAD5]"])) is None
    other = with_tokens(["a", "b", "ab", "d", "c"])
    assert vocabulary.first_difference(target, other) == (3, "c", "d")
    with pytest.raises(VocabularyMismatch, match="Token 3 is `c` in `big` and `d` in `small`"):
        vocabulary.check_same(target, other, "big", "small")
