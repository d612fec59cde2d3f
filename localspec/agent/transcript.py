"""The transcript of an agent: JSON lines, each written as its event happens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from localspec.agent import events as happened
from localspec.agent.events import Event
from localspec.disk import given, private
from localspec.errors import LocalspecError, StorageError
from localspec.runtime.answer import Answer


def lines(events: Iterator[Event], task: str) -> Iterator[tuple[Event, dict[str, Any] | None]]:
    """Yield each event with its line, or None; the pieces of a text become one line."""
    text = reasoning = ""
    yield happened.TextEvent(""), {"event": "task", "text": task, "at": now()}
    for event in events:
        line: dict[str, Any] | None = None
        match event:
            case happened.TextEvent(piece, is_reasoning):
                text, reasoning = text + piece * (not is_reasoning), reasoning + piece * is_reasoning
            case happened.AnswerEvent(answer):
                line = _answer_line(answer, text.strip(), reasoning.strip())
                text = reasoning = ""
            case happened.ToolCallEvent(call):
                line = {"event": "call", "name": call.name, "arguments": call.arguments, "at": now()}
            case happened.ToolResultEvent():
                line = _result_line(event)
            case happened.CheckEvent(call, result, told) if result:
                line = {**_result_line(result), "event": "tests", "command": call.arguments["command"]}
                line |= {"told": told} if told else {}
            case happened.NotCheckedEvent(reason):
                line = {"event": "not_checked", "reason": reason, "at": now()}
            case happened.PromptEvent(piece):
                line = {"event": "prompt", "text": piece, "at": now()}
            case happened.NotYetEvent(call, reason, attached):
                line = {"event": "not_yet", "arguments": call.arguments, "reason": reason, "at": now()}
                line |= {"attached": attached} if attached else {}
            case happened.StartOverEvent(reason, names):
                line = {"event": "start_over", "reason": reason, "restored": names, "at": now()}
            case happened.DroppedResultsEvent(results):
                line = {"event": "dropped", "results": results, "at": now()}
            case happened.FinishedEvent(reason, piece):
                line = {"event": "finished", "reason": reason, "text": piece, "at": now()}
        yield event, line


def _answer_line(answer: Answer, text: str, reasoning: str) -> dict[str, Any]:
    return {
        "event": "answer",
        "text": text,
        "at": now(),
        **({"reasoning": reasoning} if reasoning else {}),
        "tokens": len(answer.token_ids),
        "prompt_tokens": answer.prompt_tokens,
        "cached_prompt_tokens": answer.cached_prompt_tokens,
        "prompt_seconds": round(answer.prompt_seconds, 4),
        "seconds": round(answer.seconds, 4),
        "tokens_per_pass": round(answer.stats.tokens_per_pass, 3),
        "drafted": answer.stats.drafted,
        "accepted": answer.stats.accepted,
        "token_ids": answer.token_ids,
    }


def _result_line(result: happened.ToolResultEvent) -> dict[str, Any]:
    return {
        "event": "result",
        "name": result.call.name,
        "text": result.text,
        "failed": result.failed,
        "allowed": result.allowed,
        "seconds": round(result.seconds, 4),
        **({"attached": result.attached} if result.attached else {}),
        "at": now(),
    }


def stopped_line(error: BaseException, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the line of a task that an error or Ctrl-C stopped, with the text written by then."""
    reason = error.message if isinstance(error, LocalspecError) else "interrupted"
    text = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
    return {"event": "stopped", "reason": reason, "text": text, "at": now()}


def begin_line(model: str, *, continues: bool) -> dict[str, Any]:
    """Return the first line of a run: a conversation begins, or goes on."""
    return {"event": "begin", "model": model, "continues": continues, "at": now()}


def opened(path: Path, *, anew: bool = False) -> IO[str]:
    """Open a transcript to append to, or to write `anew`; raises BadValue and StorageError."""
    path = given.path_of(path)
    try:
        private.make_folder(path.parent)
        private.make_file(path)
        return path.open("w" if anew else "a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"`{path}` cannot be written: {error.strerror}", "Choose another file") from None


def write(out: IO[str], line: dict[str, Any]) -> None:
    """Write a line and flush it; raises StorageError."""
    try:
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
        out.flush()
    except OSError as error:
        raise StorageError(
            f"`{out.name}` cannot be written: {error.strerror}", "Choose another file"
        ) from None


def now() -> str:
    """Return the time in ISO format, in milliseconds and UTC."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
