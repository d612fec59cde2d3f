"""The commands that are typed in place of a task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.agent.undo import undo
from localspec.cli.talk.entry import paths
from localspec.errors import PromptError, suggestion

if TYPE_CHECKING:
    from localspec.cli.agent.worker import Worker

LEAVE = ("exit", "quit", "bye")


COMMANDS = {  # and what `/help` says of them
    "undo": "restore what the last task has written",
    "changes": "list the files that the last task has changed",
    "stats": "show statistics after each task, or no longer",
    "new": "forget the conversation",
    "help": "this list",
    **dict.fromkeys(LEAVE, "leave"),
}


def is_command(text: str) -> bool:
    """Return whether a text is a command, not a task, which may begin with a path."""
    words = text.split()
    return len(words) == 1 and words[0].startswith("/") and "/" not in words[0][1:]


def run_command(text: str, worker: Worker) -> bool:
    """Run a command; return whether the conversation goes on. Raises PromptError for an unknown one."""
    match text.removeprefix("/"):
        case "undo":
            undo(worker.folder)
        case "changes":
            console.say(", ".join(worker.folder.changes.lines()) or "No changes")
        case "stats":
            worker.stats = not worker.stats
            console.say(f"Statistics are {'on' if worker.stats else 'off'}")
        case "new":
            del worker.agent.messages[1:]
            worker.transcripts.begin_anew()
            console.say("The next task begins a new conversation")
        case "help":
            for name, title in COMMANDS.items():
                console.say(f"  /{name:<8} {title}")
            console.say("All else is a task")
        case name if name in LEAVE:
            return False
        case name:
            near = suggestion(name, COMMANDS).replace("`", "`/", 1)
            raise PromptError(f"Unknown command `/{name}`", near if len(near) < 40 else "See /help")
    return True


def complete(line: str) -> Iterable[str]:
    """Return completions of the last word of a line: commands, or files."""
    word = line.rpartition(" ")[2]
    if word == line and word.startswith("/"):
        return [f"/{name}" for name in COMMANDS if name.startswith(word[1:])] or paths(word)
    return paths(word)
