"""The input line on a terminal: history, completion, an editor, folded pastes, and what was typed ahead."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.cli.talk.terminal.folds import Folds
from localspec.cli.talk.terminal.keyboard import PASTE_BEGINS, PASTE_ENDS
from localspec.disk import private

if TYPE_CHECKING:
    from prompt_toolkit.completion import Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import StyleAndTextTuples
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
    from prompt_toolkit.layout.processors import Processor

ENTERS, TAB = ("c-m", "c-j"), "c-i"
PASTE = "<bracketed-paste>"
EDITING = ("c-h", "c-u", "c-w", "c-a", "c-e", "left", "right", "home", "end", "delete")


class Line:
    """Reads a line with prompt_toolkit. `complete` completes it, `unfinished` lines go on below Enter."""

    def __init__(
        self,
        history: Path,
        complete: Callable[[str], Iterable[str]],
        unfinished: Callable[[str], bool],
    ) -> None:
        from prompt_toolkit import PromptSession

        self.folds = Folds()
        self._session: PromptSession[str] = PromptSession(
            history=_history(history, self.folds),
            completer=_completer(complete),
            complete_while_typing=False,
            key_bindings=_keys(self.folds, unfinished),
            enable_open_in_editor=True,
            prompt_continuation="  ",
            input_processors=[_label_processor(self.folds)],
            output=_output(),
        )

    def read(self, prompt: str, typed: str, default: str) -> str:
        """Return the line, its long texts folded; it begins with `default` and what was `typed` ahead."""
        from prompt_toolkit.input.typeahead import store_typeahead

        source: Any = self._session.input
        if typed:
            source.vt100_parser.feed(typed)
            store_typeahead(source, waiting(source.read_keys()))
        return self._session.prompt(prompt, default=self.folds.fold_known(default))

    def rest(self) -> str:
        """Return the keys that were read and came too late for the line."""
        from prompt_toolkit.input.typeahead import get_typeahead

        return "".join(map(_as_typed, get_typeahead(self._session.input)))


def waiting(presses: Sequence[KeyPress]) -> list[KeyPress]:
    """Return the keys that were typed ahead without those that act: they write a text, or edit it.

    Enter begins a new line, unless nothing follows.
    """
    from prompt_toolkit.key_binding import KeyPress
    from prompt_toolkit.keys import Keys

    kept = [press for press in presses if _written(press) or press.key in (PASTE, *EDITING)]
    while kept and _written(kept[-1]) == "\n":
        kept.pop()
    found: list[KeyPress] = []
    for writes, group in groupby(kept, lambda press: bool(_written(press))):
        if not writes:
            found += group
            continue
        text = "".join(map(_written, group))
        if text := text if found else text.lstrip("\n"):
            found.append(KeyPress(Keys.BracketedPaste, text))
    return found


def _written(press: KeyPress) -> str:
    """Return the text that a key writes, "" for one that does something else."""
    if press.key in ENTERS:
        return "\n"
    if press.key == TAB:
        return "\t"
    return press.data if press.key == press.data else ""


def _as_typed(press: KeyPress) -> str:
    """Return what the terminal sent for a key."""
    if press.key == PASTE:
        return f"{PASTE_BEGINS.decode()}{press.data}{PASTE_ENDS.decode()}"
    return press.data if press.key == press.data or len(press.key) > 1 else ""  # a flush is no key


def _keys(folds: Folds, unfinished: Callable[[str], bool]) -> KeyBindings:
    from prompt_toolkit.application.current import get_app
    from prompt_toolkit.filters import Condition
    from prompt_toolkit.key_binding import KeyBindings
    from prompt_toolkit.keys import Keys

    keys = KeyBindings()

    @keys.add("c-g")
    def _edit(event: KeyPressEvent) -> None:
        event.current_buffer.text = folds.unfold(event.current_buffer.text)
        event.current_buffer.open_in_editor()

    @keys.add("enter", filter=Condition(lambda: unfinished(get_app().current_buffer.text)))
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add(Keys.BracketedPaste)
    def _paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        event.current_buffer.insert_text(folds.fold(text))

    return keys


def _completer(complete: Callable[[str], Iterable[str]]) -> Any:
    from prompt_toolkit.completion import Completer, Completion

    class LineCompleter(Completer):
        def get_completions(self, document: Document, event: Any) -> Iterable[Completion]:
            line = document.text_before_cursor
            word = line.rpartition(" ")[2].rpartition("\n")[2]
            for text in complete(line):
                yield Completion(text, start_position=-len(word))

    return LineCompleter()


def _history(path: Path, folds: Folds) -> History:
    """Return the history in a file, or in memory without one: whole on disk, folded in the input line."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    class Unfolded(FileHistory):
        async def load(self) -> AsyncGenerator[str, None]:
            async for text in super().load():
                yield folds.recalled(text)

        def append_string(self, string: str) -> None:
            super().append_string(folds.unfold(string))

    try:
        private.make_folder(path.parent)
        private.make_file(path)
        return Unfolded(path) if path.is_file() else InMemoryHistory()
    except OSError:
        return InMemoryHistory()


def _label_processor(folds: Folds) -> Processor:
    from prompt_toolkit.layout.processors import Processor, Transformation, TransformationInput
    from prompt_toolkit.layout.utils import explode_text_fragments

    class Labels(Processor):
        """Shows the label of a folded text instead of its character."""

        def apply_transformation(self, transformation_input: TransformationInput) -> Transformation:
            shown: StyleAndTextTuples = []
            starts = [0]  # where each character of the line is shown
            for style, character, *_ in explode_text_fragments(transformation_input.fragments):
                text = folds.label(character) or character
                shown.append((style, text))
                starts.append(starts[-1] + len(text))
            return Transformation(
                shown,
                source_to_display=lambda at: starts[min(at, len(starts) - 1)] + max(0, at - len(starts) + 1),
                display_to_source=lambda at: bisect_right(starts, at) - 1 + max(0, at - starts[-1]),
            )

    return Labels()


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
