"""Conversations that are kept: one SQLite file, written turn by turn."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from localspec.errors import PromptError, StorageError, UnknownName

FORMAT = 1
SECONDS = 10.0  # to wait for another process that writes
SHOWN = 60  # characters of a conversation's first question

Message = dict[str, Any]

_TABLES = """
CREATE TABLE IF NOT EXISTS sessions (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
    created TEXT NOT NULL, updated TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS messages (
    session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, place INTEGER NOT NULL,
    message TEXT NOT NULL, PRIMARY KEY (session, place)
) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation as a list shows it; times are local, to the second."""

    name: str
    model: str
    created: str
    updated: str
    messages: int
    question: str | None  # the first message of the user, as it is kept

    @property
    def first(self) -> str:
        """The beginning of the first question."""
        content = str(json.loads(self.question)["content"]) if self.question else ""
        text = " ".join(content.split())
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"


class Sessions:
    """The conversations in one file. Each call is whole or does nothing, beside other processes too."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[Kept]:
        """Return the conversations, the latest first."""
        if not self.path.exists():
            return []
        with self._opened() as base:
            rows = base.execute(
                "SELECT name, model, created, updated, (SELECT count(*) FROM messages WHERE session = id),"
                " (SELECT message FROM messages WHERE session = id"
                "  AND json_extract(message, '$.role') = 'user' ORDER BY place LIMIT 1)"
                " FROM sessions ORDER BY updated DESC, id DESC"
            ).fetchall()
        return [Kept(*row) for row in rows]

    def latest(self) -> str:
        """Return the name of the latest conversation; raises PromptError where there is none."""
        found = self.all()
        if not found:
            raise PromptError("There is no conversation to continue", "Begin one: localspec chat")
        return found[0].name

    def read(self, name: str) -> tuple[str, list[Message]]:
        """Return the model and the messages of a conversation; raises UnknownName."""
        with self._opened() as base:
            found = base.execute("SELECT id, model FROM sessions WHERE name = ?", (name,)).fetchone()
            if found is None:
                names = [row[0] for row in base.execute("SELECT name FROM sessions")]
                raise UnknownName(f"There is no conversation called `{name}`", name, names)
            query = "SELECT message FROM messages WHERE session = ? ORDER BY place"
            return found[1], [json.loads(row[0]) for row in base.execute(query, (found[0],))]

    def has(self, name: str) -> bool:
        """Tell whether there is a conversation of that name."""
        return any(one.name == name for one in self.all())

    def write(self, name: str, model: str, messages: Sequence[Message]) -> None:
        """Keep a conversation as it is now; only the messages that changed are written."""
        now = datetime.now().isoformat(" ", "seconds")
        with self._opened() as base, base:
            base.execute("BEGIN IMMEDIATE")
            _add(base, name, model, now)
            (number,) = base.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchone()
            held = dict(base.execute("SELECT place, message FROM messages WHERE session = ?", (number,)))
            wanted = {place: json.dumps(one, ensure_ascii=False) for place, one in enumerate(messages)}
            base.executemany(
                "INSERT OR REPLACE INTO messages VALUES (?, ?, ?)",
                [(number, place, text) for place, text in wanted.items() if held.get(place) != text],
            )
            base.execute("DELETE FROM messages WHERE session = ? AND place >= ?", (number, len(wanted)))

    def remove(self, name: str) -> None:
        """Forget a conversation; raises UnknownName."""
        self.read(name)
        with self._opened() as base, base:
            base.execute("DELETE FROM sessions WHERE name = ?", (name,))

    def begin(self, model: str) -> str:
        """Begin a conversation and return its name, which no other has: today's date and a number."""
        now = datetime.now()
        with self._opened() as base, base:
            base.execute("BEGIN IMMEDIATE")
            names = {row[0] for row in base.execute("SELECT name FROM sessions")}
            tried = (f"{now.date().isoformat()}-{number}" for number in range(1, len(names) + 2))
            name = next(one for one in tried if one not in names)
            _add(base, name, model, now.isoformat(" ", "seconds"))
        return name

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, which is made where it is missing; raises StorageError for one that is damaged."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=SECONDS)) as base:
                base.execute("PRAGMA foreign_keys = ON")
                (version,) = base.execute("PRAGMA user_version").fetchone()
                if version > FORMAT:
                    raise StorageError(
                        f"`{self.path}` was written by a newer localspec",
                        "Update localspec, or move the file",
                    )
                if version < FORMAT:
                    base.executescript(_TABLES)
                    base.execute(f"PRAGMA user_version = {FORMAT}")
                yield base
        except sqlite3.DatabaseError as error:
            raise StorageError(
                f"The conversations in `{self.path}` cannot be read or written: {error}",
                "Move that file away to begin anew; nothing was changed in it",
            ) from None
        except OSError as error:
            raise StorageError(f"`{self.path}` cannot be written: {error.strerror}", None) from None


def _add(base: sqlite3.Connection, name: str, model: str, now: str) -> None:
    base.execute(
        "INSERT INTO sessions (name, model, created, updated) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET model = excluded.model, updated = excluded.updated",
        (name, model, now, now),
    )
