"""What is typed: history, several lines, an editor, and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.talk.screen import printable

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completion
    from prompt_toolkit.document import Document

QUOTES = '"""'
PROMPT = "> "

Complete = Callable[[str], Iterable[str]]  # the line so far -> what its last word may become


class Entry:
    """Asks for a line, or for several between triple quotes.

    On a terminal with a history in the file `history`, Ctrl-G for `$EDITOR` and Tab for what `complete`
    knows; where that is not to be had, plainly.
    """

    def __init__(self, history: Path, complete: Complete) -> None:
        self._session = _session(history, complete) if _able() else None

    def read(self) -> str:
        """Return what was typed; raises EOFError at the end of the input, KeyboardInterrupt for Ctrl-C."""
        text = self._session.prompt(PROMPT) if self._session else _plainly()
        return unquoted(printable(text))


@contextmanager
def no_echo() -> Iterator[None]:
    """Show no keys that are pressed meanwhile: they would stand amid an answer. They are read later."""
    try:
        import termios

        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, AttributeError, termios.error):
        yield
        return
    quiet = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(number, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


def unquoted(text: str) -> str:
    """Return a text without the triple quotes around it."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")
    return text


def unfinished(text: str) -> bool:
    """Tell whether a text opens triple quotes that it does not close."""
    stripped = text.strip()
    return stripped.startswith(QUOTES) and (len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES))


def paths(start: str) -> Iterable[str]:
    """Return the files and folders that a path may become."""
    folder, _, name = start.rpartition("/")
    place = Path(f"{folder}/" if folder or start.startswith("/") else ".").expanduser()
    try:
        found = sorted(place.iterdir(), key=lambda path: path.name)
    except OSError:
        return []
    shown = [path for path in found if path.name.startswith(name) and (name or not path.name.startswith("."))]
    head = f"{folder}/" if folder or start.startswith("/") else ""
    return [f"{head}{path.name}{'/' if path.is_dir() else ''}" for path in shown[:100]]


def _able() -> bool:
    return sys.stdin.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def _plainly() -> str:
    sys.stderr.write(PROMPT)
    sys.stderr.flush()
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

    class Known(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            line = document.text_before_cursor
            word = line.rpartition(" ")[2].rpartition("\n")[2]
            for one in complete(line):
                yield Completion(one, start_position=-len(word))

    keys = KeyBindings()

    @keys.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.open_in_editor()

    @keys.add("enter", filter=Condition(lambda: unfinished(session.default_buffer.text)))
    def _go_on(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    try:
        history.parent.mkdir(parents=True, exist_ok=True)
        history.touch(mode=0o600)
        kept: Any = FileHistory(history) if history.is_file() else InMemoryHistory()
    except OSError:
        kept = InMemoryHistory()
    session: Any = PromptSession(
        history=kept,
        completer=Known(),
        complete_while_typing=False,
        key_bindings=keys,
        enable_open_in_editor=True,
        prompt_continuation="  ",
        output=_output(),
    )
    return session


def _output() -> Any:
    """Return where the prompt is drawn, without asking the terminal where its cursor is.

    Some answer late or never, and then the answer stands amid the text, or a warning does.
    """
    from prompt_toolkit.output import create_output
    from prompt_toolkit.output.vt100 import Vt100_Output

    output = create_output(stdout=sys.stdout if sys.stdout.isatty() else sys.stderr)
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output
