"""The tokens of a GGUF file as llama.cpp types them: its special tokens, and those that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from localspec.errors import BrokenModel

Metadata = Mapping[str, Any]

KEY = "tokenizer.ggml."

# ggml's token types.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# With these pre-tokenizers every text begins with the bos token, unless the file says otherwise.
BEGINNING = frozenset({"llama-bpe", "llama3", "llama-v3"})

# From llama.cpp's llama-vocab.cpp, which knows tokens by their texts where a file types them wrongly. Qwen's
# vocabulary has an ordinary `</s>`, which occurs in HTML; here that is left what the file says.
END = "</s>"
TURN_ENDS = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|return|>",
        "<|call|>",
        "<|flush|>",
        "<|calls|>",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|tool_response>",
        END,
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "[EOS]",
        "[e~[",
        "<｜end▁of▁sentence｜>",
    }
)
FILL_IN = {  # roles in a prompt that is filled in; the last three also end an answer
    "fim_pre": (
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ),
    "fim_suf": (
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ),
    "fim_mid": (
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
FILL_IN_ENDS = ("fim_pad", "fim_rep", "fim_sep")
CHANNELS = frozenset({"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"})  # gpt-oss: always shown

# The ids of roles that a file does not give, where they are control tokens.
DEFAULTS = {"gpt2": {"bos": 11, "eos": 11}, "llama": {"bos": 1, "eos": 2, "unknown": 0}}


@dataclass(frozen=True)
class GgufTokens:
    """The tokens of a GGUF file: their texts and llama.cpp's types."""

    metadata: Metadata
    texts: Sequence[str]
    given: Sequence[int]  # the types in the file

    @classmethod
    def read(cls, metadata: Metadata) -> GgufTokens:
        """Return the tokens of a file; raise BrokenModel for lists that contradict each other."""
        texts = metadata.get(f"{KEY}tokens")
        if not isinstance(texts, list) or not texts or not isinstance(texts[0], str):
            raise BrokenModel("The file has no list of tokens", "Download the model again")
        texts = [text or f"[EMPTY_{token}]" for token, text in enumerate(texts)]
        if len(set(texts)) < len(texts):
            raise BrokenModel("The vocabulary has a text twice", "Download the model again")
        kinds = metadata.get(f"{KEY}token_type")
        if not isinstance(kinds, list) or not all(type(kind) is int for kind in kinds):
            kinds = [NORMAL] * len(texts)
        if len(kinds) != len(texts):
            raise BrokenModel(f"The vocabulary has {len(texts)} tokens and {len(kinds)} token types")
        return cls(metadata, texts, kinds)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The tokens by their texts."""
        return {text: token for token, text in enumerate(self.texts)}

    @cached_property
    def kinds(self) -> list[int]:
        """The types of the tokens: as in the file, except where their texts tell that it is wrong."""
        kinds = list(self.given)
        fill_in = [text for role, texts in FILL_IN.items() if self._given(role) is None for text in texts]
        for text in [*fill_in, *self._turn_ends]:
            if (token := self.ids.get(text)) is not None:
                kinds[token] = CONTROL
        for text in [*CHANNELS, *(["<|end|>"] if self._has_channels else [])]:
            if (token := self.ids.get(text)) is not None:
                kinds[token] = USER_DEFINED
        return kinds

    @cached_property
    def stops(self) -> list[int]:
        """The tokens that end an answer, as llama.cpp's `is_eog`."""
        ends = {self.ids[text] for text in self._turn_ends if text in self.ids}
        ends |= {token for role in ("eos", "eot", "eom") if (token := self.role(role)) is not None}
        ends |= {token for role in FILL_IN_ENDS if (token := self._fill_in(role)) is not None}
        return sorted(ends - ({self.ids["<|end|>"]} if self._has_channels else set()))

    def role(self, name: str) -> int | None:
        """Return the token of a role, such as `eos`, None without one."""
        token = self._given(name)
        if token is None:
            token = DEFAULTS.get(str(self.metadata.get(f"{KEY}model")), {}).get(name, len(self.given))
            known = token < len(self.given) and self.given[token] in (CONTROL, UNKNOWN)
            return token if known else None
        return token

    @property
    def first(self) -> list[int]:
        """The tokens that begin every text."""
        default = self.metadata.get(f"{KEY}model") == "llama" or self.metadata.get(f"{KEY}pre") in BEGINNING
        return self._framing("bos", default)

    @property
    def last(self) -> list[int]:
        """The tokens that end every text."""
        return self._framing("eos", False)

    def _framing(self, role: str, default: bool) -> list[int]:
        wanted, token = self.metadata.get(f"{KEY}add_{role}_token", default), self.role(role)
        return [token] if wanted is True and token is not None else []

    def _given(self, role: str) -> int | None:
        token = self.metadata.get(f"{KEY}{role}_token_id")
        return token if type(token) is int and 0 <= token < len(self.texts) else None

    def _fill_in(self, role: str) -> int | None:
        found = (self.ids[text] for text in FILL_IN[role] if text in self.ids)
        return next(found, None) if (token := self._given(role)) is None else token

    @property
    def _has_channels(self) -> bool:
        """Whether `<|end|>` ends one of several channels of an answer: gpt-oss and Solar."""
        texts = self.ids.keys()
        calls = "<|call|>" in texts or "<|calls|>" in texts
        return "<|end|>" in texts and calls and ("<|return|>" in texts or "<|flush|>" in texts)

    @property
    def _turn_ends(self) -> frozenset[str]:
        """The texts that end a turn; an ordinary `</s>` does not, nor that of Gemma 4 and PLaMo."""
        token = self.ids.get(END)
        typed = token is not None and self.given[token] != NORMAL
        special = typed or self.metadata.get(f"{KEY}model") == "llama"
        ordinary = "<|tool_response>" in self.ids or "<|plamo:eos|>" in self.ids
        return TURN_ENDS if special and not ordinary else TURN_ENDS - {END}
