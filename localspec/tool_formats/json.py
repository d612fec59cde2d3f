"""Calls for a model whose chat template knows no tools: told in words, written as one JSON object."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localspec.output import grammar
from localspec.output.tool_calls import Bare, Reader, ToolFormat, in_json

TOLD = """You may call these tools, each a JSON object with the schema of its parameters:

{tools}

To call one, answer with nothing but {{"name": TOOL, "arguments": OBJECT}}. What it returns is told to you
next."""


class Json(ToolFormat):
    """`{"name": ..., "arguments": {...}}` alone in the answer, for every model with a chat template."""

    def grammar(
        self,
        tools: Sequence[Mapping[str, Any]],
        token: Callable[[str], int | None],
        *,
        must: bool,
        inside: bool = False,
    ) -> str:
        """Return one call, or text that does not begin like one."""
        return grammar.lark_bare(
            grammar.lark_call(tools), thought=grammar.lark_thought(token, inside), must=must
        )

    def reader(self) -> Reader:
        """Return a reader of a whole answer."""
        return Bare(in_json)

    def render(
        self,
        template: Callable[..., str],
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
    ) -> str:
        """Return the prompt, with the tools in the system's words and results in the user's."""
        told = TOLD.format(
            tools="\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
        )
        system = next((str(one["content"]) for one in messages[:1] if one["role"] == "system"), "")
        rest = messages[1:] if system else messages
        plain = [{"role": "system", "content": f"{system}\n\n{told}".strip()}, *map(_plain, rest)]
        return template(plain)


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a message without tool calls: what was called, or returned, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"`{message['name']}` returned:\n{message['content']}"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    written = [json.dumps({"name": one["name"], "arguments": one["arguments"]}) for one in calls]
    return {"role": message["role"], "content": "\n".join([str(message["content"] or ""), *written]).strip()}
