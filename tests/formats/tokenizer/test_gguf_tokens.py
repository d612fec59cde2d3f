"""GGUF vocabularies give llama.cpp's ids, types, ends of an answer and ends of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import letters
import llama_cpp
import pytest

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.tokenizer import vocabulary
from localspec.formats.tokenizer.gguf.tokens import GgufTokens
from localspec.library.importing import convert
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel

Shape = dict[str, Any]

SPECIAL, SHOWN = 1 | 8, 16  # llama.cpp's attributes: unknown or control, and user-defined
WORDS = json.loads(letters.byte_level().to_str())["model"]
MERGES = [merge if isinstance(merge, str) else " ".join(merge) for merge in WORDS["merges"]]
RUNS = (2, 4, 8, 5, 16, 6, 12, 13, 10, 14, 3, 9, 7, 11, 15)  # of spaces, in the order of Llama's tokens
TURNS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def byte_level(*more: str, kinds: list[int] | None = None, **values: Any) -> Shape:
    """Return the values of a byte-level vocabulary with `more` tokens of some types."""
    own = sorted(WORDS["vocab"], key=WORDS["vocab"].get)
    texts = [*own, *(text for text in more if text not in own)]
    types = [1] * (len(texts) - len(more)) + (kinds or [3] * len(more))
    return {"model": "gpt2", "pre": "qwen2", "tokens": texts, "token_type": types, "merges": MERGES, **values}


def sentencepiece(*more: str, kinds: list[int] | None = None, **values: Any) -> Shape:
    """Return the values of a SentencePiece vocabulary; its runs of spaces have one score, as Llama's have."""
    runs = [letters.SPACE * size for size in RUNS]
    pieces = [*letters.PIECES[:-1], *runs]
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces, *more]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), *(kinds or [3] * len(more))]
    scores = [
        *[0.0] * 259,
        *(-float(at) for at in range(len(pieces) - len(RUNS))),
        *[-1e9] * len(RUNS),
        *[-1000.0] * len(more),
    ]
    return {"model": "llama", "tokens": texts, "token_type": types, "scores": scores, **values}


def at(text: str, shape: Shape) -> int:
    found: int = shape["tokens"].index(text)
    return found


TYPED = byte_level(*TURNS)
OF_BYTES: dict[str, Shape] = {
    "as typed": {**TYPED, "eos_token_id": at("<|im_end|>", TYPED)},
    "a turn end typed as a word": byte_level(*TURNS, kinds=[3, 1, 3], eos_token_id=300),
    "a turn end typed as a text": byte_level(*TURNS, kinds=[4, 4, 4], eos_token_id=301),
    "no types": {key: value for key, value in TYPED.items() if key != "token_type"},
    "no roles": TYPED,
    "roles out of range": {**TYPED, "eos_token_id": 70_000, "bos_token_id": 70_000},
    "both ends": {
        **TYPED,
        **{"bos_token_id": 300, "eos_token_id": 301, "add_bos_token": True, "add_eos_token": True},
    },
    "a first token by the pre-tokenizer": {**TYPED, "pre": "llama-bpe", "bos_token_id": 300},
    "no first token against the pre-tokenizer": {
        **TYPED,
        **{"pre": "llama-bpe", "bos_token_id": 300, "add_bos_token": False},
    },
    "fill-in tokens": byte_level(
        *[
            "<|fim_prefix|>",
            "<|fim_suffix|>",
            "<|fim_middle|>",
            "<|fim_pad|>",
            "<|repo_name|>",
            "<|file_sep|>",
        ],
        kinds=[1, 4, 3, 1, 4, 3],
        eos_token_id=300,
    ),
    "fill-in tokens by id": byte_level(
        "<a>",
        "<b>",
        "<|fim_pad|>",
        eos_token_id=300,
        fim_pad_token_id=301,
        eot_token_id=300,
        eom_token_id=301,
    ),
    "channels": byte_level(
        *["<|return|>", "<|call|>", "<|end|>", "<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"],
        eos_token_id=300,
    ),
    "an end typed as control": byte_level("</s>", "<s>", eos_token_id=300),
    "unused tokens": byte_level("[PAD300]", "[PAD301]", kinds=[5, 5], eos_token_id=0),
    **{
        pre: {**TYPED, "pre": pre, "eos_token_id": 301, "bos_token_id": 300}
        for pre in vocabulary.PRE_TOKENIZERS
    },
}
OF_PIECES: dict[str, Shape] = {
    "pieces": sentencepiece(),
    "pieces without a first space": sentencepiece(add_space_prefix=False),
    "pieces without ends": sentencepiece(add_bos_token=False),
    "pieces with both ends": sentencepiece(add_eos_token=True, eos_token_id=2, bos_token_id=1),
    "pieces with turns": sentencepiece(
        "<|user|>", "<|end|>", "<x y>", "  ", kinds=[3, 1, 4, 4], eos_token_id=2
    ),
    "an end typed as a word": {
        **sentencepiece(),
        "token_type": [2, 3, 1, *sentencepiece()["token_type"][3:]],
    },
    "extra blanks": sentencepiece(remove_extra_whitespaces=True),
}


def write(shape: Shape, path: Path) -> Path:
    """Write a GGUF file with a vocabulary and no weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(64)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in shape.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_bool if isinstance(value, bool) else writer.add_uint32)(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", [*OF_BYTES, *OF_PIECES])
def test_ids_types_and_ends_are_llama_cpps(name: str, tmp_path: Path) -> None:
    shape = {**OF_BYTES, **OF_PIECES}[name]
    path = write(shape, tmp_path / "m.gguf")
    metadata = GgufFile.open(path).metadata
    tokens, own = GgufTokens.read(metadata), vocabulary.from_gguf(metadata)
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    vocab, every = theirs._model.vocab, range(theirs.n_vocab())
    # A role without an id is token 11 for llama.cpp, here only if that is no word.
    assumed = {11} if "eos_token_id" not in shape or shape["eos_token_id"] >= len(tokens.texts) else set()
    assumed = set() if shape["model"] == "llama" else assumed
    ends = {token for token in every if llama_cpp.llama_vocab_is_eog(vocab, token)}
    assert set(tokens.stops) == ends - assumed
    attributes = [llama_cpp.llama_vocab_get_attr(vocab, token) for token in every]
    assert [kind in (2, 3) for kind in tokens.kinds] == [bool(found & SPECIAL) for found in attributes]
    shown = [token for token in every if attributes[token] & SHOWN and not attributes[token] & SPECIAL]
    assert [token for token in every if tokens.kinds[token] == 4] == shown
    marks = [tokens.texts[token] for token in every if tokens.kinds[token] in (2, 3, 4)]
    begins = tuple(tokens.texts[token] for token in tokens.first)
    for text in letters.texts(
        [*marks, "<|im_end|>", "</s"], 2000 if name in (*OF_PIECES, "as typed") else 400
    ):
        ids = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert own.encode(text, add_special_tokens=False).ids == ids, text
        if not (begins and text.startswith(begins)):  # of these llama.cpp prints a warning
            framed = theirs.tokenize(text.encode(), add_bos=True, special=True)
            assert (
                own.encode(text, add_special_tokens=True).ids == framed == [*tokens.first, *ids, *tokens.last]
            )


@pytest.mark.parametrize("kind", [1, 3, 4])
def test_an_import_has_the_same_ids(kind: int, tmp_path: Path) -> None:
    """A role alone makes no special token of a word: llama.cpp reads its text as any other."""
    shape = byte_level(
        "<b>", "<e>", kinds=[kind, kind], bos_token_id=300, eos_token_id=301, add_bos_token=True
    )
    path = write(shape, tmp_path / "m.gguf")
    own = vocabulary.from_gguf(GgufFile.open(path).metadata)
    convert.from_gguf(path, tmp_path)
    model = StoredModel("m", tmp_path, Manifest(name="m", source="file:m"))
    theirs = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    for text in letters.texts(["<b>", "<e>"], 200):
        ids = theirs.tokenize(text.encode(), add_bos=False, special=True)
        assert model.tokenizer().encode(text, add_special_tokens=False).ids == ids
        assert model.encode(text) == [300, *ids] == own.encode(text).ids
    assert (model.first_tokens(), model.stop_tokens()) == ([300], [301])


def test_a_role_without_an_id_is_llama_cpps_default_if_that_is_a_control_token() -> None:
    shape = byte_level(*TURNS)
    shape["token_type"][11] = 3

    def read(shape: Shape) -> GgufTokens:
        return GgufTokens.read({f"tokenizer.ggml.{name}": value for name, value in shape.items()})

    assert 11 in read(shape).stops
    assert read({**shape, "add_bos_token": True}).first == [11]
    assert read({**byte_level(*TURNS), "add_bos_token": True}).first == []


def test_an_ordinary_end_in_html_ends_nothing(tmp_path: Path) -> None:
    """Qwen's vocabulary has a word `</s>`, which llama.cpp takes for the end of a text."""
    shape = byte_level("</s>", "<|im_end|>", kinds=[1, 3], eos_token_id=301)
    metadata = GgufFile.open(write(shape, tmp_path / "m.gguf")).metadata
    assert GgufTokens.read(metadata).stops == [301]
    tokenizer = vocabulary.from_gguf(metadata)
    assert tokenizer.decode(tokenizer.encode("<s>a</s>").ids) == "<s>a</s>"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "type `bert`"),
        ({"model": "t5"}, "type `t5`"),
        ({"model": "rwkv"}, "type `rwkv`"),
        ({"model": "plamo2"}, "type `plamo2`"),
        ({"pre": "superbpe"}, "Unknown pre-tokenizer `superbpe`"),
        ({"pre": "default"}, "Unknown pre-tokenizer `default`"),
    ],
)
def test_other_vocabularies_are_refused(change: dict[str, str], message: str) -> None:
    shape = {f"tokenizer.ggml.{name}": value for name, value in (TYPED | change).items()}
    with pytest.raises(UnsupportedModel, match=message):
        vocabulary.from_gguf(shape)


def pieces(**change: Any) -> dict[str, Any]:
    return {f"tokenizer.ggml.{name}": value for name, value in (sentencepiece() | change).items()}


def test_pieces_whose_merges_are_not_known_are_refused() -> None:
    own = sentencepiece()
    with pytest.raises(UnsupportedModel, match="no tokens of bytes"):
        vocabulary.from_gguf(pieces(tokens=[text.replace("<0x0A>", "<other>") for text in own["tokens"]]))
    with pytest.raises(UnsupportedModel, match="equal score"):
        vocabulary.from_gguf(pieces(scores=[0.0] * len(own["tokens"])))
    gone = {size * letters.SPACE for size in RUNS if size > 5 and size != 8}
    fewer = [f"other {text}" if text in gone else text for text in own["tokens"]]
    with pytest.raises(UnsupportedModel, match="equal score"):  # seven spaces are 5 + 2, or 4 + 3
        vocabulary.from_gguf(pieces(tokens=fewer))
    long = sentencepiece(100 * letters.SPACE, kinds=[1])
    long["scores"][-1] = -1e9
    with pytest.raises(UnsupportedModel, match="equal score"):
        vocabulary.from_gguf(pieces(**long))
    with pytest.raises(BrokenModel, match="texts that are too long"):
        vocabulary.from_gguf(pieces(tokens=[*own["tokens"][:-1], "ab" * 20_000]))
    for scores in (None, [0.0], ["a"] * len(own["tokens"]), [float("nan")] * len(own["tokens"])):
        with pytest.raises(BrokenModel, match="scores"):
            vocabulary.from_gguf(pieces(scores=scores))


def test_a_text_that_is_two_tokens_is_refused() -> None:
    with pytest.raises(BrokenModel, match="a text twice"):
        GgufTokens.read({"tokenizer.ggml.tokens": ["a", "b", "a"]})
