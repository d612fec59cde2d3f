"""The conversation that a transcript holds, to go on with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from localspec.agent.calls import INTERRUPTED_RESULT, result_message
from localspec.agent.events import ANSWER, LENGTH, UNVERIFIED
from localspec.agent.loop_guard import FINAL
from localspec.agent.turn import Turn
from localspec.disk import given
from localspec.errors import PromptError, StorageError
from localspec.output.tool_calls import Call

WITH_ANSWER = (ANSWER, UNVERIFIED, LENGTH)  # ends that have a final answer

Line = dict[str, Any]


class Conversation(NamedTuple):
    """An agent's conversation: its model, the messages after the system prompt, each task and its end."""

    model: str
    messages: list[dict[str, Any]]
    tasks: list[tuple[str, str]]


def read(path: Path) -> Conversation:
    """Return the last conversation of a transcript; raises PromptError if there is none, StorageError."""
    try:
        text = given.path_of(path).read_text("utf-8", errors="backslashreplace")
    except FileNotFoundError:
        text = ""
    except OSError as error:
        raise StorageError(f"`{path}` cannot be read: {error.strerror}", "Choose another file") from None
    lines = list(_lines(text))
    begins = [at for at, line in enumerate(lines) if line["event"] == "begin" and not line.get("continues")]
    lines = lines[begins[-1] :] if begins else []
    try:
        found = Conversation(lines[0]["model"], messages_of(lines), list(_tasks(lines))) if lines else None
    except (KeyError, TypeError, IndexError, ValueError, AttributeError):
        found = None
    if found is None or not found.messages:
        raise PromptError("No conversation to continue", "Leave `--continue` out: a task begins a new one")
    return found


def _lines(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        with suppress(ValueError):  # the last line of a process that was killed
            value = json.loads(line)
            if isinstance(value, dict) and "event" in value:
                yield value


def messages_of(lines: Iterable[Line]) -> list[dict[str, Any]]:
    """Return the messages that a transcript's lines tell of; raises KeyError for a line without its keys."""
    messages: list[dict[str, Any]] = []
    turn, begin, number = Turn(), 0, 0
    for line in [*lines, {"event": "end"}]:
        match line["event"]:
            case "prompt" | "answer" | "finished" | "end":
                for at, call in enumerate(turn.calls[number:], number):
                    messages.append(result_message(call, at, INTERRUPTED_RESULT))
                turn = Turn()
        match line["event"]:
            case "prompt":
                messages.append({"role": "user", "content": line["text"]})
                begin = len(messages)
            case "answer":
                turn, number = Turn(line["text"], line.get("reasoning", "")), 0
                messages.append(turn.message())
            case "call":
                turn.calls.append(Call(line["name"], line["arguments"]))
                _set_turn(messages, turn)
            case "result":
                call = turn.calls[number]
                messages.append(result_message(call, number, line["text"], line.get("attached", "")))
                number += 1
            case "tests" if line.get("told"):
                messages[-1]["content"] += f"\n\n{line['told']}"
            case "not_yet":
                final = Call(FINAL, line["arguments"])
                turn.calls.append(final)
                _set_turn(messages, turn)
                parts = (f"error: {line['reason']}", line.get("attached", ""))
                messages.append(result_message(final, number, *parts))
                number += 1
            case "start_over":
                turn = Turn()
                del messages[begin:]
            case "finished" if line["reason"] in WITH_ANSWER and line["text"]:
                if messages[-1]["role"] == "assistant" and "tool_calls" not in messages[-1]:
                    messages.pop()
                messages.append({"role": "assistant", "content": line["text"]})
    return messages


def _set_turn(messages: list[dict[str, Any]], turn: Turn) -> None:
    """Replace the last answer by the turn, which has one more call now."""
    at = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
    messages[at] = turn.message()


def _tasks(lines: Iterable[Line]) -> Iterator[tuple[str, str]]:
    """Yield each task, and its answer or the reason why it has none."""
    task = ""
    for line in lines:
        if line["event"] == "task":
            task = line["text"]
        elif line["event"] in ("finished", "stopped"):
            yield task, line["text"] or f"({line['reason']})"
