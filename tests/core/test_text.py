"""Streamed text equals the text of all tokens at once; `TEXT_STREAM_CASES=100000` tries as many of them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream

LINES = ["the cat sat on the mat 🐈🐈", "日本語のテキスト 日本", "naïve café 👩‍👩‍👧 über", "你好，世界"]
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
SPACE = "\u2581"  # SentencePiece's
CASES = int(os.environ.get("TEXT_STREAM_CASES", "300"))  # of each tokenizer

words = st.lists(st.sampled_from([*"aé日本語🐈 .", "👩‍👩‍👧", "the ", "世界", "\n"]), max_size=20).map("".join)


def byte_level() -> Tokenizer:
    """A byte-level BPE with a few merges: most characters beyond ASCII take several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(LINES, trainer)
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    return tokenizer


TOKENIZER = byte_level()
END = TOKENIZER.encode("<|end|>").ids[0]


def streamed(tokens: list[int]) -> tuple[list[str], str]:
    stream = TextStream(TOKENIZER)
    pieces = [stream.push(token) for token in tokens]
    return pieces, stream.flush()


@given(words)
def test_pieces_are_whole_characters_and_add_up(text: str) -> None:
    pieces, rest = streamed(TOKENIZER.encode(text).ids)
    assert "".join(pieces) == text
    assert rest == ""
    assert not any(UNKNOWN in piece for piece in pieces)


@given(words, st.integers(0, 60))
def test_a_text_that_ends_anywhere_is_what_decoding_it_whole_gives(text: str, count: int) -> None:
    tokens = TOKENIZER.encode(text).ids[:count]
    pieces, rest = streamed(tokens)
    assert "".join(pieces) + rest == TOKENIZER.decode(tokens)
    assert not any(UNKNOWN in piece for piece in pieces)


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=12))
def test_so_is_one_of_any_tokens_at_all(tokens: list[int]) -> None:
    pieces, rest = streamed(tokens)
    assert "".join(pieces) + rest == TOKENIZER.decode(tokens)


def test_an_incomplete_character_shows_as_unknown() -> None:
    tokens = TOKENIZER.encode("a語").ids[:-1]
    assert len(tokens) > 1
    assert streamed(tokens)[1] == UNKNOWN


def with_byte_tokens(*steps: Any) -> Tokenizer:
    """A tokenizer of a few words that spells everything else in byte tokens."""
    texts = [f"<0x{byte:02X}>" for byte in range(256)]
    texts += [
        "<unk>",
        SPACE,
        2 * SPACE,
        f"{SPACE}the",
        "a",
        "é",
        "日",
        f"b{SPACE}",
        UNKNOWN,
        "<0xZZ>",
        "<0xff>",
    ]
    tokenizer = Tokenizer(models.BPE({text: at for at, text in enumerate(texts)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(list(steps))
    return tokenizer


def wordpiece(cleanup: bool) -> Tokenizer:
    texts = [
        "[UNK]",
        "the",
        "##s",
        "cat",
        *".,!?i日",
        "n't",
        "'s",
        "do",
        "##",
        "##日",
        "##'m",
        "'ve",
        UNKNOWN,
    ]
    tokenizer = Tokenizer(models.WordPiece({text: at for at, text in enumerate(texts)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    return tokenizer


def unigram(decoder: Any) -> Tokenizer:
    texts = ["<unk>", SPACE, 2 * SPACE, f"{SPACE}the", "a", "é", "日", f"{SPACE}日", f"b{SPACE}"]
    tokenizer = Tokenizer(models.Unigram([(text, -float(at)) for at, text in enumerate(texts)], 0))
    tokenizer.decoder = decoder
    return tokenizer


def word_ends() -> Tokenizer:
    texts = ["a</w>", "b", "c</w>", "</w>"]
    tokenizer = Tokenizer(models.BPE({text: at for at, text in enumerate(texts)}, []))
    tokenizer.decoder = decoders.BPEDecoder()
    return tokenizer


BYTES = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
SHAPES: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "bytes": lambda: with_byte_tokens(*BYTES),
    "bytes, a space in front": lambda: with_byte_tokens(*BYTES, decoders.Strip(" ", 1, 0)),
    "bytes, words": lambda: with_byte_tokens(decoders.ByteFallback(), decoders.Metaspace()),
    "wordpiece": lambda: wordpiece(cleanup=False),
    "wordpiece, cleaned up": lambda: wordpiece(cleanup=True),
    "unigram": lambda: unigram(decoders.Metaspace(prepend_scheme="first")),
    "unigram, bare": lambda: unigram(decoders.Metaspace(prepend_scheme="never")),
    "no decoder": lambda: unigram(None),
    "word ends": word_ends,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_add_up_for_every_kind_of_tokenizer(shape: str) -> None:
    tokenizer, dice = SHAPES[shape](), random.Random(shape)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<|end|>", "<é>")])
    tokenizer.add_tokens([AddedToken("<x y>", special=False)])
    size = tokenizer.get_vocab_size() + 2  # the last two are padding of the logits
    for _ in range(CASES):
        own = dice.sample(range(size), min(size, dice.choice((2, 4, 300))))
        tokens, shown = dice.choices(own, k=dice.choice((1, 2, 3, 5, 8, 20, 60))), dice.random() < 0.3
        stream = TextStream(tokenizer, shown=shown)
        text = "".join(map(stream.push, tokens)) + stream.flush()
        assert text == tokenizer.decode(tokens, skip_special_tokens=not shown), tokens


def test_a_run_of_byte_tokens_is_held_until_it_ends() -> None:
    tokenizer = with_byte_tokens(*BYTES)
    tokens = [*"é語".encode(), 260, *"é".encode(), 0xF0, 260, 0x0A]
    stream = TextStream(tokenizer)
    pieces = list(map(stream.push, tokens))
    assert [piece for piece in pieces if piece] == ["é語a", 3 * UNKNOWN + "a"]  # one for each byte of the run
    assert stream.flush() == "\n"


@pytest.mark.parametrize("shape", ["byte level", "bytes", "unigram", "wordpiece"])
def test_a_token_costs_the_same_in_a_long_answer(shape: str) -> None:
    tokenizer, dice = SHAPES[shape](), random.Random(0)

    def seconds(tokens: list[int]) -> float:
        stream, started = TextStream(tokenizer), time.process_time()
        for token in tokens:
            stream.push(token)
        stream.flush()
        return time.process_time() - started

    for choice in (range(tokenizer.get_vocab_size()), [0xF0]):  # any tokens, and one that is never complete
        tokens = (
            dice.choices(choice, k=16_000)
            if len(choice) > 1
            else [choice[0] % tokenizer.get_vocab_size()] * 16_000
        )
        assert (
            min(seconds(tokens) for _ in range(3)) < 12 * min(seconds(tokens[:4000]) for _ in range(3)) + 0.01
        )


def test_chosen_special_tokens_are_shown() -> None:
    stream = TextStream(TOKENIZER, shown=["<|end|>"])
    first, *others = TOKENIZER.encode("語").ids
    assert "".join(map(stream.push, [first, *others, END, first])) + stream.flush() == f"語<|end|>{UNKNOWN}"


def test_special_tokens_have_no_text() -> None:
    first, *others = TOKENIZER.encode("語").ids
    pieces, rest = streamed([END, first, END, *others, END, first])
    assert "".join(pieces) == "語"
    assert rest == UNKNOWN


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_a_settler_streams_real_text_for_any_run_length(size: int) -> None:
    tokens = TOKENIZER.encode("the cat 🐈 sat. 日本語のテキスト").ids
    processor = OutputProcessor(TextStream(TOKENIZER), stop=["のテ"], max_new_tokens=100)
    text, finish = "", None
    for at in range(0, len(tokens), size):
        found = processor.process(tokens[at : at + size])
        text, finish = text + found.text, found.finish
        if finish:
            break
    assert (text, finish) == ("the cat 🐈 sat. 日本語", "stop")
