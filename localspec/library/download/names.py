"""Names from outside that become paths: each type checks itself, so an unchecked text never reaches the disk.

A hub's answers, the files in its cache and the members of a package are made by others.
"""

from __future__ import annotations

import re
from typing import Self

from localspec.errors import NetworkError, printable

MAX_PART = 255  # bytes of a file name, on nearly every disk
MAX_NAME = 1000  # bytes of a path below a folder

_DEVICE = re.compile(r"(con|prn|aux|nul|com\d|lpt\d|conin\$|conout\$)\s*(\..*)?", re.IGNORECASE)
_FORBIDDEN = set('\\:<>"|?*')  # in file names of Windows; a colon names a stream or a drive there
_WORD = re.compile(r"\w[\w-]{0,127}", re.ASCII)


class SafeName(str):
    """A text that was checked to be safe as a path; the constructor raises NetworkError for any other."""

    TITLE = "name"

    def __new__(cls, text: str) -> Self:
        """Check `text`."""
        if not cls.is_safe(text):
            raise NetworkError(
                f"`{printable(text)}` is not a {cls.TITLE} that can be saved",
                "Nothing was written; use another hub or repository",
            )
        return super().__new__(cls, text)

    @classmethod
    def is_safe(cls, text: str) -> bool:
        """Return whether `text` is a single safe word."""
        return _WORD.fullmatch(text) is not None and _DEVICE.fullmatch(text) is None


class BlobName(SafeName):
    """The name of a file in the hub's cache, nearly always a digest."""

    TITLE = "digest"


class Sha256(BlobName):
    """A sha256 in hexadecimal, the name of a large file in the hub's cache."""

    TITLE = "sha256"

    @classmethod
    def is_safe(cls, text: str) -> bool:
        """Return whether `text` has 64 hexadecimal digits."""
        return re.fullmatch(r"[0-9a-f]{64}", text) is not None


class Commit(SafeName):
    """The commit of a repository, the name of a folder in the hub's cache."""

    TITLE = "commit"


class FileName(SafeName):
    """The name of a file, without folders."""

    TITLE = "file name"

    @classmethod
    def is_safe(cls, text: str) -> bool:
        """Return whether every system can save a file of that name, and it stays in its folder."""
        return (
            text.isprintable()  # so without control characters and surrogates
            and 0 < len(text.encode()) <= MAX_PART
            and not text.endswith((".", " "))  # so neither `.` nor `..`
            and not _FORBIDDEN.intersection(text)
            and "/" not in text
            and _DEVICE.fullmatch(text) is None
        )


class RepoFile(SafeName):
    """The path of a file in a repository, which stays below the folder that it is saved to."""

    TITLE = "file name"

    @classmethod
    def is_safe(cls, text: str) -> bool:
        """Return whether each part is a safe file name."""
        return len(text) <= MAX_NAME and all(map(FileName.is_safe, text.split("/")))
