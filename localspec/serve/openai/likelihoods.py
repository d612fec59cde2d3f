"""Likelihoods of tokens as OpenAI's `logprobs`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from localspec.serve.trace import Scored

LEAST = -9999.0  # stands for a probability of 0, which JSON has no logarithm for


def chat_logprobs(tokens: Sequence[Scored]) -> dict[str, Any]:
    """Return the `logprobs` of a choice of a chat completion."""
    content = [
        _entry(token.text, token.logprob) | {"top_logprobs": [_entry(*pair) for pair in token.best]}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: Sequence[Scored], before: Sequence[Scored]) -> dict[str, Any]:
    """Return the `logprobs` of a choice of a completion; `before` are its tokens before these."""
    texts = [_shown(token.text) for token in tokens]
    start = sum(len(_shown(token.text)) for token in before)
    return {
        "tokens": texts,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {_shown(text): _finite(logprob) for text, logprob in reversed(token.best)} for token in tokens
        ],
        "text_offset": [start + sum(map(len, texts[:at])) for at in range(len(texts))],
    }


def _entry(text: bytes, logprob: float) -> dict[str, Any]:
    return {"token": _shown(text), "logprob": _finite(logprob), "bytes": list(text)}


def _shown(text: bytes) -> str:
    """Return a token's text; bytes of half a character show as U+FFFD."""
    return text.decode("utf-8", "replace")


def _finite(logprob: float) -> float:
    return max(logprob, LEAST)
