"""Convert tokenizers from and to GGUF metadata, and compare two vocabularies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel, UnsupportedModel, VocabularyMismatch, printable
from localspec.formats.files import read_json, read_text
from localspec.formats.tokenizer.folder import FolderTokenizer, ends_of, framing, open_folder
from localspec.formats.tokenizer.gguf import sentencepiece
from localspec.formats.tokenizer.gguf.tokens import CONTROL, NORMAL, UNKNOWN, UNUSED, USER_DEFINED, GgufTokens
from localspec.formats.tokenizer.opening import tokenizer_errors, vocabulary_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Metadata = Mapping[str, Any]

# The pre-tokenizer patterns by their names in `tokenizer.ggml.pre`, from llama.cpp's llama-vocab.cpp. The
# tests compare each with llama.cpp.
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

PRE_TOKENIZERS: dict[str, tuple[str, ...]] = {
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

# With these a word of the vocabulary is one token, regardless of the merges (`ignore_merges`).
WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3"})


def from_gguf(metadata: Metadata) -> Tokenizer:
    """Build the tokenizer of a GGUF file, with the same ids as llama.cpp.

    Raises UnsupportedModel unless it is byte-level BPE with a known pre-tokenizer or SentencePiece's BPE, and
    BrokenModel for an inconsistent vocabulary.
    """
    if metadata.get("tokenizer.ggml.model") == "llama":
        tokens = GgufTokens.read(metadata)
        with tokenizer_errors("The vocabulary"):
            tokenizer = sentencepiece.from_gguf(tokens)
    else:
        pre = _pre_tokenizer_name(metadata)
        tokens, merges = GgufTokens.read(metadata), _merges(metadata)
        with tokenizer_errors("The vocabulary"):
            tokenizer = _byte_level(tokens, merges, pre)
    with tokenizer_errors("The vocabulary"):
        _add_special_tokens(tokenizer, tokens)
        first, last = ([tokens.texts[token] for token in ends] for ends in (tokens.first, tokens.last))
        if first or last:
            tokenizer.post_processor = framing(tokenizer, first, last)
    return tokenizer


def _byte_level(tokens: GgufTokens, merges: list[tuple[str, str]], pre: str) -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models

    tokenizer = Tokenizer(models.BPE(tokens.ids, merges, ignore_merges=pre in WHOLE_WORDS))
    tokenizer.pre_tokenizer = _pre_tokenizer(PRE_TOKENIZERS[pre])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def to_gguf(folder: Path, size: int) -> dict[str, Any]:
    """Return the GGUF metadata of a folder's tokenizer.json, for an embedding of `size` tokens.

    Raises UnsupportedModel unless it is byte-level BPE with a known pre-tokenizer.
    """
    opened, name = open_folder(folder), f"`{folder / 'tokenizer.json'}`"
    tokenizer = opened.tokenizer
    texts = {token: text for text, token in vocabulary_of(tokenizer, name).items()}
    with tokenizer_errors(name):
        config = json.loads(tokenizer.to_str())
    model = config["model"]
    if model.get("type") != "BPE":
        raise UnsupportedModel(
            f"Tokenizers of type `{printable(str(model.get('type')))}` cannot be written to GGUF",
            "Use a GGUF file from the model's makers or from llama.cpp's own script",
        )
    pre = _matching_name(config.get("pre_tokenizer"), bool(model.get("ignore_merges")))
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in config["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": [texts.get(token, f"[PAD{token}]") for token in range(size)],
        "token_type": [added.get(token, NORMAL if token in texts else UNUSED) for token in range(size)],
        "merges": merges,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in values.items()} | _roles(folder, opened)


def _matching_name(pre_tokenizer: Any, whole_words: bool) -> str:
    """Return the first name of PRE_TOKENIZERS with the same patterns as a pre-tokenizer's JSON."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer or {}])
    own = tuple(pattern for step in steps for pattern in _patterns(step))
    for name, patterns in PRE_TOKENIZERS.items():
        if patterns == own and (name in WHOLE_WORDS) == whole_words:
            return name
    raise UnsupportedModel(
        "The pre-tokenizer has no known name in GGUF",
        "Use a GGUF file from the model's makers or from llama.cpp's own script",
    )


def _patterns(step: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the patterns of one step of a pre-tokenizer."""
    kind = step.get("type")
    if kind == "Split":
        return (str(step["pattern"].get("Regex", step["pattern"].get("String"))),)
    if kind == "Digits":
        return (_DIGIT,) if step.get("individual_digits") else ("digits",)
    if kind == "ByteLevel":
        return (_GPT2,) if step.get("use_regex") else ()
    return (str(kind),)


def _roles(folder: Path, opened: FolderTokenizer) -> dict[str, Any]:
    """Return the GGUF metadata of a folder's special tokens and of its chat template."""
    file = folder / "tokenizer_config.json"
    config = read_json(file) if file.is_file() else {}
    tokens = {
        role: opened.tokenizer.token_to_id(opened.special[f"{name}_token"])
        for name, role in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if f"{name}_token" in opened.special
    }
    roles: dict[str, Any] = {f"{role}_token_id": token for role, token in tokens.items() if token is not None}
    first, last = ends_of(opened.tokenizer)
    for name, role, ends in (("add_bos_token", "bos", first), ("add_eos_token", "eos", last)):
        if len(ends) > 1 or (ends and role in tokens and ends != [tokens[role]]):
            raise UnsupportedModel("A GGUF file cannot name the tokens around every text of this model")
        roles[name] = bool(ends)
        if ends:
            roles[f"{role}_token_id"] = ends[0]
    roles = {f"tokenizer.ggml.{name}": value for name, value in roles.items()}
    template = folder / "chat_template.jinja"
    text = read_text(template) if template.is_file() else config.get("chat_template")
    return roles | ({"tokenizer.chat_template": text} if isinstance(text, str) else {})


def _pre_tokenizer_name(metadata: Metadata) -> str:
    """Return the name of the pre-tokenizer, one of PRE_TOKENIZERS."""
    model = metadata.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise UnsupportedModel(
            f"Tokenizers of type `{printable(str(model))}` cannot be read from GGUF yet, "
            "only BPE (`gpt2` and `llama`)",
            "Use the model's Hugging Face repository, which has a tokenizer.json",
        )
    pre = metadata.get("tokenizer.ggml.pre")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"Unknown pre-tokenizer `{printable(str(pre))}`",
            "Use the model's Hugging Face repository, which has a tokenizer.json",
        )
    return pre


def _merges(metadata: Metadata) -> list[tuple[str, str]]:
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list) or not all(isinstance(merge, str) for merge in merges):
        raise BrokenModel("The file has no list of merges", "Download the model again")
    pairs = [merge.partition(" ") for merge in merges]
    return [(left, right) for left, _, right in pairs]


def _pre_tokenizer(patterns: tuple[str, ...]) -> Any:
    from tokenizers import Regex, pre_tokenizers

    splits: list[Any] = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, to_bytes])


def _add_special_tokens(tokenizer: Tokenizer, tokens: GgufTokens) -> None:
    """Match control and user-defined tokens by their whole text, before the pre-tokenizer."""
    from tokenizers import AddedToken

    pairs = list(zip(tokens.texts, tokens.kinds, strict=True))
    control = [text for text, kind in pairs if kind in (UNKNOWN, CONTROL)]
    defined = [text for text, kind in pairs if kind == USER_DEFINED]
    strips = sentencepiece.stripping(tokens)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False, rstrip=text in strips) for text in control]
    )
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False, rstrip=text in strips) for text in defined]
    )


def first_difference(target: Tokenizer, draft: Tokenizer) -> tuple[int, str, str] | None:
    """Return the first shared id with different texts, and both texts; None if there is none.

    An id that only one of the two has is padding, not a difference.
    """
    of_target = {token: text for text, token in target.get_vocab(with_added_tokens=True).items()}
    of_draft = {token: text for text, token in draft.get_vocab(with_added_tokens=True).items()}
    shared = of_target.keys() & of_draft.keys()
    different = [token for token in shared if of_target[token] != of_draft[token]]
    if not different:
        return None
    token = min(different)
    return token, of_target[token], of_draft[token]


def check_same(target: Tokenizer, draft: Tokenizer, target_name: str, draft_name: str) -> None:
    """Raise VocabularyMismatch unless the draft's token ids have the same texts in the target."""
    difference = first_difference(target, draft)
    if difference is None:
        return
    token, of_target, of_draft = difference
    raise VocabularyMismatch(
        f"Token {token} is `{of_target}` in `{target_name}` and `{of_draft}` in `{draft_name}`, "
        "so one cannot draft for the other",
        f"Type `--draft universal:name={draft_name}` to translate its guesses",
    )
