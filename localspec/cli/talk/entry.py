"""Reading what a user types: history, several lines, an editor, and completion."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.disk import private

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completion
    from prompt_toolkit.document import Document

QUOTES = '"""'
PROMPT = "> "
MAX_COMPLETIONS = 100

Complete = Callable[[str], Iterable[str]]  # the line so far -> completions of its last word

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Entry:
    """Reads a line, or several between triple quotes.

    A terminal that can do it has a history in the file `history`, Ctrl-G for `$EDITOR`, and Tab for
    `complete`.
    """

    def __init__(self, history: Path, complete: Complete) -> None:
        self._session = _session(history, complete) if _is_capable_terminal() else None

    def read(self) -> str:
        """Return the typed text; raises EOFError at the end of the input, KeyboardInterrupt for Ctrl-C."""
        text = self._session.prompt(PROMPT) if self._session else _read_plain()
        return unquoted(without_controls(text))


def without_controls(text: str) -> str:
    """Return typed or pasted text without control characters, which no question needs."""
    return _CONTROL.sub("", text.replace("\r\n", "\n"))


def each_text(entry: Entry) -> Iterator[str]:
    """Yield each text that is typed, until the end of the input."""
    while True:
        try:
            text = entry.read()
        except KeyboardInterrupt:
            console.say("Ctrl-D leaves")
            continue
        except EOFError:
            console.say("")
            return
        yield text


@contextmanager
def no_echo() -> Iterator[None]:
    """Turn the echo off: keys that are pressed during an answer would appear in it. They are read later."""
    try:
        import termios

        descriptor = sys.stdin.fileno()
        before = termios.tcgetattr(descriptor)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(descriptor, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def unquoted(text: str) -> str:
    """Return a text without the triple quotes around it."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text


def unfinished(text: str) -> bool:
    """Return whether a text opens triple quotes that it does not close."""
    stripped = text.strip()
    return stripped.startswith(QUOTES) and (len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES))


def paths(start: str) -> Iterable[str]:
    """Return the files and folders whose path begins with `start`."""
    folder, _, name = start.rpartition("/")
    place = Path(f"{folder}/" if folder or start.startswith("/") else ".").expanduser()
    try:
        entries = sorted(place.iterdir(), key=lambda path: path.name)
    except OSError:
        return []
    shown = [
        path for path in entries if path.name.startswith(name) and (name or not path.name.startswith("."))
    ]
    head = f"{folder}/" if folder or start.startswith("/") else ""
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in shown[:MAX_COMPLETIONS]]


def _is_capable_terminal() -> bool:
    return sys.stdin.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _read_plain() -> str:
    console.say(PROMPT, end="")
    text = input()
    while unfinished(text):
        text += "\n" + input()
    return text


def _session(history: Path, complete: Complete) -> Any:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.history import FileHistory, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    class LineCompleter(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            line = document.text_before_cursor
            word = line.rpartition(" ")[2].rpartition("\n")[2]
            for text in complete(line):
                yield Completion(text, start_position=-len(word))

    keys = KeyBindings()

    @keys.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @keys.add("enter", filter=Condition(lambda: unfinished(session.default_buffer.text)))
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    try:
        private.make_folder(history.parent)
        private.make_file(history)
        store: Any = FileHistory(history) if history.is_file() else InMemoryHistory()
    except OSError:
        store = InMemoryHistory()
    session: Any = PromptSession(
        history=store,
        completer=LineCompleter(),
        complete_while_typing=False,
        key_bindings=keys,
        enable_open_in_editor=True,
        prompt_continuation="  ",
        output=_output(),
    )
    return session


def _output() -> Any:
    """Return the output of the prompt, which does not query the cursor's position.

    Some terminals reply late or never, and the reply, or a warning, then appears in the text.
    """
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.vt100 import Vt100_Output

    output = create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr)
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output
