"""The commands of a conversation that concern saved ones: save, load, search, export and delete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.disk import atomic, given
from localspec.errors import BadValue, PromptError, StorageError

if TYPE_CHECKING:
    from localspec.cli.talk.state import Talk
    from localspec.state.conversations import Kept

ROLES = {"user": "You", "system": "System prompt"}  # other messages are the model's
SHOWN_LINES, SHOWN_WIDTH = 6, 400  # of a message of a conversation that is continued


def save(talk: Talk, argument: str) -> None:
    """Save the conversation, under a name if one is given."""
    if argument:
        if talk.sessions.has(argument) and argument != talk.name:
            raise BadValue(f"The conversation `{argument}` exists already", "Choose another name")
        talk.name = talk.sessions.write(argument, talk.model, talk.chat.messages)
    if talk.name is None:
        raise PromptError("Nothing was asked yet", None)
    console.say(f"Saved as `{talk.name}`; continue with: localspec chat --session {talk.name}")


def load(talk: Talk, argument: str) -> None:
    """Continue a saved conversation; without a name list them."""
    if not argument:
        _print(talk.sessions.all(), "No saved conversation")
        return
    model, messages = talk.sessions.read(argument)
    if model != talk.model:
        console.say(f"It was saved with `{model}`; `{talk.model}` continues it")
    talk.chat.messages = messages
    talk.name, talk.asked_with = argument, {}
    print_messages(messages)


def search(talk: Talk, argument: str) -> None:
    """List the saved conversations that hold a text."""
    if not argument:
        raise PromptError("`/search` needs a text", "Such as /search regular expression")
    _print(talk.sessions.holding(argument), f"No saved conversation has `{argument}`")


def _print(found: list[Kept], none: str) -> None:
    for session in found:
        console.say(f"  {session.name:<20} {session.updated}  {session.first}")
    if not found:
        console.say(none)


def delete(talk: Talk, argument: str) -> None:
    """Delete a saved conversation, which is not the present one."""
    if argument in ("", talk.name):
        raise PromptError(
            "`/delete` needs the name of another conversation", "/load lists them, /clear leaves this one"
        )
    talk.sessions.remove(argument)
    console.say(f"Deleted `{argument}`")


def export(talk: Talk, argument: str) -> None:
    """Write the conversation into a new file: as JSON if its name ends so, else as Markdown."""
    if not argument or not talk.chat.turns:
        raise PromptError(
            "`/export` needs a file" if not argument else "Nothing was asked yet", "Such as /export talk.md"
        )
    path, messages = given.path_of(argument), talk.chat.messages
    as_json = path.suffix == ".json"
    text = json.dumps(messages, ensure_ascii=False, indent=2) + "\n" if as_json else _markdown(talk, messages)
    if path.exists():
        raise BadValue(f"`{path}` exists already", "Choose another name")
    try:
        atomic.write(path, text.encode("utf-8", "replace"))
    except OSError as error:
        raise StorageError(f"`{path}` cannot be written: {error.strerror}", "Choose another file") from None
    console.say(f"Written to `{path}`")


def _markdown(talk: Talk, messages: list[dict[str, Any]]) -> str:
    parts = [f"**{ROLES.get(message['role'], talk.model)}**\n\n{message['content']}" for message in messages]
    return "\n\n".join(parts) + "\n"


def print_messages(messages: list[dict[str, Any]]) -> None:
    """Show a conversation that is continued, without the rest of long messages."""
    marks = {"user": "> ", "system": "System prompt: "}
    for message in messages:
        console.say(folded(marks.get(message["role"], "") + str(message["content"])), console.DIM)


def folded(text: str) -> str:
    """Return the first lines of a text, each no longer than a few rows, and the number of the others."""
    lines = text.strip().split("\n")
    more = len(lines) - SHOWN_LINES
    kept = lines if more <= 1 else lines[:SHOWN_LINES]
    shown = [line if len(line) <= SHOWN_WIDTH else f"{line[:SHOWN_WIDTH]} ..." for line in kept]
    return "\n".join([*shown, *([f"[{more:,} more lines]"] if more > 1 else [])])


def names(talk: Talk) -> list[str]:
    """Return the names of the saved conversations."""
    return [session.name for session in talk.sessions.all()]
