"""Undoing a task's changes, and the files that the data folder keeps of a folder's last task."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import console

if TYPE_CHECKING:
    from localspec.agent.tools.folder import Folder


def undo_file(home: Path, folder: Path) -> Path:
    """Return the file with the changes of the last task in a folder."""
    return home / "undo" / f"{_key(folder)}.json"


def transcript_file(home: Path, folder: Path) -> Path:
    """Return the transcript of the last conversation in a folder."""
    return home / "agent" / f"{_key(folder)}.jsonl"


def _key(folder: Path) -> str:
    from localspec.library.storage import digest_of_text

    return digest_of_text(str(folder.resolve()))[:16]


def undo_last(path: Path) -> None:
    """Restore what the last task in a folder has written; raises BadValue if there is no such folder."""
    from localspec.agent.tools.folder import Folder
    from localspec.library.paths import home

    folder = Folder(path, undo_file(home(), path))
    folder.changes.read()
    undo(folder)


def undo(folder: Folder) -> None:
    """Restore what the last task has written, and say so."""
    undone = folder.changes.undo()
    for what, names in (("Restored", undone.restored), ("Left alone, changed since", undone.left)):
        if names:
            console.say(f"{what}: {', '.join(names)}")
    if not any(undone):
        console.say("Nothing to undo")
