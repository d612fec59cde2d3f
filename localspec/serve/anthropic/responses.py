"""Answers as Anthropic's objects: whole, and as the events of a stream."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from typing import Any

from localspec.core.stop import LENGTH, REPEATING
from localspec.output.tool_calls import Call
from localspec.serve.generation import Begin, End, Event, Text


class MessageWriter:
    """Makes the objects of one message: blocks of text, of reasoning, and calls of tools."""

    media_type = "text/event-stream"

    def __init__(self, model: str) -> None:
        self._model = model
        self._id = f"msg_{secrets.token_hex(12)}"
        self._blocks: list[dict[str, Any]] = []
        self._open = False  # is the last block still growing
        self._end: End | None = None

    def add(self, event: Event, index: int = 0) -> list[Any]:
        """Take in an event; return the events that it adds to a stream."""
        return list(self._add(event))

    def line(self, added: Any) -> str:
        """Return such an event as text of the stream."""
        return f"event: {added['type']}\ndata: {json.dumps(added)}\n\n"

    def _add(self, event: Event) -> Iterator[dict[str, Any]]:
        match event:
            case Begin():
                nothing = {"input_tokens": 0, "output_tokens": 0}  # it is known at the end
                yield {"type": "message_start", "message": self._message(None, nothing)}
            case Text(text, is_reasoning):
                kind = "thinking" if is_reasoning else "text"
                if text and not (self._open and self._blocks[-1]["type"] == kind):
                    empty = {"type": kind, kind: ""} | ({"signature": ""} if is_reasoning else {})
                    yield from self._started(empty)
                if text:
                    self._blocks[-1][kind] += text
                    yield self._delta({"type": f"{kind}_delta", kind: text})
            case Call():
                call = {"type": "tool_use", "id": f"toolu_{secrets.token_hex(8)}", "name": event.name}
                yield from self._started(call | {"input": {}})
                self._blocks[-1]["input"] = event.arguments
                yield self._delta({"type": "input_json_delta", "partial_json": json.dumps(event.arguments)})
            case End():
                self._end = event
                yield from self._stopped()
                delta = {"stop_reason": self._reason(event), "stop_sequence": None}
                yield {"type": "message_delta", "delta": delta, "usage": usage_of(event)}
                yield {"type": "message_stop"}

    def complete(self) -> dict[str, Any]:
        """Return the whole message."""
        assert self._end is not None
        return self._message(self._reason(self._end), usage_of(self._end))

    def _started(self, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from self._stopped()
        self._blocks.append(dict(block))
        self._open = True
        yield {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}

    def _stopped(self) -> Iterator[dict[str, Any]]:
        if self._open:
            self._open = False
            yield {"type": "content_block_stop", "index": len(self._blocks) - 1}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _reason(self, end: End) -> str:
        if end.answer.finish_reason in (LENGTH, REPEATING):
            return "max_tokens"
        return "tool_use" if any(block["type"] == "tool_use" for block in self._blocks) else "end_turn"

    def _message(self, reason: str | None, usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [dict(block) for block in self._blocks],
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": usage,
        }


def usage_of(end: End) -> dict[str, int]:
    """Return the tokens of a prompt, without those that were in the KV cache, of these, and of the answer."""
    prompt = end.answer.prompt_tokens
    return {
        "input_tokens": prompt - end.cached,
        "cache_read_input_tokens": end.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": len(end.answer.token_ids),
    }
