"""The text of files in a folder: read, written, shortened and compared."""

from __future__ import annotations

import difflib
import io
from contextlib import suppress
from pathlib import Path

from localspec.agent.tools import handles
from localspec.agent.tools.folder import Folder
from localspec.tools import ToolFailed

MAX_OUTPUT = 16_000  # characters of one result
SNIFFED = 4096  # bytes in which a NUL tells a binary file
MAX_COUNTED = 1_000_000  # bytes of a file whose lines are counted
MAX_READ = 20_000_000  # bytes of a file
NO_NEWLINE = "\\ No newline at end of file"


def text_of(folder: Folder, file: Path, shown: str, limit: int = MAX_READ) -> str:
    try:
        data, size = handles.read_bytes(folder.root, file, limit + 1)
        if size > limit:
            raise ToolFailed(f"`{shown}` is too large to read: {size:,} bytes")
        return data.decode()
    except UnicodeDecodeError:
        raise ToolFailed(f"`{shown}` is not text: {size:,} bytes of something else") from None
    except OSError as error:
        raise ToolFailed(f"`{shown}` cannot be read: {error.strerror}") from None


def content(folder: Folder, file: Path, limit: int = MAX_READ) -> str | None:
    """Return the text of a file, None if it is not text or has more than `limit` bytes."""
    with suppress(ToolFailed):
        return text_of(folder, file, file.name, limit)
    return None


def text_size(folder: Folder, file: Path) -> int | None:
    """Return the size of a file in bytes, None if it looks binary or cannot be read."""
    with suppress(OSError):
        start, size = handles.read_bytes(folder.root, file, SNIFFED)
        return None if b"\0" in start else size
    return None


def write_text(folder: Folder, place: Path, text: str) -> None:
    """Write a file of a folder atomically, and keep its permissions; raises ToolFailed."""
    try:
        folder.changes.write(place, text.encode())
    except (OSError, UnicodeEncodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ToolFailed(f"`{place.name}` cannot be written: {reason}") from None


def describe_size(folder: Folder, file: Path) -> str:
    """Return the lines of a text file, unless it is large, and the bytes of any file."""
    try:
        size = file.stat().st_size
    except OSError:
        return "gone"
    if size <= MAX_COUNTED:
        with suppress(ToolFailed):
            return f"{count_lines(lines_of(text_of(folder, file, file.name)))}, {size:,} bytes"
    return f"{size:,} bytes"


def append_lines(text: str, new: str) -> str:
    """Return a text with lines added at its end."""
    end = "\r\n" if "\r\n" in text else "\n"
    return text + ("" if not text or text.endswith("\n") else end) + new + ("" if new.endswith("\n") else end)


def shortened(text: str) -> str:
    """Return the start and the end of a text longer than MAX_OUTPUT, with a note on what is left out."""
    if len(text) <= MAX_OUTPUT:
        return text
    half = MAX_OUTPUT // 2
    return f"{text[:half]}\n(... {len(text) - 2 * half:,} characters left out ...)\n{text[-half:]}"


def diff(before: str, after: str, path: str) -> str:
    """Return the unified diff of a file."""
    lines = difflib.unified_diff(lines_of(before), lines_of(after), path, path, n=2)
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}\n" for line in lines)


def lines_of(text: str) -> list[str]:
    """Return the lines as editors count them: unlike `str.splitlines`, only a newline ends one."""
    return list(io.StringIO(text, newline="\n"))


def count_lines(lines: list[str]) -> str:
    return "1 line" if len(lines) == 1 else f"{len(lines)} lines"
