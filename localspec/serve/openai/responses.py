"""Answers as OpenAI's objects: whole, and as the chunks of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from time import time
from typing import Any

from localspec.core.stop import LENGTH, REPEATING
from localspec.output.tool_calls import Call
from localspec.serve.generation import Begin, End, Event, Text
from localspec.serve.openai.likelihoods import chat_logprobs, completion_logprobs
from localspec.serve.trace import Scored

DONE = "[DONE]"


class ChatChoice:
    """One answer as a choice of a chat completion."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._text, self._reasoning = "", ""
        self._calls: list[dict[str, Any]] = []
        self._tokens: list[Scored] = []
        self.end: End | None = None

    def add(self, event: Event) -> dict[str, Any] | None:
        """Take in an event; return the choice of the chunk that it adds to a stream."""
        if (added := self._added_by(event)) is None:
            return None
        logprobs = None
        if isinstance(event, Text | End):
            logprobs = self._logprobs(event.tokens)
            self._tokens += event.tokens
        return {"index": self._index, "finish_reason": None, "logprobs": logprobs, **added}

    def _added_by(self, event: Event) -> dict[str, Any] | None:
        match event:
            case Begin():
                return self._begun()
            case Text(text, True):
                self._reasoning += text
                return {"delta": {"reasoning_content": text}}
            case Text(text):
                self._text += text
                return self._added(text)
            case Call():
                call = {
                    "id": f"call_{secrets.token_hex(8)}",
                    "type": "function",
                    "function": {"name": event.name, "arguments": json.dumps(event.arguments)},
                }
                self._calls.append(call)
                return {"delta": {"tool_calls": [{"index": len(self._calls) - 1, **call}]}}
            case End():
                self.end = event
                return self._added("") | {"finish_reason": self._finish(event)}
        return None

    def complete(self) -> dict[str, Any]:
        """Return the whole choice."""
        assert self.end is not None
        tokens, self._tokens = self._tokens, []
        told = {"finish_reason": self._finish(self.end), "logprobs": self._logprobs(tokens)}
        return {"index": self._index, **told, **self._said()}

    def _begun(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def _added(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _finish(self, end: End) -> str:
        if end.answer.finish_reason in (LENGTH, REPEATING):
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _said(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message |= {"content": self._text.strip() or None, "tool_calls": self._calls}
        return {"message": message}

    def _logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any] | None:
        """Return the likelihoods of the tokens that come after `self._tokens`."""
        return chat_logprobs(tokens) if tokens else None


class CompletionChoice(ChatChoice):
    """One answer as a choice of a completion of a text."""

    def _begun(self) -> dict[str, Any] | None:
        return None

    def _added(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _said(self) -> dict[str, Any]:
        return {"text": self._text}

    def _logprobs(self, tokens: Sequence[Scored]) -> dict[str, Any] | None:
        return completion_logprobs(tokens, self._tokens) if tokens else None


class ChatWriter:
    """Makes the objects of one chat completion."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    media_type = "text/event-stream"
    choice = ChatChoice

    def __init__(self, model: str, *, answers: int = 1, each: int = 1, with_usage: bool = False) -> None:
        """Write `answers` answers of `model`, `each` of them to one prompt; a stream ends `with_usage`."""
        self._model, self._each, self._with_usage = model, each, with_usage
        self._id = self.prefix + secrets.token_hex(12)
        self._created = int(time())
        self._choices = [self.choice(index) for index in range(answers)]

    def add(self, event: Event, index: int = 0) -> list[Any]:
        """Take in an event of an answer; return the chunks that it adds to a stream."""
        choice = self._choices[index].add(event)
        if choice is None:
            return []
        chunks: list[Any] = [self._chunk([choice]) | _drafted(event)]
        if isinstance(event, End) and all(each.end for each in self._choices):
            if self._with_usage:
                chunks.append(self._chunk([]) | {"usage": self._usage()} | _drafted(event))
            chunks.append(DONE)
        return chunks

    def line(self, added: Any) -> str:
        """Return such a chunk as text of the stream."""
        return f"data: {added if added == DONE else json.dumps(added)}\n\n"

    def complete(self) -> dict[str, Any]:
        """Return the whole response; `localspec` tells of its first answer."""
        choices = [choice.complete() for choice in self._choices]
        body = self._object(self.whole) | {"choices": choices, "usage": self._usage()}
        return body | _drafted(self._ends[0])

    def _chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return self._object(self.chunk) | {"choices": choices}

    @property
    def _ends(self) -> list[End]:
        return [choice.end for choice in self._choices if choice.end]

    def _usage(self) -> dict[str, Any]:
        return usage_of(self._ends, self._each)

    def _object(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


class CompletionWriter(ChatWriter):
    """Makes the objects of one completion of a text."""

    whole = chunk = "text_completion"
    prefix = "cmpl-"
    choice = CompletionChoice


def _drafted(event: Event) -> dict[str, Any]:
    """Return what a chunk tells of drafts, if the request asks for it."""
    if isinstance(event, Text) and event.sources:
        return {"localspec": {"parts": event.sources, **event.so_far}}
    return {"localspec": event.stats} if isinstance(event, End) and event.stats else {}


def usage_of(ends: Sequence[End], each: int = 1) -> dict[str, Any]:
    """Return the tokens of the prompts, `each` with so many answers, of the answers, and their guesses."""
    prompt = sum(end.answer.prompt_tokens for end in ends[::each])
    tokens = sum(len(end.answer.token_ids) for end in ends)
    accepted = sum(end.answer.stats.accepted for end in ends)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": tokens,
        "total_tokens": prompt + tokens,
        "prompt_tokens_details": {"cached_tokens": sum(end.cached for end in ends[::each])},
        "completion_tokens_details": {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": sum(end.answer.stats.drafted for end in ends) - accepted,
            "reasoning_tokens": sum(end.reasoning_tokens for end in ends),
        },
    }
