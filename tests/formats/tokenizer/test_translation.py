from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from localspec.drafters.universal.alignment import Alignment
from localspec.errors import UnsupportedModel
from localspec.formats.tokenizer import vocabulary
from localspec.formats.tokenizer.token_bytes import Translation
from localspec.formats.tokenizer.translation import SPACE, ModelTokenizer, build_translation, special_bytes

HERE = Path(__file__).parent
CORPUS = [path.read_text("utf-8") for path in (HERE / "test_translation.py", HERE / "test_vocabulary.py")]
CHAT = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def trained(pre: Any, size: int, special: list[str]) -> Tokenizer:
    """Return byte-level BPE of `size` tokens, the special ones first."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer, found.decoder = pre, decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    found.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        ),
    )
    return found


@cache
def qwen() -> ModelTokenizer:
    """A model whose end of turn is not its first stop token; one plain token lies beyond its vocabulary."""
    found = trained(vocabulary._pre_tokenizer(vocabulary.PRE_TOKENIZERS["qwen2"]), 900, CHAT)
    found.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return ModelTokenizer("qwen", found, stops=[0, 2])


@cache
def gpt2() -> ModelTokenizer:
    """A model that puts a space before its texts, normalizes them, and begins them with a token."""
    found = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 600, ["<s>", "</s>", "<|im_start|>"])
    found.normalizer = normalizers.NFC()
    return ModelTokenizer("gpt2", found, stops=[1], first=[0])


@cache
def sentencepiece() -> ModelTokenizer:
    """A model of SentencePiece's kind: a mark for a space, and bytes for what has no token."""
    learnt = Tokenizer(models.BPE())
    learnt.normalizer = normalizers.Replace(" ", SPACE)
    learnt.pre_tokenizer = pre_tokenizers.Metaspace(split=True)
    learnt.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=500, show_progress=False))
    state = json.loads(learnt.to_str())["model"]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = {text: token for token, text in enumerate([*texts, *state["vocab"]])}
    merges = [tuple(merge) for merge in state["merges"]]
    found = Tokenizer(models.BPE(words, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    found.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    found.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    found.add_special_tokens(["<unk>", "<s>", "</s>"])
    return ModelTokenizer("sentencepiece", found, stops=[2], first=[1])


SPEAKERS = {speaker.__name__: speaker for speaker in (qwen, gpt2, sentencepiece)}
PAIRS = [(one, other) for one in SPEAKERS for other in SPEAKERS]
every_pair = pytest.mark.parametrize("pair", PAIRS, ids=" ".join)

code = st.sampled_from(
    ["def f(x):\n    return x\n", "\t\tif a:\r\n", "x = [1, 22, 333]", "<|im_end|>", SPACE]
)
strange = st.sampled_from(
    ["😀👩‍👩‍👧", "e\u0301", "한국어", "語", "\u00a0", "\ufeff", "  \n\n  ", "\r\n", "</s>", "ﬁ"]
)
texts = st.lists(st.one_of(code, strange, st.text(max_size=8)), max_size=6).map("".join)
changes = st.lists(
    st.tuples(st.integers(0, 60), texts, st.lists(st.integers(0, 2000), max_size=3)), max_size=6
)


@cache
def translation(pair: tuple[str, str]) -> Translation:
    return build_translation(SPEAKERS[pair[0]](), SPEAKERS[pair[1]]())


@every_pair
@given(changes)
@settings(max_examples=60)
def test_the_draft_reads_exactly_the_targets_text(
    pair: tuple[str, str], changes: list[tuple[int, str, list[int]]]
) -> None:
    """Texts grow, are cut anywhere and continue with any tokens; a draft adds wrong ones in between."""
    both = translation(pair)
    found, tokens = Alignment(both), list[int]()
    for kept, text, strays in changes:
        size = len(both.target.token_bytes)
        tokens = tokens[:kept] + both.target.encode(text.encode()) + [stray % size for stray in strays]
        found.follow(tokens)
        expected = b"".join(map(both.target.bytes_of, tokens))
        assert bytes(found.draft.text) == expected
        assert b"".join(map(both.draft.bytes_of, found.draft.tokens)) == expected
        assert tuple(found.draft.tokens[: len(both.first)]) == both.first
        for stray in strays:
            found.extend(stray % len(both.draft.token_bytes))


@every_pair
@given(st.one_of(texts.map(str.encode), st.binary(max_size=20)))
def test_encoding_keeps_the_bytes(pair: tuple[str, str], text: bytes) -> None:
    for found in (translation(pair).target, translation(pair).draft):
        assert b"".join(map(found.bytes_of, found.encode(text))) == text


@every_pair
@given(st.lists(st.tuples(texts, st.integers(1, 9)), max_size=5))
@settings(max_examples=40)
def test_a_text_that_grows_is_read_as_a_whole_one(
    pair: tuple[str, str], parts: list[tuple[str, int]]
) -> None:
    both = translation(pair)
    words = "".join(f"{text} word\n" for text, _ in parts)  # some place to cut within reach
    tokens = both.target.encode(words.encode())
    found, fresh = Alignment(both), Alignment(both)
    for end in range(0, len(tokens), max([1, *(size for _, size in parts)])):
        found.follow(tokens[:end])
    found.follow(tokens)
    fresh.follow(tokens)
    if pair[1] != "sentencepiece":  # which merges across words
        assert found.draft.tokens == fresh.draft.tokens


@pytest.mark.parametrize("name", ["qwen", "gpt2"])
@given(st.text("ab \n.(x", max_size=40))
def test_text_is_cut_as_the_model_cuts_it(name: str, text: str) -> None:
    speaker = SPEAKERS[name]()
    own = translation((name, name)).draft.encode(text.encode())
    state = json.loads(speaker.tokenizer.to_str())
    state["pre_tokenizer"]["add_prefix_space"] = False
    plain = Tokenizer.from_str(json.dumps(state))
    assert own == plain.encode(text, add_special_tokens=False).ids


def test_special_tokens_match_by_text_or_role() -> None:
    both = translation(("qwen", "gpt2"))
    rendered = qwen().tokenizer.encode("<|im_start|>hi<|im_end|><|endoftext|>").ids
    found = Alignment(both)
    found.follow(rendered)
    of_draft = gpt2().tokenizer
    assert [of_draft.id_to_token(token) for token in found.draft.tokens] == [
        "<s>",
        "<|im_start|>",
        *["h", "i"],
        "</s>",
        "</s>",
    ]
    assert both.stop_tokens == {1}
    assert both.target.encode(both.draft.bytes_of(1)) == [2]  # the end of a turn, not of the text


def test_a_special_token_unknown_to_the_draft_is_plain_text() -> None:
    both = translation(("gpt2", "qwen"))
    assert both.target.bytes_of(0) == b""  # the draft begins its own way
    both = translation(("qwen", "sentencepiece"))
    assert both.target.bytes_of(1) == b"<|im_start|>"
    assert both.draft.bytes_of(2) == both.target.bytes_of(2) == both.target.bytes_of(0) != b"</s>"


def test_a_special_token_unknown_to_the_target_is_not_expressible() -> None:
    both = translation(("sentencepiece", "qwen"))
    assert not both.draft.is_expressible(1)
    assert both.draft.is_expressible(2)
    assert both.draft.bytes_of(2) == both.draft.bytes_of(0) == both.target.bytes_of(2)


def test_text_that_looks_like_a_special_token_is_text() -> None:
    both = translation(("qwen", "qwen"))
    assert len(both.draft.encode(b"<|im_end|>")) > 1
    assert both.draft.encode(special_bytes("<|im_end|>")) == [2]
    assert both.draft.encode(b"<tool_call>") == [qwen().tokenizer.token_to_id("<tool_call>")]


def test_a_model_without_stop_tokens_shares_none() -> None:
    silent = ModelTokenizer("silent", gpt2().tokenizer)
    both = build_translation(qwen(), silent)
    assert both.stop_tokens == frozenset()
    assert both.target.bytes_of(2) == b"<|im_end|>"


def test_bytes_without_a_token_are_replaced_one_by_one() -> None:
    few = vocabulary.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": ["a", "?", "b"],
            "tokenizer.ggml.merges": [],
        }
    )
    both = build_translation(qwen(), ModelTokenizer("few", few))
    found = Alignment(both)
    for text in ("a é", "a éb", "bb"):
        found.follow(both.target.encode(text.encode()))
        assert len(found.draft.text) == len(text.encode())
        assert found.draft.tokens == [{97: 0, 98: 2}.get(byte, 1) for byte in text.encode()]


def test_a_tokenizer_without_bytes_is_rejected() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(UnsupportedModel, match="`words` are not made of bytes"):
        build_translation(qwen(), ModelTokenizer("words", words))
