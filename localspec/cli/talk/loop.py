"""The loop of a conversation: read a line, run a command or answer a question, until the end of the input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.talk import answering, commands, saved
from localspec.cli.talk.entry import Entry, each_text, paths
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.cli.talk.state import Talk


def begin(talk: Talk) -> None:
    """Print the model's name and the keys, then read and answer."""
    name = talk.chat.runtime.model.name
    greeting = f"{name}. Ctrl-C stops an answer, Ctrl-D leaves, /help lists the commands."
    console.say(greeting, console.DIM)
    if talk.chat.turns:
        saved.print_messages(talk.chat.messages)
    entry = Entry(talk.library.home / "history", lambda line: complete(talk, line), talk.keyboard)
    for text in each_text(entry, talk.next_draft):
        if text.strip() or talk.files:
            take(talk, text)
        if talk.over:
            return


def take(talk: Talk, text: str) -> None:
    """Run a command or answer a question; an error is shown and does not end the conversation."""
    try:
        if text.startswith("/") and commands.is_command(text):
            commands.run(talk, text)
        elif talk.editing and text.strip():
            answering.ask_instead(talk, text)
        else:
            answering.ask(talk, text)
    except LocalspecError as error:
        console.show(error)
    except KeyboardInterrupt:
        console.say("Stopped")
        talk.keyboard.drop()


def complete(talk: Talk, line: str) -> Iterable[str]:
    """Return completions of the last word of a line: commands, their arguments, or files."""
    word = line.rpartition(" ")[2]
    if word.startswith("@"):
        return [f"@{path}" for path in paths(word[1:])]
    return commands.complete(talk, line) if line.startswith("/") else []
