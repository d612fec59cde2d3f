"""Files and folders that only their owner can read: conversations, transcripts, and caches of texts."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

FILE, FOLDER = 0o600, 0o700
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(path: Path) -> None:
    """Create a folder and those above it that do not exist, for their owner only; raises OSError."""
    missing = takewhile(lambda folder: not folder.is_dir(), (path, *path.parents))
    for folder in reversed(list(missing)):
        try:
            folder.mkdir(FOLDER, exist_ok=True)
        except FileExistsError:  # it is a file
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def make_file(path: Path) -> None:
    """Create a file, or restrict one that exists, to its owner; raises OSError if it cannot be created."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, FILE))
    restrict(path)


def restrict(path: Path) -> None:
    """Take the permissions of a file or folder from all but its owner; another's stays as it is."""
    with suppress(OSError):
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & OTHERS:
            path.chmod(mode & ~OTHERS)
