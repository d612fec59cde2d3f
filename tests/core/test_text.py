from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream

LINES = ["the cat sat on the mat 🐈🐈", "日本語のテキスト 日本", "naïve café 👩‍👩‍👧 über", "你好，世界"]
UNKNOWN = "\N{REPLACEMENT CHARACTER}"
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


def test_so_does_one_of_a_tokenizer_that_falls_back_to_bytes() -> None:
    bytes_of = {f"<0x{byte:02X}>": byte for byte in range(256)}
    tokenizer = Tokenizer(models.BPE(vocab=bytes_of, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    stream = TextStream(tokenizer)
    assert "".join(map(stream.push, "é語".encode()[:-1])) == "é"
    assert stream.flush() == 2 * UNKNOWN  # such a tokenizer shows one for each byte


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
