"""Saved conversations: the list that `--list` prints, and saving one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from localspec.cli import console

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.state.conversations import Kept, Sessions


def print_sessions(as_json: bool) -> None:
    """Print the saved conversations, the latest first."""
    from localspec.library import Library
    from localspec.state.conversations import Sessions

    sessions = Sessions(Library().home / "sessions.db").all()
    if as_json:
        console.print_json([session_values(session) for session in sessions])
        return
    if not sessions:
        console.say("No conversations yet")
    for session in sessions:
        line = f"{session.name:<20} {session.updated}  {session.model:<20} {session.first}"
        console.print_text(line)


def session_values(session: Kept) -> dict[str, Any]:
    """Return a saved conversation as plain values."""
    values = {name: value for name, value in asdict(session).items() if name != "question"}
    return values | {"first": session.first}


def save(sessions: Sessions, name: str, model: str, chat: Chat) -> None:
    """Save a conversation; say so when it got another name because another process has continued it."""
    saved_as = sessions.write(name, model, chat.messages)
    if saved_as != name:
        console.say(f"`{name}` was continued elsewhere: this one is saved as `{saved_as}`")
