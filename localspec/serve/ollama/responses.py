"""Answers as Ollama's objects: whole, and as the lines of a stream."""

from __future__ import annotations

import json
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
        self._end: dict[str, Any] = {}

    def add(self, event: Event, index: int = 0) -> list[Any]:
        """Take in an event; return the object that it adds to a stream."""
        match event:
            case Text(text, True):
                self._thinking += text
                return [self._part("", thinking=text)]
            case Text(text):
                self._text += text
                return [self._part(text)]
            case Call():
                call = {"function": {"name": event.name, "arguments": event.arguments}}
                self._calls.append(call)
                return [self._part("", tool_calls=[call])]
            case End():
                self._end = self._ended(event)
                return [self._part("") | self._end]
        return []

    def line(self, added: Any) -> str:
        """Return such an object as a line of the stream."""
        return json.dumps(self._object() | added) + "\n"

    def complete(self) -> dict[str, Any]:
        """Return the whole answer."""
        more: dict[str, Any] = {"thinking": self._thinking} if self._thinking else {}
        more |= {"tool_calls": self._calls} if self._calls else {}
        return self._object() | self._part(self._text, **more) | self._end

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

    def _object(self) -> dict[str, Any]:
        return {"model": self._model, "created_at": datetime.now(UTC).isoformat()}


class GenerateWriter(ChatWriter):
    """Makes the objects of one answer of `/api/generate`."""

    def _part(self, text: str, **more: Any) -> dict[str, Any]:
        return {"response": text, "done": False, **more}
