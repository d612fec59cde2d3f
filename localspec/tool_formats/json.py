"""Tool calls for models whose chat template has no tools: described in the prompt, written as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.output.tool_format import BareToolFormat, Tools

INSTRUCTIONS = """You may call these tools, each a JSON object with the schema of its parameters:

{tools}

To call one, answer with nothing but {{"name": TOOL, "arguments": OBJECT}}. What it returns is told to you
next."""


class Json(BareToolFormat):
    """`{"name": ..., "arguments": {...}}` alone in the answer, for every model with a chat template."""

    def render(
        self, template: Callable[..., str], messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> str:
        """Return the prompt, with the tools in the system prompt and results in the user's messages."""
        schemas = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        instructions = INSTRUCTIONS.format(tools=schemas)
        system = next((str(first["content"]) for first in messages[:1] if first["role"] == "system"), "")
        rest = messages[1:] if system else messages
        whole = {"role": "system", "content": f"{system}\n\n{instructions}".strip()}
        return template([whole, *map(_without_tools, rest)])


def _without_tools(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message with its tool calls, or its tool result, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"`{message['name']}` returned:\n{message['content']}"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [json.dumps({"name": call["name"], "arguments": call["arguments"]}) for call in calls]
    return {"role": message["role"], "content": "\n".join([str(message["content"] or ""), *written]).strip()}
