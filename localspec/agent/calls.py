"""Running the calls of a model: allowed, checked, and any error as their result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from time import perf_counter
from typing import Any

from localspec.agent.events import ToolResultEvent
from localspec.agent.loop_guard import LoopGuard
from localspec.agent.permission import NotAllowed, Permission
from localspec.agent.tools.text_files import shortened
from localspec.agent.turn import call_id
from localspec.errors import suggestion
from localspec.output.tool_calls import Call
from localspec.output.visible import visible
from localspec.tools import Tool, ToolFailed

INTERRUPTED_RESULT = "(stopped by the user)"


def run_call(
    call: Call, tools: Mapping[str, Tool], permission: Permission, guard: LoopGuard | None = None
) -> ToolResultEvent:
    """Run a call if it is allowed, and if `guard` has not seen it before; an error is its result."""
    started = perf_counter()
    failed, allowed = False, True
    try:
        called = _tool(call, tools)
        if guard:
            guard.check(call, called)
        called.check(call.arguments)
        permission.check(called, call.arguments)
        started = perf_counter()
        text = as_text(called.run(**call.arguments))
    except NotAllowed as error:
        text, failed, allowed = format_error(error), True, False
    except ToolFailed as error:
        text, failed = format_error(error), True
    except (Exception, SystemExit) as error:  # a tool is foreign code and may raise anything
        text, failed = f"error: {type(error).__name__}: {error}", True
    text = shortened(visible(text))
    return ToolResultEvent(call, text, failed, allowed, perf_counter() - started)


def _tool(call: Call, tools: Mapping[str, Tool]) -> Tool:
    if call.name not in tools:
        raise ToolFailed(f"There is no tool `{call.name}`", suggestion(call.name, tools))
    return tools[call.name]


def as_text(value: Any) -> str:
    """Return a tool's result as the text that the model reads."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def format_error(error: ToolFailed) -> str:
    """Return an error as the text that the model reads."""
    return f"error: {error.message}" + (f". {error.hint}" if error.hint else "")


def result_message(call: Call, number: int, *parts: str) -> dict[str, Any]:
    """Return the result of a turn's call as a message; `number` is its place in the turn."""
    content = "\n\n".join(filter(None, parts))
    return {"role": "tool", "name": call.name, "tool_call_id": call_id(number), "content": content}
