"""Messages of MCP servers: tool lists repaired before the protocol is checked, and results as text.

Servers deviate from the protocol, and one odd tool must not keep the others from being used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

Say = Callable[[str], None]

# a result's blocks by their type, with the key that each must have
BLOCKS = {"text": "text", "image": "data", "audio": "data", "resource": "resource", "resource_link": "uri"}


class Tolerant:
    """A transport of the `mcp` package that repairs tool lists and results as they come in.

    `say` is told of each tool that is left out.
    """

    def __init__(self, transport: Any, say: Say) -> None:
        self._transport = transport
        self._say = say

    async def __aenter__(self) -> tuple[Any, Any]:
        read, write = await self._transport.__aenter__()
        return _Repaired(read, self._say), write

    async def __aexit__(self, *details: Any) -> Any:
        return await self._transport.__aexit__(*details)


class _Repaired:
    """The stream of a transport's incoming messages."""

    def __init__(self, stream: Any, say: Say) -> None:
        self._stream = stream
        self._say = say

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def receive(self) -> Any:
        return self._with_repairs(await self._stream.receive())

    def __aiter__(self) -> _Repaired:
        return self

    async def __anext__(self) -> Any:
        return self._with_repairs(await self._stream.__anext__())

    async def __aenter__(self) -> _Repaired:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *details: Any) -> Any:
        return await self._stream.__aexit__(*details)

    def _with_repairs(self, item: Any) -> Any:
        result = getattr(getattr(item, "message", None), "result", None)
        if isinstance(result, dict):
            repair(result, self._say)
        return item


def repair(result: dict[str, Any], say: Say) -> None:
    """Change a list of tools, or the result of a call, into one that the protocol allows."""
    if isinstance(result.get("tools"), list):
        result["tools"] = [tool for listed in result["tools"] if (tool := _tool(listed, say))]
    elif result.keys() & {"content", "structuredContent", "isError"}:
        content = result.get("content")
        blocks = content if isinstance(content, list) else [] if content is None else [content]
        structured = result.get("structuredContent")
        if structured is not None and not isinstance(structured, dict):  # older protocols have only objects
            result["structuredContent"] = {"result": structured}
        result["content"] = [_block(block) for block in blocks]
        result["isError"] = result.get("isError") not in (None, False)


def _tool(listed: Any, say: Say) -> dict[str, Any] | None:
    """Return what localspec needs of a listed tool, None if it has no name by which it could be called."""
    name = listed.get("name") if isinstance(listed, dict) else None
    if not isinstance(name, str):
        say(f"has a tool without a name, which is left out: {_json(listed)[:100]}")
        return None
    schema, description = listed.get("inputSchema") or {}, listed.get("description")
    given = schema if isinstance(schema, dict) else {}
    kept = {key: value for key, value in given.items() if _fits(key, value)}
    texts = [description if isinstance(description, str) else _json(description)] if description else []
    if any(value for key, value in given.items() if key not in kept) or (schema and not given):
        texts.append(f"Its arguments: {_json(schema)}")
    return {"name": name, "inputSchema": {**kept, "type": "object"}, "description": " ".join(texts) or name}


def _fits(key: str, value: Any) -> bool:
    """Return whether the value of a schema's key is of the type that the protocol demands."""
    if key == "required":
        return isinstance(value, list) and all(isinstance(name, str) for name in value)
    return isinstance(value, dict) if key == "properties" else True


def _block(block: Any) -> Any:
    """Return a block of a result, as text if the protocol does not know it."""
    if isinstance(block, dict) and (key := BLOCKS.get(str(block.get("type")))):
        value = block.get(key)
        if isinstance(value, dict if key == "resource" else str):
            return {"name": str(value), **block} if key == "uri" else block
    return {"type": "text", "text": block if isinstance(block, str) else _json(block)}


def text_of(result: Any) -> str:
    """Return all of a CallToolResult as text: its blocks, and its structured content unless they tell it."""
    texts = [_block_text(block) for block in result.content]
    structured = result.structured_content
    if structured is not None and not _is_told(structured, texts):
        texts.append(_json(structured))
    return "\n".join(texts)


def _is_told(value: Any, texts: Sequence[str]) -> bool:
    """Return whether the texts have a structured value; servers put one that is no object under `result`."""
    inner = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    if inner is None:
        return True
    if isinstance(inner, list) and len(inner) == len(texts) and all(map(_is_same, texts, inner)):
        return True
    return any(_is_same(text, told) for text in texts for told in (value, inner))


def _is_same(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text == value
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return type(found) is type(value) and bool(found == value)


def _block_text(block: Any) -> str:
    """Return the text of a block, or what it is if it has none."""
    if block.type == "text":
        return str(block.text)
    if block.type == "resource_link":
        kind = f" ({block.mime_type})" if block.mime_type else ""
        more = f". {block.description}" if block.description else ""
        return f"{block.title or block.name}: {block.uri}{kind}{more}"
    if block.type == "resource" and hasattr(block.resource, "text"):
        return str(block.resource.text)
    holder = block.resource if block.type == "resource" else block
    data = holder.blob if block.type == "resource" else block.data
    place = f"{holder.uri}, " if block.type == "resource" else ""
    kind = holder.mime_type or "of an unknown type"
    return f"({block.type}: {place}{kind}, {3 * len(data) // 4:,} bytes that are not text)"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
