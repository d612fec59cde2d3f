"""A byte-level tokenizer of a few hundred tokens, with marks for tool calls and for thoughts."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

MARKS = ["<|end|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
MERGES = ["n a", "na m", "nam e", "a r", "Ġ t", "Ġt o", '{ "', '" :']


def tokenizer() -> Tokenizer:
    """Return the tokenizer; `<|end|>` ends an answer."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    words = letters + ["".join(merge) for merge in merges]
    found = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    found.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    return found


def saved(folder: Path) -> Path:
    """Write the tokenizer into a folder and return the file."""
    path = folder / "tokenizer.json"
    tokenizer().save(str(path))
    return path
