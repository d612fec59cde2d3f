"""Answers as responses: whole, and as the events of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from time import time
from typing import Any

from localspec.core.stop import LENGTH, REPEATING
from localspec.output.tool_calls import Call
from localspec.serve.generation import Begin, End, Event, Text
from localspec.serve.responses.output import OutputItem


class ResponseWriter:
    """Makes the objects of one response."""

    media_type = "text/event-stream"

    def __init__(self, told: dict[str, Any]) -> None:
        """`told` is what the response repeats of its request."""
        self._told = told
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = int(time())
        self._output: list[OutputItem] = []
        self._end: End | None = None
        self._count = 0  # of events

    def add(self, event: Event, index: int = 0) -> list[Any]:
        """Take in an event; return the events that it adds to a stream."""
        added = []
        for found in self._add(event):
            added.append({**found, "sequence_number": self._count})
            self._count += 1
        return added

    def line(self, added: Any) -> str:
        """Return such an event as text of the stream."""
        return f"event: {added['type']}\ndata: {json.dumps(added)}\n\n"

    def complete(self) -> dict[str, Any]:
        """Return the whole response."""
        return self._response()

    def _add(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Begin():
                yield {"type": "response.created", "response": self._response()}
                yield {"type": "response.in_progress", "response": self._response()}
            case Text(text, is_reasoning) if text:
                kind = "reasoning" if is_reasoning else "message"
                if self._open is None or self._open.kind != kind:
                    yield from self._close("completed")
                    yield from self._begin(OutputItem("reasoning" if is_reasoning else "message"))
                yield from self._grow(text)
            case Call():
                yield from self._close("completed")
                yield from self._begin(OutputItem("function_call", event.name))
                yield from self._grow(json.dumps(event.arguments))
                yield from self._close("completed")
            case End():
                self._end = event
                yield from self._close(self._status)
                yield {"type": f"response.{self._status}", "response": self._response()}

    @property
    def _open(self) -> OutputItem | None:
        """The item that still grows."""
        last = self._output[-1] if self._output else None
        return last if last and last.status == "in_progress" else None

    def _begin(self, item: OutputItem) -> Iterator[dict[str, Any]]:
        self._output.append(item)
        yield {"type": "response.output_item.added", "output_index": self._at, "item": item.shown()}
        if item.kind != "function_call":
            yield self._part("added", item)

    def _grow(self, text: str) -> Iterator[dict[str, Any]]:
        item = self._output[-1]
        item.text += text
        yield item.event("delta", output_index=self._at, delta=text)

    def _close(self, status: Any) -> Iterator[dict[str, Any]]:
        item = self._open
        if item is None:
            return
        item.status = status
        name = "arguments" if item.kind == "function_call" else "text"
        yield item.event("done", output_index=self._at, **{name: item.text})
        if item.kind != "function_call":
            yield self._part("done", item)
        yield {"type": "response.output_item.done", "output_index": self._at, "item": item.shown()}

    def _part(self, end: str, item: OutputItem) -> dict[str, Any]:
        where = {"item_id": item.id, "output_index": self._at, "content_index": 0}
        return {"type": f"response.content_part.{end}", **where, "part": item.part()}

    @property
    def _at(self) -> int:
        return len(self._output) - 1

    @property
    def _status(self) -> str:
        if self._end is None:
            return "in_progress"
        return "incomplete" if self._end.answer.finish_reason in (LENGTH, REPEATING) else "completed"

    def _response(self) -> dict[str, Any]:
        cut = self._status == "incomplete"
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": self._status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [item.shown() for item in self._output],
            "usage": usage_of(self._end) if self._end else None,
            **self._told,
        }


def usage_of(end: End) -> dict[str, Any]:
    """Return the tokens of a prompt and its answer."""
    prompt, tokens = end.answer.prompt_tokens, len(end.answer.token_ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": end.cached, "cache_write_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": prompt + tokens,
    }
