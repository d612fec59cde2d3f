"""Open the tokenizer of a model folder: tokenizer.json with what the files beside it change.

The result has the ids of transformers' AutoTokenizer. One setting is left out on purpose:
`clean_up_tokenization_spaces` rewrites decoded text (" ." becomes "."), and an answer is the model's exact
text here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.formats.files import read_json
from localspec.formats.tokenizer.opening import open_tokenizer, tokenizer_errors

if TYPE_CHECKING:
    from tokenizers import AddedToken, Tokenizer

CONFIG, SPECIAL_MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MORE = "additional_special_tokens"
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
PLAIN = "PreTrainedTokenizerFast"


class TokenizerClass(NamedTuple):
    """The defaults of a tokenizer class of transformers, which its files do not hold.

    `begins` is its default of `add_bos_token`, None for a class that leaves the post-processor as it is.
    """

    roles: Mapping[str, str]
    begins: bool | None = None
    more: tuple[str, ...] = ()
    spaces_words: bool = False  # it makes its pre-tokenizer anew for `add_prefix_space`


_LLAMA = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
_GEMMA = {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"}
_COHERE = {"bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "unk_token": "<UNK>"}
_GPT2 = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
_QWEN2 = dict.fromkeys(("eos_token", "unk_token", "pad_token"), "<|endoftext|>")

CLASSES = {
    "LlamaTokenizer": TokenizerClass(_LLAMA, True, spaces_words=True),
    "CodeLlamaTokenizer": TokenizerClass(_LLAMA, True, ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"), True),
    "GemmaTokenizer": TokenizerClass(_GEMMA, True),
    "CohereTokenizer": TokenizerClass(_COHERE, True),
    "GPTNeoXTokenizer": TokenizerClass(_GPT2, False),
    "GPT2Tokenizer": TokenizerClass(_GPT2),
    "CodeGenTokenizer": TokenizerClass(_GPT2),
    "Qwen2Tokenizer": TokenizerClass(_QWEN2),
    "BloomTokenizer": TokenizerClass(_LLAMA | {"pad_token": "<pad>"}),
}
ANY_CLASS = TokenizerClass({})

# The class for a `model_type`, where no file names one.
OF_MODELS = {
    **dict.fromkeys(("llama", "mistral", "mixtral", "ministral", "phi3", "deepseek_v3"), "LlamaTokenizer"),
    **dict.fromkeys(("gemma", "gemma2", "gemma3", "gemma3_text"), "GemmaTokenizer"),
    **dict.fromkeys(("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"), "Qwen2Tokenizer"),
    **dict.fromkeys(("gpt2", "granite", "starcoder2", "exaone4"), "GPT2Tokenizer"),
    **dict.fromkeys(("gpt_neox", "olmo2", "stablelm"), "GPTNeoXTokenizer"),
    **dict.fromkeys(("cohere", "cohere2"), "CohereTokenizer"),
    "code_llama": "CodeLlamaTokenizer",
    "bloom": "BloomTokenizer",
    "phi": "CodeGenTokenizer",
}


@dataclass(frozen=True)
class FolderTokenizer:
    """A model's tokenizer, and the texts of its special tokens by role, such as `eos_token`."""

    tokenizer: Tokenizer
    special: Mapping[str, str]


def open_folder(folder: Path) -> FolderTokenizer:
    """Return the tokenizer of a folder; raise BrokenModel for files that contradict each other."""
    tokenizer = open_tokenizer(folder / "tokenizer.json")
    config, kind = _config(folder, tokenizer)
    with tokenizer_errors(f"The tokenizer of `{folder}`"):
        if _is_ours(config):
            return _of_gguf(tokenizer, _named(_roles(folder, config, kind)), config)
        special = _add_tokens(tokenizer, folder, config, kind)
        _set_first_space(tokenizer, config, kind)
        _set_ends(tokenizer, config, kind, special)
        tokenizer.encode_special_tokens = config.get("split_special_tokens") is True
        tokenizer.encode("a")
    return FolderTokenizer(tokenizer, special)


def _is_ours(config: Mapping[str, Any]) -> bool:
    """Return whether localspec wrote a config for a GGUF file; then tokenizer.json has all that there is."""
    own = {"clean_up_tokenization_spaces", "add_bos_token", "add_eos_token", "chat_template", *ROLES}
    return (
        config.get("tokenizer_class") == PLAIN
        and "add_bos_token" in config
        and own >= config.keys() - {"tokenizer_class"}
    )


def _of_gguf(tokenizer: Tokenizer, special: dict[str, str], config: Mapping[str, Any]) -> FolderTokenizer:
    if tokenizer.post_processor is None and config["add_bos_token"] is True and "bos_token" in special:
        # as earlier versions of localspec wrote it
        tokenizer.post_processor = framing(tokenizer, [special["bos_token"]], [])
    return FolderTokenizer(tokenizer, special)


def ends_of(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Return the tokens that come before and behind every bare text."""
    encoding = tokenizer.encode("a", add_special_tokens=True)
    own = [at for at, special in enumerate(encoding.special_tokens_mask) if not special]
    if not own:  # a vocabulary without the letter
        return list(encoding.ids), []
    return list(encoding.ids[: own[0]]), list(encoding.ids[own[-1] + 1 :])


def _config(folder: Path, tokenizer: Tokenizer) -> tuple[dict[str, Any], TokenizerClass]:
    """Return a folder's tokenizer_config.json and its tokenizer class.

    transformers adds tokens that a class has by default to a vocabulary without them. They are left out
    here, because a model has no embedding for them.
    """
    config, model = _optional(folder / CONFIG), _optional(folder / "config.json")
    name = config.get("tokenizer_class") or model.get("tokenizer_class")
    name = name or OF_MODELS.get(str(model.get("model_type")), "")
    kind = CLASSES.get(str(name).removesuffix("Fast"), ANY_CLASS)
    known = {role: text for role, text in kind.roles.items() if tokenizer.token_to_id(text) is not None}
    more = tuple(text for text in kind.more if tokenizer.token_to_id(text) is not None)
    return config, kind._replace(roles=known, more=more)


def write_complete(folder: Path) -> None:
    """Write into a folder's tokenizer.json what its other files change, for programs that read only that."""
    path = folder / "tokenizer.json"
    complete, own = open_folder(folder).tokenizer, open_tokenizer(path)
    if complete.to_str() != own.to_str():
        complete.save(str(path))


def _add_tokens(
    tokenizer: Tokenizer, folder: Path, config: Mapping[str, Any], kind: TokenizerClass
) -> dict[str, str]:
    """Add the tokens that the other files declare, in transformers' order; return the special ones."""
    roles = _roles(folder, config, kind)
    more = [*(roles.pop(MORE, None) or ()), *kind.more]
    declared, texts = _declared(folder, config, roles, more)
    named = {role: value for role, value in roles.items() if value is not None}
    special = dict.fromkeys(_text(value) for value in [*named.values(), *more])
    own = tokenizer.get_added_tokens_decoder().values()
    known = {repr(token) for token in own}
    adding = [token for token in declared if repr(token) not in known]
    present = {token.content for token in [*own, *adding]}
    adding += [
        texts.get(_text(value)) or _added(value, special=True)
        for value in [*named.values(), *more]
        if _text(value) not in present or (isinstance(value, dict) and _text(value) not in texts)
    ]
    for token in adding:
        token.special = token.special or token.content in special
    tokenizer.add_tokens(adding)
    return _named(roles)


def _named(roles: Mapping[str, Any]) -> dict[str, str]:
    return {role: _text(value) for role, value in roles.items() if value is not None and role != MORE}


def _roles(folder: Path, config: Mapping[str, Any], kind: TokenizerClass) -> dict[str, Any]:
    """Return the special tokens by role, each a text or an object, or None for a role without one."""
    roles: dict[str, Any] = dict(kind.roles)
    roles |= {role: config[role] for role in (*ROLES, MORE) if role in config}
    if "added_tokens_decoder" not in config:  # as older versions of transformers write it
        listed = _optional(folder / SPECIAL_MAP)
        own = [*(roles.get(MORE) or ())]
        own += [token for token in listed.get(MORE) or () if token not in own]
        roles |= {role: listed[role] for role in ROLES if role in listed} | ({MORE: own} if own else {})
    extra = config.get("extra_special_tokens")
    roles |= extra if isinstance(extra, dict) else {}
    ordered = [role for role in (*ROLES, *roles) if role in roles]
    return {role: roles[role] for role in dict.fromkeys(ordered)}


def _declared(
    folder: Path, config: Mapping[str, Any], roles: Mapping[str, Any], more: Iterable[Any]
) -> tuple[list[AddedToken], dict[str, AddedToken]]:
    """Return the added tokens of the config, or of added_tokens.json, by id and by text."""
    decoder = config.get("added_tokens_decoder")
    if decoder is not None:
        tokens = {int(number): _added(token) for number, token in decoder.items()}
        return [tokens[number] for number in sorted(tokens)], {each.content: each for each in tokens.values()}
    special = {_text(value) for value in [*roles.values(), *more] if value is not None}
    tokens = {
        number: _added({"content": text, "normalized": text not in special, "special": text in special})
        for text, number in _optional(folder / ADDED).items()
    }
    for token in json.loads((folder / "tokenizer.json").read_text("utf-8")).get("added_tokens") or ():
        number = token.pop("id")
        tokens[number] = _added(token)
    return [tokens[number] for number in sorted(tokens)], {}


def _added(value: Any, special: bool = False) -> AddedToken:
    from tokenizers import AddedToken

    if isinstance(value, str):
        return AddedToken(value, special=special)
    flags = {flag: value[flag] for flag in FLAGS if flag in value}  # of others the library prints a line
    return AddedToken(value["content"], **flags)


def _text(value: Any) -> str:
    return str(value["content"] if isinstance(value, dict) else value)


def _set_first_space(tokenizer: Tokenizer, config: Mapping[str, Any], kind: TokenizerClass) -> None:
    """Let a text begin with a space, or not, as `add_prefix_space` says."""
    from tokenizers import pre_tokenizers

    llama = kind.spaces_words
    wanted = config.get("add_prefix_space", None if llama else False)
    state = _state(tokenizer.pre_tokenizer)
    if state.get("type") == "ByteLevel" and isinstance(wanted, bool) and state["add_prefix_space"] != wanted:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(wanted, use_regex=state.get("use_regex", True))
    elif llama and wanted is False:
        _drop_first_space(tokenizer)


def _drop_first_space(tokenizer: Tokenizer) -> None:
    """Leave out SentencePiece's space before the first word, and keep one that a text begins with."""
    from tokenizers import Tokenizer

    config = json.loads(tokenizer.to_str())
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        state = config[part] or {}
        lists = (state[key] for key in ("normalizers", "pretokenizers", "decoders") if key in state)
        steps: list[dict[str, Any]] = next(lists, [])
        steps[:] = [step for step in steps if step["type"] not in ("Prepend", "Strip")]
        for step in [state, *steps]:
            if step.get("type") == "Metaspace":
                step["prepend_scheme"] = "never"
        if state.get("type") in ("Prepend", "Strip"):
            config[part] = None
    changed = Tokenizer.from_str(json.dumps(config))
    tokenizer.normalizer, tokenizer.pre_tokenizer = changed.normalizer, changed.pre_tokenizer
    tokenizer.decoder = changed.decoder


def _set_ends(
    tokenizer: Tokenizer, config: Mapping[str, Any], kind: TokenizerClass, special: Mapping[str, str]
) -> None:
    """Set which tokens come before and behind a bare text, where that is not tokenizer.json's to say."""
    begins, ends = config.get("add_bos_token", kind.begins), config.get("add_eos_token", False)
    if kind.begins is None:
        return
    first = [special["bos_token"]] if begins and "bos_token" in special else []
    last = [special["eos_token"]] if ends and "eos_token" in special else []
    tokenizer.post_processor = framing(tokenizer, first, last)


def framing(tokenizer: Tokenizer, first: Sequence[str], last: Sequence[str]) -> Any:
    """Return a post-processor that puts special tokens before and behind a text."""
    from tokenizers import processors

    tokens = [(text, tokenizer.token_to_id(text)) for text in dict.fromkeys([*first, *last])]
    return processors.TemplateProcessing(single=[*first, "$A", *last], special_tokens=tokens)


def _state(part: Any) -> dict[str, Any]:
    found: dict[str, Any] = {} if part is None else json.loads(part.__getstate__())
    return found


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
