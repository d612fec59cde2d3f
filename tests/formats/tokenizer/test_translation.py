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
from localspec.formats.tokenizer.translation import SPACE, Speaker, between, mark

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
def qwen() -> Speaker:
    """A model whose end of turn is not its first stop; a plain token of it is beyond the vocabulary."""
    found = trained(vocabulary._pre_tokenizer(vocabulary.WORDS["qwen2"]), 900, CHAT)
    found.add_tokens([AddedToken("<tool_call>", special=False, normalized=False)])
    return Speaker("qwen", found, stops=[0, 2])


@cache
def gpt2() -> Speaker:
    """A model that puts a space before its texts, normalizes them, and begins them with a token."""
    found = trained(pre_tokenizers.ByteLevel(add_prefix_space=True), 600, ["<s>", "</s>", "<|im_start|>"])
    found.normalizer = normalizers.NFC()
    return Speaker("gpt2", found, stops=[1], first=[0])


@cache
def sentencepiece() -> Speaker:
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
    return Speaker("sentencepiece", found, stops=[2], first=[1])


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
    return between(SPEAKERS[pair[0]](), SPEAKERS[pair[1]]())


@every_pair
@given(changes)
@settings(max_examples=60)
def test_the_draft_reads_exactly_the_targets_text(
    pair: tuple[str, str], changes: list[tuple[int, str, list[int]]]
) -> None:
    """Texts grow, are cut anywhere, go on with any tokens; a draft goes on with wrong ones in between."""
    both = translation(pair)
    found, tokens = Alignment(both), list[int]()
    for kept, text, strays in changes:
        size = len(both.target.pieces)
        tokens = tokens[:kept] + both.target.encode(text.encode()) + [stray % size for stray in strays]
        found.follow(tokens)
        expected = b"".join(map(both.target.piece, tokens))
        assert bytes(found.draft.text) == expected
        assert b"".join(map(both.draft.piece, found.draft.tokens)) == expected
        assert tuple(found.draft.tokens[: len(both.first)]) == both.first
        for stray in strays:
            found.extend(stray % len(both.draft.pieces))


@every_pair
@given(st.one_of(texts.map(str.encode), st.binary(max_size=20)))
def test_tokens_say_the_bytes_they_were_made_from(pair: tuple[str, str], text: bytes) -> None:
    for found in (translation(pair).target, translation(pair).draft):
        assert b"".join(map(found.piece, found.encode(text))) == text


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


def test_special_tokens_are_the_same_by_text_and_by_what_they_do() -> None:
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
    assert both.ends == {1}
    assert both.target.encode(both.draft.piece(1)) == [2]  # the end of a turn, not of the text


def test_a_special_token_that_the_draft_has_not_is_its_text_to_it() -> None:
    both = translation(("gpt2", "qwen"))
    assert both.target.piece(0) == b""  # the draft begins its own way
    both = translation(("qwen", "sentencepiece"))
    assert both.target.piece(1) == b"<|im_start|>"
    assert both.draft.piece(2) == both.target.piece(2) == both.target.piece(0) != b"</s>"


def test_a_special_token_that_the_target_has_not_cannot_be_said() -> None:
    both = translation(("sentencepiece", "qwen"))
    assert not both.draft.speaks(1)
    assert both.draft.speaks(2)
    assert both.draft.piece(2) == both.draft.piece(0) == both.target.piece(2)


def test_text_that_looks_like_a_special_token_is_text() -> None:
    both = translation(("qwen", "qwen"))
    assert len(both.draft.encode(b"<|im_end|>")) > 1
    assert both.draft.encode(mark("<|im_end|>")) == [2]
    assert both.draft.encode(b"<tool_call>") == [qwen().tokenizer.token_to_id("<tool_call>")]


def test_a_model_that_ends_nothing_has_no_end_in_common() -> None:
    silent = Speaker("silent", gpt2().tokenizer)
    both = between(qwen(), silent)
    assert both.ends == frozenset()
    assert both.target.piece(2) == b"<|im_end|>"


def test_bytes_that_no_token_has_are_read_as_something_as_long() -> None:
    few = vocabulary.from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": ["a", "?", "b"],
            "tokenizer.ggml.merges": [],
        }
    )
    both = between(qwen(), Speaker("few", few))
    found = Alignment(both)
    for text in ("a é", "a éb", "bb"):
        found.follow(both.target.encode(text.encode()))
        assert len(found.draft.text) == len(text.encode())
        assert found.draft.tokens == [{97: 0, 98: 2}.get(byte, 1) for byte in text.encode()]


def test_a_tokenizer_that_is_not_made_of_bytes_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    with pytest.raises(UnsupportedModel, match="`words` are not made of bytes"):
        between(qwen(), Speaker("words", words))
