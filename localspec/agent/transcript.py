"""What an agent did, a JSON object a line: written as it happens, so that a crash loses nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from localspec.agent.loop import Called, Dropped, Event, Finished, Returned, Said, Stepped
from localspec.errors import LocalspecError, StorageError


def lines(events: Iterator[Event], task: str) -> Iterator[tuple[Event, dict[str, Any] | None]]:
    """Yield each event and the line that it completes, if it does; pieces of text are put together."""
    said = thought = ""
    yield Said(""), {"event": "task", "text": task, "at": now()}
    for event in events:
        line: dict[str, Any] | None = None
        match event:
            case Said(text, is_thought):
                said, thought = said + text * (not is_thought), thought + text * is_thought
            case Stepped(answer):
                line = {"event": "answer", "text": said.strip(), "at": now()}
                line |= {"thought": thought.strip()} if thought.strip() else {}
                line |= {
                    "tokens": len(answer.token_ids),
                    "prompt_tokens": answer.prompt_tokens,
                    "kept_tokens": answer.kept_tokens,
                    "prompt_seconds": round(answer.prompt_seconds, 4),
                    "seconds": round(answer.seconds, 4),
                    "tokens_per_pass": round(answer.stats.tokens_per_pass, 3),
                    "drafted": answer.stats.drafted,
                    "accepted": answer.stats.accepted,
                    "token_ids": answer.token_ids,
                }
                said = thought = ""
            case Called(call):
                line = {"event": "call", "name": call.name, "arguments": call.arguments, "at": now()}
            case Returned():
                line = {
                    "event": "result",
                    "name": event.call.name,
                    "text": event.text,
                    "failed": event.failed,
                    "allowed": event.allowed,
                    "seconds": round(event.seconds, 4),
                    "at": now(),
                }
            case Dropped(results):
                line = {"event": "dropped", "results": results, "at": now()}
            case Finished(reason, text):
                line = {"event": "finished", "reason": reason, "text": text, "at": now()}
        yield event, line


def cut_off(error: BaseException, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the line of a task that ended before its end: why, and what the model had said by then."""
    reason = error.message if isinstance(error, LocalspecError) else "interrupted"
    said = messages[-1]["content"] if messages[-1]["role"] == "assistant" else ""
    return {"event": "stopped", "reason": reason, "text": said, "at": now()}


def opened(path: Path) -> IO[str]:
    """Open a transcript to be written on at its end; raises StorageError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"`{path}` cannot be written: {error.strerror}", "Choose another file") from None


def write(out: IO[str], line: dict[str, Any]) -> None:
    """Write a line, which is then on its way to the disk; raises StorageError."""
    try:
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
        out.flush()
    except OSError as error:
        raise StorageError(
            f"`{out.name}` cannot be written: {error.strerror}", "Choose another file"
        ) from None


def now() -> str:
    """Return the time, to the millisecond, with its zone."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
