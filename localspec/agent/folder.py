"""The folder that an agent's tools are kept to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from localspec.errors import BadValue
from localspec.tools import ToolFailed

HISTORY = {".git", ".hg", ".svn"}  # a program acts on what lies in these, as on `.git/hooks`
UNSEEN = HISTORY | {"__pycache__", "node_modules", ".venv", "venv", ".mypy_cache", ".ruff_cache"}
LOOKED_AT = 2000  # files, for one that was meant


class Folder:
    """A folder, and the paths that lie in it once every link is followed."""

    def __init__(self, root: Path) -> None:
        """Raise BadValue where there is no folder."""
        if not root.is_dir():
            raise BadValue(f"There is no folder `{root}`", "Give one with `--dir`")
        self.root = root.resolve()

    def place(self, path: str) -> Path:
        """Return where `path` is, relative to the folder; raises ToolFailed for what lies outside."""
        try:
            found = (self.root / path).resolve()
            found.exists()  # raises for a name that is too long
        except (OSError, ValueError, RuntimeError) as error:
            raise ToolFailed(f"`{path}` is no path: {getattr(error, 'strerror', error)}") from None
        if not found.is_relative_to(self.root):
            raise ToolFailed(f"`{path}` is outside the folder", "Paths are relative to the folder")
        return found

    def writable(self, path: str) -> Path:
        """Return where to write a file; raises ToolFailed where none may be."""
        found = self.place(path)
        if found.is_dir():
            raise ToolFailed(f"`{path}` is a folder")
        if found.exists() and not found.is_file():
            raise ToolFailed(f"`{path}` is no file")
        kept = HISTORY.intersection(found.relative_to(self.root).parts)
        if kept:
            raise ToolFailed(f"`{path}` is in `{kept.pop()}`, which is not written by hand")
        return found

    def existing(self, path: str) -> Path:
        """Return the file at `path`; raises ToolFailed where there is none."""
        found = self.place(path)
        if found.is_dir():
            raise ToolFailed(f"`{path}` is a folder", "See what is in it with list_files")
        if not found.is_file():
            raise ToolFailed(f"There is no file `{path}`", self._near(found))
        return found

    def name(self, path: Path) -> str:
        """Return a path as the model knows it; what is no text in it is a question mark."""
        return path.relative_to(self.root).as_posix().encode("utf-8", "replace").decode()

    def files(self, start: Path) -> Iterator[Path]:
        """Yield the files at and below `start`, sorted; links, and folders that tools keep, are left out."""
        if start.is_file():
            yield start
            return
        for place, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in UNSEEN)
            for path in (Path(place) / name for name in sorted(names)):
                with suppress(OSError):  # what may not even be looked at
                    if path.is_file() and not path.is_symlink():
                        yield path

    def _near(self, missing: Path) -> str:
        here = list(islice(self.files(self.root), LOOKED_AT))
        same = [path for path in here if path.name == missing.name]
        if same:
            return f"There is `{self.name(same[0])}`"
        names = ", ".join(f"`{self.name(path)}`" for path in here[:20])
        return f"There is {names}" if here else "The folder is empty"
