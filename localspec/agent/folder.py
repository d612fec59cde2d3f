"""The folder that an agent's tools are kept to."""

from __future__ import annotations

import os
from pathlib import Path

from localspec.errors import BadValue
from localspec.tools import ToolFailed

HISTORY = {".git", ".hg", ".svn"}  # a program acts on what lies in these, as on `.git/hooks`
UNSEEN = HISTORY | {"__pycache__", "node_modules", ".venv", "venv", ".mypy_cache", ".ruff_cache"}


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
        """Return a path as the model knows it."""
        return path.relative_to(self.root).as_posix()

    def files(self, start: Path) -> list[Path]:
        """Return the files at and below `start`, sorted; links, and folders that tools keep, are left out."""
        if start.is_file():
            return [start]
        found = []
        for place, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in UNSEEN)
            here = [Path(place) / name for name in sorted(names)]
            found += [path for path in here if path.is_file() and not path.is_symlink()]
        return found

    def _near(self, missing: Path) -> str:
        same = [self.name(path) for path in self.files(self.root) if path.name == missing.name]
        if same:
            return f"There is `{same[0]}`"
        here = [self.name(path) for path in self.files(self.root)[:20]]
        return f"There is {', '.join(f'`{name}`' for name in here)}" if here else "The folder is empty"
