"""Answers as OpenAI's objects: whole, and as the chunks of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from time import time
from typing import Any

from localspec.core.stop import LENGTH, REPEATING
from localspec.output.tool_calls import Call
from localspec.serve.generation import Begin, End, Event, Text


class ChatWriter:
    """Makes the objects of one chat completion."""

    whole, chunk, prefix = "chat.completion", "chat.completion.chunk", "chatcmpl-"
    media_type = "text/event-stream"

    def __init__(self, model: str, with_usage: bool = False) -> None:
        """Write answers of `model`; a stream ends `with_usage`."""
        self._model, self._with_usage = model, with_usage
        self._id = self.prefix + secrets.token_hex(12)
        self._created = int(time())
        self._text, self._reasoning = "", ""
        self._calls: list[dict[str, Any]] = []

    def lines(self, event: Event) -> Iterator[str]:
        """Take in an event; yield the lines that it adds to a stream."""
        if (added := self._add(event)) is not None:
            yield self._line([{"index": 0, "finish_reason": None, "logprobs": None, **added}])
        if isinstance(event, End):
            if self._with_usage:
                yield self._line([], usage=usage_of(event))
            yield "data: [DONE]\n\n"

    def _add(self, event: Event) -> dict[str, Any] | None:
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
                return self._added("") | {"finish_reason": self._finish(event)}
        return None

    def _begun(self) -> dict[str, Any] | None:
        return {"delta": {"role": "assistant", "content": ""}}

    def _added(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text} if text else {}}

    def _finish(self, end: End) -> str:
        if end.answer.finish_reason in (LENGTH, REPEATING):
            return "length"
        return "tool_calls" if self._calls else "stop"

    def _line(self, choices: list[dict[str, Any]], **more: Any) -> str:
        body = self._object(self.chunk) | {"choices": choices} | more
        return f"data: {json.dumps(body)}\n\n"

    def complete(self, end: End) -> dict[str, Any]:
        """Return the whole answer."""
        choice = {"index": 0, "finish_reason": self._finish(end), "logprobs": None, **self._said()}
        return self._object(self.whole) | {"choices": [choice], "usage": usage_of(end)}

    def _said(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._text, "refusal": None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message |= {"content": self._text.strip() or None, "tool_calls": self._calls}
        return {"message": message}

    def _object(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


class CompletionWriter(ChatWriter):
    """Makes the objects of one completion of a text."""

    whole = chunk = "text_completion"
    prefix = "cmpl-"

    def _begun(self) -> dict[str, Any] | None:
        return None

    def _added(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _said(self) -> dict[str, Any]:
        return {"text": self._text}


def usage_of(end: End) -> dict[str, Any]:
    """Return the tokens of a prompt and its answer, with the guesses that were accepted and rejected."""
    answer, stats = end.answer, end.answer.stats
    tokens = len(answer.token_ids)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": tokens,
        "total_tokens": answer.prompt_tokens + tokens,
        "prompt_tokens_details": {"cached_tokens": end.cached},
        "completion_tokens_details": {
            "accepted_prediction_tokens": stats.accepted,
            "rejected_prediction_tokens": stats.drafted - stats.accepted,
        },
    }
