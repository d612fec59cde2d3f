"""Files in a question: `@path` in its text, or `--file`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import PromptError

MOST_BYTES = 10_000_000

_NAMED = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))""")


@dataclass(frozen=True, slots=True)
class Attached:
    """A file that goes with a question."""

    path: Path
    text: str

    def told(self) -> str:
        """Return the file as the model reads it, its name first."""
        from localspec.chat import fenced

        return fenced(self.path.as_posix(), self.text)


def read(path: Path) -> Attached:
    """Return a file of text; raises PromptError for what is missing, no text, or very large."""
    try:
        with path.open("rb") as file:  # a pipe too, which tells no size
            held = file.read(MOST_BYTES + 1)
        if len(held) > MOST_BYTES:
            raise PromptError(
                f"`{path}` has over {MOST_BYTES:,} bytes, more than any context holds",
                "Choose a part of it",
            )
        text = held.decode("utf-8-sig")
    except FileNotFoundError:
        raise PromptError(f"There is no file `{path}`", "Check the path") from None
    except UnicodeDecodeError:
        raise _no_text(path) from None
    except OSError as error:
        raise PromptError(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
    if "\0" in text:
        raise _no_text(path)
    if not text.strip():
        raise PromptError(f"`{path}` is empty", "Name a file that has something in it")
    return Attached(path, text)


def _no_text(path: Path) -> PromptError:
    return PromptError(f"`{path}` is no text", "Only text can be read, in UTF-8")


def named(text: str) -> list[Path]:
    """Return the files that `@path` in a text names: those that exist, for an `@` has other uses too."""
    found = (Path(quoted or plain).expanduser() for quoted, plain in _NAMED.findall(text))
    return list(dict.fromkeys(path for path in found if path.is_file()))


def missing(text: str) -> list[str]:
    """Return what looks like the path of a file after an `@`, and is none."""
    words = [quoted or plain for quoted, plain in _NAMED.findall(text)]
    return [word for word in words if "/" in word and not Path(word).expanduser().is_file()]


def together(text: str, files: Sequence[Attached]) -> str:
    """Return a question with its files before it."""
    return "\n\n".join([*(file.told() for file in files), text])
