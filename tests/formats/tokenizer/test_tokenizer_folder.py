"""Folders give the ids of transformers' AutoTokenizer, whatever files stand beside tokenizer.json."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import letters
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, processors

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.tokenizer import conversion, vocabulary
from localspec.formats.tokenizer.folder import CLASSES, open_folder, write_complete
from localspec.formats.tokenizer.gguf.tokens import KEY

PLAIN = "PreTrainedTokenizerFast"
END = "<|endoftext|>"
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"


def token(text: str, **flags: bool) -> dict[str, Any]:
    """Return an added token as a file has it; a special one without other flags."""
    plain = dict.fromkeys(("lstrip", "normalized", "rstrip", "single_word"), False)
    return {"content": text, **plain, "special": True, **flags}


def role(text: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken", **token(text, **flags)}


def decoder(*tokens: dict[str, Any], first: int = 301) -> dict[str, Any]:
    return {str(first + at): each for at, each in enumerate(tokens)}


TURN = token("<|im_end|>")

BESIDE: dict[str, dict[str, Any]] = {
    "tokens of the config": {
        CONFIG: {
            "tokenizer_class": PLAIN,
            "added_tokens_decoder": decoder(token("<|im_start|>"), TURN, token("<think>", special=False)),
            "eos_token": "<|im_end|>",
        }
    },
    "ids with gaps": {
        CONFIG: {"added_tokens_decoder": {"400": TURN, "310": token("<x>")}, "eos_token": role("<|im_end|>")}
    },
    "tokens that strip": {
        CONFIG: {
            "added_tokens_decoder": decoder(
                token("<x>", lstrip=True, rstrip=True), token("cat", single_word=True, special=False)
            ),
            "eos_token": "<x>",
        }
    },
    "other flags": {CONFIG: {"added_tokens_decoder": decoder(token(END, lstrip=True), first=300)}},
    "a word as a token": {CONFIG: {"added_tokens_decoder": decoder(token("the"), first=270)}},
    "added_tokens.json": {
        CONFIG: {"eos_token": "<|im_end|>"},
        ADDED: {"<|im_end|>": 301, "<|im_start|>": 302, "<tool>": 500},
    },
    "special_tokens_map.json": {
        CONFIG: {"tokenizer_class": PLAIN},
        MAP: {
            "eos_token": token("<|im_end|>"),
            "bos_token": "<b>",
            "additional_special_tokens": ["<x>", token("<y>", rstrip=True)],
        },
    },
    "a map over a config": {
        CONFIG: {"eos_token": "<e>", "additional_special_tokens": ["<a>"]},
        MAP: {"eos_token": "<|im_end|>", "additional_special_tokens": ["<x>"]},
    },
    "a map that is not asked": {
        CONFIG: {"eos_token": "<e>", "added_tokens_decoder": decoder(token("<e>"))},
        MAP: {"eos_token": "<|im_end|>"},
    },
    "a map and added tokens": {
        MAP: {"eos_token": "<|im_end|>"},
        ADDED: {"<|im_end|>": 301, "<tool>": 302},
    },
    "additional tokens": {
        CONFIG: {"additional_special_tokens": ["<a>", role("<b>", lstrip=True)], "eos_token": None}
    },
    "extra tokens": {CONFIG: {"extra_special_tokens": {"image_token": "<image>", "boi_token": role("<i>")}}},
    "no end": {CONFIG: {"tokenizer_class": "Qwen2Tokenizer", "eos_token": None}},
    "split tokens": {CONFIG: {"split_special_tokens": True, "eos_token": END}},
    "cleaned up": {CONFIG: {"clean_up_tokenization_spaces": True}},
    "no config": {},
}

POSTS: dict[str, Callable[[tuple[str, int]], Any]] = {
    "byte level": lambda end: processors.ByteLevel(trim_offsets=False),
    "template": lambda end: processors.TemplateProcessing(single=f"{END} $A", special_tokens=[end]),
    "both ends": lambda end: processors.TemplateProcessing(single=f"{END} $A {END}", special_tokens=[end]),
    "roberta": lambda end: processors.RobertaProcessing(end, end),
    "bert": lambda end: processors.BertProcessing(end, end),
    "sequence": lambda end: processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{END} $A", special_tokens=[end]),
        ]
    ),
}


def write(folder: Path, tokenizer: Tokenizer, files: dict[str, Any]) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in {"config.json": {"model_type": "smollm3"}, **files}.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def with_defaults(tokenizer: Tokenizer) -> Tokenizer:
    """Add the tokens that some class of transformers has by default."""
    kinds = CLASSES.values()
    texts = {text for kind in kinds for text in [*kind.roles.values(), *kind.more]}
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in sorted(texts)])
    return tokenizer


def check(folder: Path, count: int) -> None:
    """Compare ids of bare texts and of rendered ones, and the special tokens, with transformers'."""
    from transformers import AutoTokenizer

    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    theirs, own = AutoTokenizer.from_pretrained(folder), open_folder(folder)
    assert len(theirs) == own.tokenizer.get_vocab_size()
    added = own.tokenizer.get_added_tokens_decoder()
    assert {number: repr(each) for number, each in added.items()} == {
        number: repr(each) for number, each in theirs.added_tokens_decoder.items()
    }
    expected = {name: text for name, text in theirs.special_tokens_map.items() if isinstance(text, str)}
    assert own.special == expected
    texts = letters.texts([*(each.content for each in added.values()), "<|im_end|>", "<think>"], count)
    for bare in (True, False):
        ids = [found.ids for found in own.tokenizer.encode_batch(texts, add_special_tokens=bare)]
        for text, one, other in zip(
            texts, ids, theirs(texts, add_special_tokens=bare).input_ids, strict=True
        ):
            assert one == other, (text, bare)


@pytest.mark.parametrize("name", BESIDE)
def test_files_beside_it_add_tokens(name: str, tmp_path: Path) -> None:
    check(write(tmp_path, letters.byte_level(), BESIDE[name]), 2000)


@pytest.mark.parametrize("name", POSTS)
@pytest.mark.parametrize("kind", [PLAIN, "GPT2Tokenizer", "Qwen2TokenizerFast", "GPTNeoXTokenizer"])
def test_a_bare_text_gets_its_ends(name: str, kind: str, tmp_path: Path) -> None:
    tokenizer = letters.byte_level()
    tokenizer.post_processor = POSTS[name]((END, tokenizer.token_to_id(END)))
    config = {"tokenizer_class": kind, "eos_token": END, "bos_token": END}
    check(write(tmp_path, tokenizer, {CONFIG: config}), 200)
    config |= {"add_bos_token": True, "add_eos_token": True}  # which only some classes ask
    check(write(tmp_path, tokenizer, {CONFIG: {**config, "added_tokens_decoder": {}}}), 200)


@pytest.mark.parametrize("space", ["normalizer", "words", ""])
@pytest.mark.parametrize(
    "ends", [{}, {"add_bos_token": False}, {"add_bos_token": True, "add_eos_token": True}]
)
@pytest.mark.parametrize(
    "kind",
    ["LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer"],
)
def test_some_classes_have_ends_of_their_own(
    kind: str, ends: dict[str, bool], space: str, tmp_path: Path
) -> None:
    config = {"tokenizer_class": kind, "bos_token": "<s>", "eos_token": "</s>", "legacy": False}
    check(write(tmp_path, with_defaults(letters.sentencepiece(space)), {CONFIG: config | ends}), 200)


@pytest.mark.parametrize("wanted", [{}, {"add_prefix_space": True}, {"add_prefix_space": False}])
@pytest.mark.parametrize("kind", [PLAIN, "GPT2Tokenizer", "GPTNeoXTokenizer"])
@pytest.mark.parametrize("prefix", [True, False])
def test_the_config_decides_on_a_first_space(
    prefix: bool, kind: str, wanted: dict[str, bool], tmp_path: Path
) -> None:
    config = {"tokenizer_class": kind, "eos_token": END, **wanted}
    check(write(tmp_path, letters.byte_level(prefix), {CONFIG: config}), 200)


@pytest.mark.parametrize("space", ["normalizer", "words"])
def test_llama_without_a_first_space(space: str, tmp_path: Path) -> None:
    """transformers makes such a one anew, from a tokenizer.model, with a library that tests do without."""
    config = {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}
    found = open_folder(write(tmp_path, letters.sentencepiece(space), {CONFIG: config})).tokenizer
    bare = letters.sentencepiece("")
    for text in letters.texts(["<s>", "</s>"], 200):
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == bare.encode(text, add_special_tokens=False).ids
        assert found.decode(ids) == bare.decode(ids)


@pytest.mark.parametrize(
    "family", ["llama", "mistral", "phi3", "gemma", "qwen2", "qwen3", "olmo2", "smollm3", "gpt2", "cohere"]
)
def test_a_class_follows_from_the_model(family: str, tmp_path: Path) -> None:
    tokenizer = with_defaults(letters.byte_level())
    check(write(tmp_path, tokenizer, {"config.json": {"model_type": family}}), 100)


def test_a_default_that_the_vocabulary_lacks_is_not_added(tmp_path: Path) -> None:
    """transformers adds `<s>` as token 301 and begins with it, for which a model has no embedding."""
    found = open_folder(write(tmp_path, letters.byte_level(), {"config.json": {"model_type": "llama"}}))
    assert found.special == {}
    assert found.tokenizer.get_vocab_size() == 301
    assert found.tokenizer.encode("the").tokens == ["the"]


@pytest.mark.parametrize(
    ("single", "ends", "roles"),
    [
        ("$A", (False, False), {}),
        (f"{END} $A", (True, False), {"bos_token_id": 300}),
        (f"$A {END}", (False, True), {"eos_token_id": 300}),
    ],
)
def test_a_written_gguf_keeps_the_ends(
    single: str, ends: tuple[bool, bool], roles: dict[str, int], tmp_path: Path
) -> None:
    """They may be in the post-processor alone."""
    tokenizer = letters.byte_level()
    tokenizer.pre_tokenizer = vocabulary._pre_tokenizer(vocabulary.PRE_TOKENIZERS["qwen2"])
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(END, 300)])
    found = vocabulary.to_gguf(write(tmp_path, tokenizer, {}), 301)
    assert (found[f"{KEY}add_bos_token"], found[f"{KEY}add_eos_token"]) == ends
    assert {name: found[f"{KEY}{name}"] for name in roles} == roles
    back = vocabulary.from_gguf(found)
    assert back.encode("the").ids == open_folder(tmp_path).tokenizer.encode("the").ids
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END} {END} $A", special_tokens=[(END, 300)]
    )
    with pytest.raises(UnsupportedModel, match="cannot name the tokens around every text"):
        vocabulary.to_gguf(write(tmp_path, tokenizer, {}), 301)


def test_an_older_import_of_a_gguf_keeps_its_first_token(tmp_path: Path) -> None:
    config = {"tokenizer_class": PLAIN, "add_bos_token": True, "bos_token": END}
    found = open_folder(write(tmp_path, letters.byte_level(), {CONFIG: config})).tokenizer
    assert found.encode("the").tokens == [END, "the"]
    assert found.encode("the", add_special_tokens=False).tokens == ["the"]


def test_other_programs_read_the_complete_tokenizer(tmp_path: Path) -> None:
    folder = write(tmp_path, letters.byte_level(), BESIDE["tokens of the config"])
    write_complete(folder)
    text = "a<|im_end|> <think>"
    found = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids
    assert found == open_folder(folder).tokenizer.encode(text).ids
    assert found[-1] == 303
    before = (folder / "tokenizer.json").read_bytes()
    write_complete(folder)
    assert (folder / "tokenizer.json").read_bytes() == before


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"x": TURN}},
        {"added_tokens_decoder": {"301": {"content": "a", "lstrip": 1}}},
        {"added_tokens_decoder": [1]},
        {"eos_token": {"no": "content"}},
        {"additional_special_tokens": 3},
        {"tokenizer_class": "LlamaTokenizer", "bos_token": ["<s>"]},
    ],
)
def test_a_config_that_says_nothing_sensible(config: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(BrokenModel, match="cannot be read"):
        open_folder(write(tmp_path, letters.byte_level(), {CONFIG: config}))


def test_flags_that_the_library_does_not_know_are_ignored(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config = {"added_tokens_decoder": decoder(token("<x>", unknown=True))}
    found = open_folder(write(tmp_path, letters.byte_level(), {CONFIG: config})).tokenizer
    assert found.encode("<x>").ids == [301]
    assert capfd.readouterr().out == ""


def test_a_decoder_that_cuts_ends_is_refused(tmp_path: Path) -> None:
    tokenizer = letters.sentencepiece()
    tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    with pytest.raises(UnsupportedModel, match="cuts the end of a text"):
        open_folder(write(tmp_path, tokenizer, {}))


def write_vocabulary(folder: Path) -> None:
    """Write the files of an older byte-level tokenizer."""
    model = json.loads(letters.byte_level().to_str())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges, ""]))


@pytest.mark.parametrize("kind", ["GPT2Tokenizer", "Qwen2Tokenizer"])
def test_a_vocabulary_without_tokenizer_json_is_converted(kind: str, tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    config = {"tokenizer_class": kind, "added_tokens_decoder": decoder(TURN), "eos_token": "<|im_end|>"}
    (tmp_path / CONFIG).write_text(json.dumps(config))
    conversion.write_fast(tmp_path, tmp_path)
    found = open_folder(tmp_path).tokenizer
    (tmp_path / "tokenizer.json").unlink()
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    for text in letters.texts(["<|im_end|>", END], 300):
        assert found.encode(text).ids == theirs(text).input_ids


@pytest.mark.parametrize("files", [["tokenizer.model"], ["spiece.model"], ["vocab.json", "merges.txt"]])
def test_a_vocabulary_that_cannot_be_converted_is_named(files: list[str], tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"\xff")
    (tmp_path / CONFIG).write_text('{"tokenizer_class": "LlamaTokenizer"}')
    with pytest.raises(UnsupportedModel, match=f"has `{files[0]}` but no `tokenizer.json`") as caught:
        conversion.write_fast(tmp_path, tmp_path)
    assert "sentencepiece protobuf" in str(caught.value.hint)


def test_a_folder_without_any_vocabulary(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(BrokenModel, match=r"lacks `tokenizer\.json`"):
        conversion.write_fast(tmp_path, tmp_path)
