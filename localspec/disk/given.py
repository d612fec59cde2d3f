"""Paths and text files that a user names: anything may be typed, and a file may have no end."""

from __future__ import annotations

import errno
from pathlib import Path

from localspec.errors import BadValue, printable

MAX_TEXT = 1 << 26  # bytes of a text file
MAX_PARTS = 200  # folders in a path
_REACHED = {errno.ENOTDIR, errno.EACCES, errno.EPERM}  # said when the path is used


def path_of(text: str | Path) -> Path:
    """Return the path that a text names, with `~` expanded; raises BadValue for one that no disk can have."""
    path = Path(text)
    try:
        path = path.expanduser()
        path.lstat()
    except FileNotFoundError:
        pass
    except RuntimeError:
        raise BadValue(
            f"`{printable(str(text))}` begins with the home of an unknown user", "Check it"
        ) from None
    except (OSError, ValueError) as error:  # too long, or with a NUL
        if isinstance(error, OSError) and error.errno in _REACHED:
            return path
        reason = getattr(error, "strerror", None) or str(error)
        raise BadValue(f"`{printable(str(text))}` cannot be a path: {reason}", "Check it") from None
    check_utf8(path)
    if len(path.parts) > MAX_PARTS:
        raise BadValue(f"`{printable(str(text))}` has more than {MAX_PARTS} folders", "Check it")
    return path


def check_utf8(path: Path) -> None:
    """Raise BadValue for a path that is not UTF-8: no engine can open it, and no JSON can hold it."""
    whole = path.absolute()
    try:
        str(whole).encode()
    except UnicodeEncodeError:
        raise BadValue(f"`{printable(str(whole))}` is not a UTF-8 path", "Rename it") from None


def exists(text: str | Path) -> bool:
    """Return whether a text names a file or folder."""
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def is_file(text: str | Path) -> bool:
    """Return whether a text names a file, with `~` expanded."""
    try:
        return Path(text).expanduser().is_file()
    except (OSError, ValueError, RuntimeError):
        return False


def read_text(path: Path) -> str:
    """Return a UTF-8 file's text, without its byte order mark; a pipe is read to its end. Raises BadValue."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_TEXT + 1)
        if len(content) > MAX_TEXT:
            raise BadValue(f"`{path}` has more than {MAX_TEXT:,} bytes", "Give a smaller file")
        return content.decode("utf-8-sig")
    except FileNotFoundError:
        raise BadValue(f"No such file: `{path}`", "Check the path") from None
    except UnicodeDecodeError:
        raise BadValue(f"`{path}` is not UTF-8 text", "Save it as UTF-8") from None
    except OSError as error:
        raise BadValue(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
