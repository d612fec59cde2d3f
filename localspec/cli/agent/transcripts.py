"""The transcripts of a run: that of the folder, which `--continue` reads, and the one of `--transcript`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from localspec.cli import console
from localspec.errors import StorageError

if TYPE_CHECKING:
    from localspec.agent.resume import Conversation

SHOWN = 100  # characters of a task and of its end


class Transcripts:
    """Writes each line to both files; the first line of a new conversation begins the folder's file anew."""

    def __init__(self, stack: ExitStack, kept: Path, asked: Path | None, *, continues: bool) -> None:
        """Raise BadValue and StorageError if the file `asked` for cannot be written; `stack` closes both."""
        from localspec.agent.transcript import opened

        self._stack, self._kept, self._continues = stack, kept, continues
        self._out = stack.enter_context(opened(asked)) if asked else None
        self._outs: list[IO[str]] | None = None

    def write(self, line: dict[str, Any], model: str) -> None:
        """Write a line, behind one that says that the conversation of a model begins; raises StorageError."""
        from localspec.agent import transcript

        if self._outs is None:
            self._outs = [*filter(None, (self._out, self._open_kept()))]
            begin = transcript.begin_line(model, continues=self._continues)
            for out in self._outs:
                transcript.write(out, begin)
        for out in self._outs:
            transcript.write(out, line)

    def begin_anew(self) -> None:
        """Let the next line begin a new conversation."""
        self._continues, self._outs = False, None

    def _open_kept(self) -> IO[str] | None:
        from localspec.agent.transcript import opened

        try:
            return self._stack.enter_context(opened(self._kept, anew=not self._continues))
        except StorageError as error:
            console.say(f"{error.message}: `--continue` will not know this conversation")
            return None


def show_tasks(conversation: Conversation) -> None:
    """Print the tasks of a conversation that goes on, and how they ended."""
    for task, end in conversation.tasks:
        console.say(f"> {_first(task)}", console.DIM)
        console.say(f"  {_first(end)}", console.DIM)


def _first(text: str) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN else f"{line[: SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"
