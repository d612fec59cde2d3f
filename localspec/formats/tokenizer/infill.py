"""The tokens with which models for code fill in the text between two others ("fill in the middle")."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class InfillMarks(NamedTuple):
    """The tokens before the text, before what is behind the gap, and before the answer; what ends it."""

    before: str
    behind: str
    answer: str
    ends: Collection[int] = ()

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> InfillMarks | None:
        """Return the marks that a tokenizer has, None for a model that cannot fill in text."""
        special = {
            token.content: number
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special
        }
        marks = next((spelling for spelling in SPELLINGS if special.keys() >= set(spelling[:3])), None)
        return marks and marks._replace(
            ends=frozenset(special[text] for text in (*marks[:3], *ENDS) if text in special)
        )


SPELLINGS = (
    InfillMarks("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen2.5-Coder, CodeGemma
    InfillMarks("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite
    InfillMarks("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    InfillMarks("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek-Coder
    InfillMarks("▁<PRE>", "▁<SUF>", "▁<MID>"),  # Code Llama
)
ENDS = (  # of the gap, of a file, of all
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>"),
    *("<|file_sep|>", "<|file_separator|>", "<file_sep>", "<|repo_name|>", "<repo_name>"),
    *("<|endoftext|>", "<｜end▁of▁sentence｜>", "<|im_end|>"),
)
