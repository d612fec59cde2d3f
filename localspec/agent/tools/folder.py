"""The folder that an agent's tools are confined to."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from localspec.agent.tools.changes import Changes
from localspec.errors import BadValue
from localspec.tools import ToolFailed

VERSION_CONTROL = {".git", "git~1", ".hg", ".svn"}  # never written: programs run what is in `.git/hooks`
SKIPPED = VERSION_CONTROL | {"__pycache__", "node_modules", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
MAX_SCANNED = 2000  # files
TEST_FOLDERS = {"test", "tests", "__tests__", "spec"}

_TEST = re.compile(r"(test_.*|.*_test)\.\w+|.*\.(test|spec)\.\w+", re.IGNORECASE)


class Folder:
    """A folder, and the paths that are inside it after every link is followed."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        """Raise BadValue if `root` is not a folder; changes of a task are kept in the file `kept`."""
        if not root.is_dir():
            raise BadValue(f"No such folder: `{root}`", "Give one with `--dir`")
        self.root = root.resolve()
        self.changes = Changes(self.root, kept)
        self.protects_tests = False  # while the task does not speak of changing them

    def place(self, path: str) -> Path:
        """Return the absolute place of a path relative to the folder; raises ToolFailed if it is outside."""
        try:
            place = (self.root / path).resolve()
            place.exists()  # raises for a name that is too long
        except (OSError, ValueError, RuntimeError) as error:
            raise ToolFailed(f"`{path}` is not a path: {getattr(error, 'strerror', error)}") from None
        if not place.is_relative_to(self.root):
            raise ToolFailed(f"`{path}` is outside the folder", "Paths are relative to the folder")
        return place

    def writable(self, path: str) -> Path:
        """Return the place of a file to write; raises ToolFailed if it must not be written."""
        place = self.place(path)
        if place.is_dir():
            raise ToolFailed(f"`{path}` is a folder")
        if place.exists() and not place.is_file():
            raise ToolFailed(f"`{path}` is not a file")
        for part in place.relative_to(self.root).parts:
            if _plain_name(part) in VERSION_CONTROL:
                raise ToolFailed(f"`{path}` is in `{part}`, which is not written by hand")
        return place

    def existing(self, path: str) -> Path:
        """Return the file at `path`; raises ToolFailed if there is none."""
        place = self.place(path)
        if place.is_dir():
            raise ToolFailed(f"`{path}` is a folder", "See what is in it with list_files")
        if not place.is_file():
            raise ToolFailed(f"There is no file `{path}`", self._suggestion(place))
        return place

    def inside(self, path: str) -> str | None:
        """Return the name of the file of the folder that a path means, None for any other path."""
        try:
            return self.name(self.existing(path))
        except ToolFailed:
            return None

    def is_protected(self, path: str) -> bool:
        """Return whether a file is a test from before the task, which the task does not speak of changing."""
        place = self.place(path)
        is_old_test = place.is_file() and is_test(self.name(place)) and not self.changes.made(place)
        return self.protects_tests and is_old_test

    def name(self, path: Path) -> str:
        """Return a path relative to the folder; characters that are not valid text become question marks."""
        return path.relative_to(self.root).as_posix().encode("utf-8", "replace").decode()

    def files(self, start: Path) -> Iterator[Path]:
        """Yield the files at and below `start`, sorted, without links and the folders in SKIPPED."""
        if start.is_file():
            yield start
            return
        for place, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in SKIPPED)
            for path in (Path(place) / name for name in sorted(names)):
                with suppress(OSError):  # no permission
                    if path.is_file() and not path.is_symlink():
                        yield path

    def _suggestion(self, missing: Path) -> str:
        here = list(islice(self.files(self.root), MAX_SCANNED))
        same = [path for path in here if path.name == missing.name]
        if same:
            return f"There is `{self.name(same[0])}`"
        names = ", ".join(f"`{self.name(path)}`" for path in here[:20])
        return f"There is {names}" if here else "The folder is empty"


def is_test(name: str) -> bool:
    """Return whether a file, by its path relative to the folder, is a test or belongs to tests."""
    path = PurePosixPath(name)
    return _TEST.fullmatch(path.name) is not None or bool(TEST_FOLDERS & {*path.parts[:-1]})


def _plain_name(part: str) -> str:
    """Return a name as file systems compare it that ignore case, invisible characters or an end of dots."""
    kept = (letter for letter in part if unicodedata.category(letter) != "Cf")
    return "".join(kept).casefold().partition(":")[0].rstrip(". ")
