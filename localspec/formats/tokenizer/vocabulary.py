"""Build a tokenizer from what a GGUF file says about its vocabulary, and compare two vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel, UnsupportedModel, VocabularyMismatch
from localspec.formats.files import read_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Metadata = Mapping[str, Any]

# How text is cut into words before bytes are merged, by the name that `tokenizer.ggml.pre` gives. From
# llama.cpp's llama-vocab.cpp; the words of each are checked against llama.cpp in the tests.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_DIGIT = r"\p{N}"
_ENGLISH = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
_QWEN35 = (
    rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = rf"{_ENGLISH}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"

WORDS: dict[str, tuple[str, ...]] = {
    "smollm": (_DIGIT, _GPT2),
    "starcoder": (_DIGIT, _GPT2),
    "gpt-2": (_GPT2,),
    "qwen2": (_QWEN2,),
    "deepseek-r1-qwen": (_QWEN2,),
    "qwen35": (_QWEN35,),
    "llama-bpe": (_LLAMA3,),
    "llama3": (_LLAMA3,),
    "llama-v3": (_LLAMA3,),
    "smaug-bpe": (_LLAMA3,),
}

# With these a word that is in the vocabulary is one token, whatever the merges would make of it.
WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3"})

# ggml's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED = 1, 2, 3, 4, 5

# Texts that end a turn, whatever id they have: llama.cpp's end-of-generation set.
TURN_ENDS = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|return|>",
    "<|call|>",
    "<end_of_turn>",
    "<end_of_utterance>",
    "<eos>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<｜end▁of▁sentence｜>",
}


def from_gguf(metadata: Metadata) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes; it gives the ids that llama.cpp gives.

    Raises UnsupportedModel for any tokenizer but byte-level BPE and for rules of cutting words that are not
    known here, and BrokenModel for a vocabulary that contradicts itself.
    """
    from tokenizers import Tokenizer, decoders, models

    cutting = _cutting(metadata)
    texts, kinds = _tokens(metadata)
    vocabulary = {text: token for token, text in enumerate(texts)}
    try:
        model = models.BPE(vocabulary, _merges(metadata), ignore_merges=cutting in WHOLE_WORDS)
        tokenizer = Tokenizer(model)
    except Exception as error:  # the library raises nothing narrower
        raise BrokenModel(f"The vocabulary is damaged: {error}", "Download the model again") from None
    tokenizer.pre_tokenizer = _pre_tokenizer(WORDS[cutting])
    tokenizer.decoder = decoders.ByteLevel()
    _add_whole_texts(tokenizer, texts, kinds)
    return tokenizer


def to_gguf(about: Path, size: int) -> dict[str, Any]:
    """Say in GGUF's words what the tokenizer.json of the folder `about` holds, for a table of `size` tokens.

    Raises UnsupportedModel for any tokenizer but byte-level BPE with rules of cutting words that are known.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(about / "tokenizer.json"))
    whole = json.loads(tokenizer.to_str())
    model = whole["model"]
    cutting = _named(whole.get("pre_tokenizer"), bool(model.get("ignore_merges")))
    texts = {token: text for text, token in tokenizer.get_vocab(with_added_tokens=True).items()}
    added = {one["id"]: CONTROL if one["special"] else USER_DEFINED for one in whole["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    found: dict[str, Any] = {
        "model": "gpt2",
        "pre": cutting,
        "tokens": [texts.get(token, f"[PAD{token}]") for token in range(size)],
        "token_type": [added.get(token, NORMAL if token in texts else UNUSED) for token in range(size)],
        "merges": merges,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in found.items()} | _roles(about, tokenizer)


def _named(cuts: Any, whole_words: bool) -> str:
    """Return the first name of WORDS that cuts as a tokenizer does, by its pre-tokenizer as JSON."""
    found = [_patterns(cut) for cut in (cuts or {}).get("pretokenizers", [cuts or {}])]
    own = tuple(pattern for patterns in found for pattern in patterns)
    for name, patterns in WORDS.items():
        if patterns == own and (name in WHOLE_WORDS) == whole_words:
            return name
    raise UnsupportedModel(
        "The tokenizer cuts words by rules that have no name in GGUF that is known here",
        "Take a GGUF file that its makers or llama.cpp's own script wrote",
    )


def _patterns(cut: Mapping[str, Any]) -> tuple[str, ...]:
    """Return by which patterns one step of a pre-tokenizer cuts."""
    kind = cut.get("type")
    if kind == "Split":
        return (str(cut["pattern"].get("Regex", cut["pattern"].get("String"))),)
    if kind == "Digits":
        return (_DIGIT,) if cut.get("individual_digits") else ("digits",)
    if kind == "ByteLevel":
        return (_GPT2,) if cut.get("use_regex") else ()
    return (str(kind),)


def _roles(about: Path, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return which tokens are special to a model, by its tokenizer_config.json, and its template."""
    file = about / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    found: dict[str, Any] = {"tokenizer.ggml.add_bos_token": bool(config.get("add_bos_token", False))}
    for theirs, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        named = config.get(f"{theirs}_token")
        text = named.get("content") if isinstance(named, dict) else named
        token = tokenizer.token_to_id(text) if isinstance(text, str) else None
        if token is not None:
            found[f"tokenizer.ggml.{role}_token_id"] = token
    template = about / "chat_template.jinja"
    text = template.read_text("utf-8") if template.is_file() else config.get("chat_template")
    return found | ({"tokenizer.chat_template": text} if isinstance(text, str) else {})


def _cutting(metadata: Metadata) -> str:
    """Name the rule by which words are cut, one of WORDS."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModel(
            f"The tokenizer `{model}` cannot be read from GGUF yet; only byte-level BPE (`gpt2`) can",
            "Take the model's Hugging Face repository, which brings a tokenizer.json",
        )
    cutting = metadata.get("tokenizer.ggml.pre")
    if not isinstance(cutting, str) or cutting not in WORDS:
        raise UnsupportedModel(
            f"The pre-tokenizer `{cutting}` is not known here, and a guess would give wrong tokens",
            "Take the model's Hugging Face repository, which brings a tokenizer.json",
        )
    return cutting


def _tokens(metadata: Metadata) -> tuple[list[str], list[int]]:
    texts = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
        raise BrokenModel("The file has no list of tokens", "Download the model again")
    kinds = metadata.get("tokenizer.ggml.token_type")
    if not isinstance(kinds, list):
        return texts, [1] * len(texts)
    if len(kinds) != len(texts):
        raise BrokenModel(f"The vocabulary has {len(texts)} tokens and {len(kinds)} token types")
    return texts, kinds


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise BrokenModel("The file has no list of merges", "Download the model again")
    pairs = [merge.partition(" ") for merge in merges]
    return [(left, right) for left, _, right in pairs]


def _pre_tokenizer(patterns: tuple[str, ...]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    cuts: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*cuts, to_bytes])


def _add_whole_texts(tokenizer: Tokenizer, texts: list[str], kinds: list[int]) -> None:
    """Make control and user-defined tokens stand for their whole text, before any word is cut."""
    from tokenizers import AddedToken

    pairs = list(zip(texts, kinds, strict=True))
    control = [text for text, kind in pairs if text and kind in (UNKNOWN, CONTROL)]
    defined = [text for text, kind in pairs if text and kind == USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in defined])


def stop_tokens(metadata: Metadata) -> list[int]:
    """List the tokens that end an answer: those the file names and control tokens that end a turn."""
    texts, kinds = _tokens(metadata)
    named = [metadata.get(f"tokenizer.ggml.{role}_token_id") for role in ("eos", "eot", "eom")]
    stops = {token for token in named if type(token) is int and 0 <= token < len(texts)}
    # Qwen's vocabulary has an ordinary `</s>`, which people write in HTML: only control tokens count.
    whole = (CONTROL, USER_DEFINED)
    stops |= {token for token, text in enumerate(texts) if text in TURN_ENDS and kinds[token] in whole}
    texts_of_stops = {texts[token] for token in stops}
    if {"<|return|>", "<|call|>"} <= texts_of_stops:  # gpt-oss: <|end|> only ends one of its channels
        stops = {token for token in stops if texts[token] != "<|end|>"}
    return sorted(stops)


def first_tokens(metadata: Metadata) -> list[int]:
    """List what stands before every text: the file's first token, if it asks for one."""
    asked = metadata.get("tokenizer.ggml.add_bos_token", metadata.get("tokenizer.ggml.pre") in WHOLE_WORDS)
    token = metadata.get("tokenizer.ggml.bos_token_id")
    return [token] if asked is True and type(token) is int else []


def first_difference(target: Tokenizer, draft: Tokenizer) -> tuple[int, str, str] | None:
    """Return the first id that the two write differently, and both texts, over the ids that both have.

    An id that only one of them has a text for is padding, not a difference.
    """
    of_target = {token: text for text, token in target.get_vocab(with_added_tokens=True).items()}
    of_draft = {token: text for text, token in draft.get_vocab(with_added_tokens=True).items()}
    shared = of_target.keys() & of_draft.keys()
    wrong = [token for token in shared if of_target[token] != of_draft[token]]
    if not wrong:
        return None
    token = min(wrong)
    return token, of_target[token], of_draft[token]


def check_same(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Raise VocabularyMismatch unless the draft's tokens mean the same to the target."""
    difference = first_difference(target, draft)
    if difference is None:
        return
    token, of_target, of_draft = difference
    raise VocabularyMismatch(
        f"Token {token} is `{of_target}` to `{target_name}` and `{of_draft}` to `{draft_name}`, "
        "so one cannot guess for the other",
        f"Type `--draft universal:name={draft_name}` to have its guesses translated",
    )
