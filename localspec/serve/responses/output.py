"""The items of a response's output, as they grow."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, Literal

PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
EVENTS = {"message": "output_text", "reasoning": "reasoning_text", "function_call": "function_call_arguments"}


@dataclass
class OutputItem:
    """A message, a reasoning or a call: `text` is its text, or the arguments of the call as JSON."""

    kind: Literal["message", "reasoning", "function_call"]
    name: str = ""
    text: str = ""
    status: Literal["in_progress", "completed", "incomplete"] = "in_progress"
    id: str = field(init=False)
    call_id: str = field(default_factory=lambda: f"call_{secrets.token_hex(8)}")

    def __post_init__(self) -> None:
        self.id = f"{PREFIXES[self.kind]}_{secrets.token_hex(12)}"

    def shown(self) -> dict[str, Any]:
        """Return the item as it is now; one without text has no part yet."""
        item: dict[str, Any] = {"id": self.id, "type": self.kind, "status": self.status}
        if self.kind == "function_call":
            return item | {"call_id": self.call_id, "name": self.name, "arguments": self.text}
        parts = [self.part()] if self.text else []
        if self.kind == "reasoning":
            return item | {"summary": [], "content": parts}
        return item | {"role": "assistant", "content": parts}

    def part(self) -> dict[str, Any]:
        """Return the content of a message or a reasoning as it is now."""
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": []}

    def event(self, end: str, **values: Any) -> dict[str, Any]:
        """Return an event of its text: `delta` or `done`."""
        more: dict[str, Any] = {} if self.kind == "function_call" else {"content_index": 0}
        more |= {"logprobs": []} if self.kind == "message" else {}
        return {"type": f"response.{EVENTS[self.kind]}.{end}", "item_id": self.id, **more, **values}
