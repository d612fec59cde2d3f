"""Answers as Ollama's objects: whole, and as the lines of a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from localspec.core.stop import LENGTH, REPEATING
from localspec.output.tool_calls import Call
from localspec.serve.generation import End, Event, Text

NANOSECONDS = 10**9


class ChatWriter:
    """Makes the objects of one answer of `/api/chat`."""

    media_type = "application/x-ndjson"

    def __init__(self, model: str) -> None:
        self._model = model
        self._text, self._thinking = "", ""
        self._calls: list[dict[str, Any]] = []

    def lines(self, event: Event) -> Iterator[str]:
        """Take in an event; yield the lines that it adds to a stream."""
        match event:
            case Text(text, True):
                self._thinking += text
                yield self._line(self._part("", thinking=text))
            case Text(text):
                self._text += text
                yield self._line(self._part(text))
            case Call():
                call = {"function": {"name": event.name, "arguments": event.arguments}}
                self._calls.append(call)
                yield self._line(self._part("", tool_calls=[call]))
            case End():
                yield self._line(self._part("") | self._ended(event))

    def complete(self, end: End) -> dict[str, Any]:
        """Return the whole answer."""
        more: dict[str, Any] = {"thinking": self._thinking} if self._thinking else {}
        more |= {"tool_calls": self._calls} if self._calls else {}
        return self._object() | self._part(self._text, **more) | self._ended(end)

    def _part(self, text: str, **more: Any) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}, "done": False}

    def _ended(self, end: End) -> dict[str, Any]:
        answer = end.answer
        cut = answer.finish_reason in (LENGTH, REPEATING)
        return {
            "done": True,
            "done_reason": "length" if cut else "stop",
            "total_duration": int(NANOSECONDS * answer.seconds),
            "load_duration": 0,
            "prompt_eval_count": answer.prompt_tokens,
            "prompt_eval_duration": int(NANOSECONDS * answer.prompt_seconds),
            "eval_count": len(answer.token_ids),
            "eval_duration": int(NANOSECONDS * (answer.seconds - answer.prompt_seconds)),
        }

    def _line(self, values: dict[str, Any]) -> str:
        return json.dumps(self._object() | values) + "\n"

    def _object(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()}


class GenerateWriter(ChatWriter):
    """Makes the objects of one answer of `/api/generate`."""

    def _part(self, text: str, **more: Any) -> dict[str, Any]:
        return {"response": text, "done": False, **more}
