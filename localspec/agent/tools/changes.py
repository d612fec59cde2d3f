"""The files that an agent has written in a task, and what they held before."""

from __future__ import annotations

import base64
import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from localspec.agent.tools import handles
from localspec.disk import private, records

MAX_KEPT = 1 << 26  # bytes of a file that can be restored


@dataclass(slots=True)
class Change:
    """The bytes of a file before the first write of a task, None if there was none, and after the last."""

    before: bytes | None
    after: bytes


class Undone(NamedTuple):
    """The files that were restored, and those that something else has changed since."""

    restored: list[str]
    left: list[str]


class Changes:
    """Writes files, and restores what they held before; in the file `kept` that outlives the run."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        self._root = root
        self._kept = kept
        self._files: dict[str, Change] = {}  # by the path relative to the root

    def begin(self) -> None:
        """Begin a task: what an earlier one wrote is no longer undone."""
        self._files = {}

    def write(self, place: Path, content: bytes) -> None:
        """Write a file below the root, and remember what it held before the task; raises OSError."""
        name = place.relative_to(self._root).as_posix()
        before = self._files[name].before if name in self._files else self._held(place)
        handles.write_bytes(self._root, place, content)
        self._files[name] = Change(before, content)

    def made(self, place: Path) -> bool:
        """Return whether the task has made a file that was not there before."""
        change = self._files.get(place.relative_to(self._root).as_posix())
        return change is not None and change.before is None

    def texts(self) -> Iterator[tuple[str, bytes | None, bytes]]:
        """Yield the name of each file that the task has changed, and what it held before and holds now."""
        for name, change in self._files.items():
            if change.before != change.after:
                yield name, change.before, change.after

    def state(self) -> frozenset[tuple[str, bytes]]:
        """Return what the task has changed so far: equal values are equal contents."""
        return frozenset((name, after) for name, _, after in self.texts())

    def _held(self, place: Path) -> bytes | None:
        """Return what a file holds, None if there is none; raises OSError if it is too large to be kept."""
        try:
            content, size = handles.read_bytes(self._root, place, MAX_KEPT)
        except FileNotFoundError:
            return None
        if size > MAX_KEPT:
            raise OSError(errno.EFBIG, "It is too large to be restored")
        return content

    def keep(self) -> None:
        """Keep the task's changes on disk, in place of those of the task before, if there are any."""
        if self._kept and self._files:
            records.write(self._kept, {"files": dict(self._encoded())}, mode=private.FILE)

    def _encoded(self) -> Iterator[tuple[str, list[str | None]]]:
        for name, change in self._files.items():
            before = None if change.before is None else base64.b64encode(change.before).decode()
            yield name, [before, base64.b64encode(change.after).decode()]

    def read(self) -> None:
        """Read the changes of the last task that were kept; a damaged file counts as none."""
        self._files = {}
        if self._kept is None:
            return
        with suppress(OSError, ValueError, KeyError, TypeError):
            found = records.read(self._kept)["files"]
            self._files = {
                name: Change(None if before is None else base64.b64decode(before), base64.b64decode(after))
                for name, (before, after) in found.items()
            }

    def lines(self) -> list[str]:
        """Return a line for each file that holds something else than before: its name and its lines."""
        found = []
        for name, before, after in self.texts():
            added, removed = _count(before or b"", after)
            new = f"new, {added} line{'s' * (added != 1)}"
            found.append(f"{name} ({new if before is None else f'+{added} -{removed}'})")
        return found

    def undo(self) -> Undone:
        """Restore what the task has changed, and forget what is kept; raises OSError."""
        undone = self.roll_back()
        self._files = {}
        if self._kept:
            self._kept.unlink(missing_ok=True)
        return undone

    def roll_back(self) -> Undone:
        """Restore every file that still holds what the task wrote; raises OSError."""
        undone = Undone([], [])
        for name, change in self._files.items():
            place = self._root / name
            now = None
            with suppress(OSError):
                now = handles.read_bytes(self._root, place, MAX_KEPT)[0]
            if now != change.after:
                undone.left.append(name)
                continue
            if change.before is None:
                handles.remove(self._root, place)
            else:
                handles.write_bytes(self._root, place, change.before)
            undone.restored.append(name)
        self._files = {name: self._files[name] for name in undone.left}
        return undone


def _count(before: bytes, after: bytes) -> tuple[int, int]:
    """Return the number of lines that were added, and that were removed; one that moved is neither."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return (new - old).total(), (old - new).total()
