"""Build the tokenizer of a GGUF file with a SentencePiece vocabulary, with the same ids as llama.cpp."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.tokenizer.gguf.tokens import CONTROL, KEY, UNKNOWN, USER_DEFINED, GgufTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPACE = "\u2581"
REPOSITORY = "Use the model's Hugging Face repository, which has a tokenizer.json"
MATCHED = (CONTROL, UNKNOWN, USER_DEFINED)  # their texts never reach the merges
EQUAL = "The SentencePiece vocabulary has tokens of equal score"
MAX_COPIED = 1 << 30  # characters, to split every token everywhere; Gemma's vocabulary needs 20 million
MAX_RUN = 64  # characters; the longest of Llama has 16
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def from_gguf(tokens: GgufTokens) -> Tokenizer:
    """Return the tokenizer, without its special tokens.

    llama.cpp merges the neighbours whose joined text has the highest score, the leftmost first, and spells
    what is no token in bytes. So a token is one merge for each way to split it, ranked by its score.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers

    if any(text not in tokens.ids for text in BYTES):
        raise UnsupportedModel("The SentencePiece vocabulary has no tokens of bytes", REPOSITORY)
    unknown = tokens.role("unknown")
    model = models.BPE(
        tokens.ids,
        _merges(tokens),
        unk_token=None if unknown is None else tokens.texts[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    _check_runs(tokens, model)
    tokenizer = Tokenizer(model)
    spaces: list[Any] = [normalizers.Replace(" ", SPACE)]
    steps: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if tokens.metadata.get(f"{KEY}add_space_prefix", True) is not False:
        spaces = [normalizers.Prepend(SPACE), *spaces]
        steps = [*steps, decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer, tokenizer.decoder = normalizers.Sequence(spaces), decoders.Sequence(steps)
    return tokenizer


def _merges(tokens: GgufTokens) -> list[tuple[str, str]]:
    """Return every split of every token in two tokens, the highest score first."""
    scores = tokens.metadata.get(f"{KEY}scores")
    if not isinstance(scores, list) or len(scores) < len(tokens.texts):
        raise BrokenModel("The file has no list of scores", "Download the model again")
    if not all(isinstance(score, int | float) and math.isfinite(score) for score in scores):
        raise BrokenModel("The list of scores holds what is no number", "Download the model again")
    if sum(len(text) ** 2 for text in tokens.texts) > MAX_COPIED:
        raise BrokenModel("The vocabulary has texts that are too long", "Download the model again")
    splits = [
        (-scores[token], token, at)
        for text, token in tokens.ids.items()
        if tokens.kinds[token] not in MATCHED
        for at in range(1, len(text))
        if text[:at] in tokens.ids and text[at:] in tokens.ids
    ]
    competing = {(score, _run(tokens.texts[token]) or token) for score, token, _ in splits}
    if len({score for score, _ in competing}) < len(competing):
        raise UnsupportedModel(EQUAL, REPOSITORY)
    return [(tokens.texts[token][:at], tokens.texts[token][at:]) for _, token, at in sorted(splits)]


def _run(text: str) -> str:
    """Return the only character of a text, empty for another text."""
    return text[0] if len(set(text)) == 1 else ""


def _check_runs(tokens: GgufTokens, model: Any) -> None:
    """Raise UnsupportedModel if a run of one character is cut in another way than llama.cpp cuts it.

    Llama's runs of spaces have one score, so a model that ranks its merges need not take the leftmost first.
    """
    scores: dict[str, dict[int, float]] = {}
    for text, token in tokens.ids.items():
        if letter := _run(text):
            scores.setdefault(letter, {})[len(text)] = tokens.metadata[f"{KEY}scores"][token]
    for letter, sizes in scores.items():
        if len(set(sizes.values())) == len(sizes):
            continue
        if max(sizes) > MAX_RUN:
            raise UnsupportedModel(EQUAL, REPOSITORY)
        for count in range(2, 3 * max(sizes)):
            own = [len(each.value) for each in model.tokenize(letter * count)]
            if own != _leftmost(sizes, count):
                raise UnsupportedModel(EQUAL, REPOSITORY)


def _leftmost(sizes: Mapping[int, float], count: int) -> list[int]:
    """Merge a run of `count` characters as llama.cpp does; `sizes` has the score of each length."""
    blocks = [1] * count
    while True:
        pairs = [(at, sum(blocks[at : at + 2])) for at in range(len(blocks) - 1)]
        found = [(sizes[size], -at) for at, size in pairs if size in sizes]
        if not found:
            return blocks
        at = -max(found)[1]
        blocks[at : at + 2] = [sum(blocks[at : at + 2])]


def stripping(tokens: GgufTokens) -> set[str]:
    """Return the texts of the tokens that take the blanks behind them: Phi-3's, by the model's name."""
    name = str(tokens.metadata.get("general.name", "")).lower()
    if tokens.metadata.get(f"{KEY}model") != "llama" or not ("phi-3" in name or "phi3" in name):
        return set()
    found = {text for text, kind in zip(tokens.texts, tokens.kinds, strict=True) if kind in MATCHED}
    return (found | {"</s>"}) - {"<unk>", "<s>", "<|endoftext|>"}
