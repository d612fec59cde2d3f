"""Files attached to a question: `@path` in its text, `--file` or `--image`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localspec import pictures
from localspec.disk import given
from localspec.errors import PromptError

MAX_BYTES = 10_000_000

_MENTION = re.compile(r"""(?<!\S)@(?:"([^"\n]+)"|([^\s"]+))""")


@dataclass(frozen=True, slots=True)
class Attached:
    """A text file that goes with a question."""

    path: Path
    text: str

    def in_prompt(self) -> str:
        """Return the file as the model reads it: its name, then its text in a fence."""
        from localspec.chat import fenced

        return fenced(self.path.as_posix(), self.text)


@dataclass(frozen=True, slots=True)
class AttachedPicture:
    """A picture that goes with a question: its file in base64, and its size in pixels."""

    path: Path
    encoded: str
    size: tuple[int, int]


File = Attached | AttachedPicture


def read_any(path: Path) -> File:
    """Return a picture, by the end of its name, or a text file; raises what reading either raises."""
    return read_picture(path) if path.suffix.lower() in pictures.SUFFIXES else read_file(path)


def read_picture(path: Path) -> AttachedPicture:
    """Return a picture; raises PromptError if it is missing, empty, damaged, very large, or no picture."""
    encoded = pictures.as_text(pictures.read_bytes(path))
    return AttachedPicture(path, encoded, pictures.of_text(encoded, str(path)).size)


def read_file(path: Path) -> Attached:
    """Return a text file; raises PromptError if it is missing, empty, very large, or not text."""
    try:
        with path.open("rb") as file:  # a pipe too, which has no size
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise PromptError(
                f"`{path}` has over {MAX_BYTES:,} bytes, more than any context holds",
                "Attach a part of it",
            )
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise PromptError(f"No such file: `{path}`", "Check the path") from None
    except UnicodeDecodeError:
        raise _not_text(path) from None
    except OSError as error:
        raise PromptError(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
    if "\0" in text:
        raise _not_text(path)
    if not text.strip():
        raise PromptError(f"`{path}` is empty", "Attach a file that has text in it")
    return Attached(path, text)


def _not_text(path: Path) -> PromptError:
    return PromptError(f"`{path}` is not a text file", "Only UTF-8 text can be attached")


def named(text: str) -> list[Path]:
    """Return the existing files that a text names as `@path`."""
    words = [quoted or plain for quoted, plain in _MENTION.findall(text)]
    return list(dict.fromkeys(Path(word).expanduser() for word in words if given.is_file(word)))


def missing(text: str) -> list[str]:
    """Return the words after an `@` that look like a path, but name no file."""
    words = [quoted or plain for quoted, plain in _MENTION.findall(text)]
    return [word for word in words if "/" in word and not given.is_file(word)]


def together(text: str, files: Sequence[File]) -> str:
    """Return a question with its text files in front of it."""
    return "\n\n".join([*(file.in_prompt() for file in files if isinstance(file, Attached)), text])


def images(files: Sequence[File]) -> list[str]:
    """Return the pictures among files, in base64."""
    return [file.encoded for file in files if isinstance(file, AttachedPicture)]
