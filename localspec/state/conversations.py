"""Saved conversations: one SQLite file, written turn by turn."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from localspec.disk import private, records
from localspec.errors import BadValue, PromptError, StorageError, UnknownName, printable

FORMAT = 2
SECONDS = 10.0  # to wait for another process to finish writing
SHOWN = 60  # characters shown of the first question
LONGEST = 100  # characters of a name at most

Message = dict[str, Any]

_TABLES = (
    """CREATE TABLE IF NOT EXISTS sessions (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, model TEXT NOT NULL,
        created TEXT NOT NULL, updated TEXT NOT NULL, digest TEXT NOT NULL
    )""",
    """CREATE TABLE IF NOT EXISTS messages (
        session INTEGER NOT NULL REFERENCES sessions ON DELETE CASCADE, place INTEGER NOT NULL,
        message TEXT NOT NULL, PRIMARY KEY (session, place)
    ) WITHOUT ROWID""",
)


@dataclass(frozen=True, slots=True)
class Kept:
    """A conversation as lists show it; times are local, to the second."""

    name: str
    model: str
    created: str
    updated: str
    messages: int
    question: str | None  # the first question

    @property
    def first(self) -> str:
        """The beginning of the first question."""
        text = " ".join(str(self.question or "").split())
        return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}\N{HORIZONTAL ELLIPSIS}"


class Found(NamedTuple):
    """A conversation to continue: its name, model and messages; None and empty for a new one."""

    name: str | None
    model: str | None
    messages: list[Message]


class Sessions:
    """The conversations in one file. Each call takes effect as a whole or not at all, across processes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[str, list[str]] = {}  # by name, the messages as this process last saw them

    def found(self, name: str | None, *, latest: bool = False) -> Found:
        """Return the conversation of that name, or the `latest` one.

        A name that is new is that of a new one. Raises BadValue for what is no name, PromptError where there
        is nothing to continue.
        """
        if latest:
            name = self.latest()
        if name is None:
            return Found(None, None, [])
        check_name(name)
        return Found(name, *self.read(name)) if self.has(name) else Found(name, None, [])

    def all(self) -> list[Kept]:
        """Return the conversations, the latest first."""
        if not self.path.exists():
            return []
        with self._opened() as base:
            rows = base.execute(
                "SELECT name, model, created, updated, (SELECT count(*) FROM messages WHERE session = id),"
                " (SELECT json_extract(message, '$.content') FROM messages WHERE session = id"
                "  AND CASE WHEN json_valid(message) THEN json_extract(message, '$.role') = 'user' END"
                "  ORDER BY place LIMIT 1)"
                " FROM sessions ORDER BY updated DESC, id DESC"
            ).fetchall()
        return [Kept(*row) for row in rows]

    def holding(self, text: str) -> list[Kept]:
        """Return the conversations with a message that has `text`, in any case, the latest first."""
        if not self.path.exists():
            return []
        with self._opened() as base:
            rows = base.execute(
                "SELECT name, json_extract(message, '$.content') FROM sessions JOIN messages ON session = id"
                " WHERE json_valid(message)"
            )
            names = {name for name, content in rows if text.casefold() in str(content).casefold()}
        return [kept for kept in self.all() if kept.name in names]

    def latest(self) -> str:
        """Return the name of the latest conversation; raises PromptError without one."""
        found = self.all()
        if not found:
            raise PromptError("No conversation to continue", "Start one: localspec chat")
        return found[0].name

    def read(self, name: str) -> tuple[str, list[Message]]:
        """Return the model and the messages of a conversation; raises UnknownName."""
        with self._opened() as base:
            number, model, digest = _find(base, name)
            texts = list(_held(base, number).values())
        if digest != _digest(name, model, texts):
            raise self._damaged(name)
        self._known[name] = texts
        return model, [self._message(name, text) for text in texts]

    def _message(self, name: str, text: str) -> Message:
        with suppress(ValueError):
            message = json.loads(text)
            if isinstance(message, dict) and {"role", "content"} <= message.keys():
                return message
        raise self._damaged(name)

    def _damaged(self, name: str) -> StorageError:
        return StorageError(
            f"The conversation `{name}` in `{self.path}` is damaged", "Start another: localspec chat"
        )

    def has(self, name: str) -> bool:
        """Return whether a conversation of that name exists."""
        return any(one.name == name for one in self.all())

    def write(self, name: str, model: str, messages: Sequence[Message]) -> str:
        """Save a conversation; only the messages that changed are written.

        Returns the name under which it is: where another process has gone on with `name`, that stays as it
        is, and this one is kept under a name of its own.
        """
        check_name(name)
        wanted = [json.dumps(one, ensure_ascii=False) for one in messages]
        with self._opened() as base, base:
            base.execute("BEGIN IMMEDIATE")
            found = base.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchone()
            held = _held(base, found[0]) if found else {}
            if list(held.values()) != self._known.get(name, []):
                name, held = _free(base, name), {}
            number = _add(base, name, model, wanted)
            changed = [at for at, text in enumerate(wanted) if held.get(at) != text]
            base.executemany(
                "INSERT OR REPLACE INTO messages VALUES (?, ?, ?)",
                [(number, at, wanted[at]) for at in changed],
            )
            base.execute("DELETE FROM messages WHERE session = ? AND place >= ?", (number, len(wanted)))
        self._known[name] = wanted
        return name

    def remove(self, name: str) -> None:
        """Delete a conversation; raises UnknownName."""
        with self._opened() as base, base:
            base.execute("DELETE FROM sessions WHERE id = ?", _find(base, name)[:1])
        self._known.pop(name, None)

    def begin(self, model: str) -> str:
        """Start a conversation and return its unique name: today's date and a number."""
        with self._opened() as base, base:
            base.execute("BEGIN IMMEDIATE")
            name = _free(base, datetime.now().date().isoformat())
            _add(base, name, model, [])
        return name

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the file, creating it if it is missing; raises StorageError if it is damaged."""
        try:
            private.make_folder(self.path.parent)
            private.make_file(self.path)
            with closing(sqlite3.connect(self.path, timeout=SECONDS)) as base:
                base.execute("PRAGMA foreign_keys = ON")
                (version,) = base.execute("PRAGMA user_version").fetchone()
                if version > FORMAT:
                    raise StorageError(
                        f"`{self.path}` was written by a newer localspec",
                        "Update localspec, or move the file",
                    )
                if version < FORMAT:
                    _upgrade(base, version)
                yield base
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise StorageError(
                f"The conversations in `{self.path}` cannot be read or written: {printable(str(error))}",
                "Move that file away to begin anew; nothing was changed in it",
            ) from None
        except OSError as error:
            raise StorageError(f"`{self.path}` cannot be written: {error.strerror}", None) from None


def check_name(name: str) -> None:
    """Raise BadValue for a text that cannot be the name of a conversation."""
    if not name.strip() or len(name) > LONGEST or not name.isprintable():
        shown = name if name.isprintable() else repr(name)
        raise BadValue(
            f"`{shown[:LONGEST]}` cannot be the name of a conversation",
            f"A name is one line of at most {LONGEST} characters",
        )


def _upgrade(base: sqlite3.Connection, version: int) -> None:
    """Make the tables, or give those of format 1 their digests; whole or not at all."""
    with base:
        base.execute("BEGIN IMMEDIATE")
        (now,) = base.execute("PRAGMA user_version").fetchone()
        if now == version == 1:
            base.execute("ALTER TABLE sessions ADD COLUMN digest TEXT NOT NULL DEFAULT ''")
            for number, name, model in base.execute("SELECT id, name, model FROM sessions").fetchall():
                digest = _digest(name, model, list(_held(base, number).values()))
                base.execute("UPDATE sessions SET digest = ? WHERE id = ?", (digest, number))
        for statement in _TABLES:
            base.execute(statement)
        base.execute(f"PRAGMA user_version = {FORMAT}")


def _find(base: sqlite3.Connection, name: str) -> tuple[int, str, str]:
    """Return the number, the model and the digest of a conversation; raises UnknownName."""
    row = base.execute("SELECT id, model, digest FROM sessions WHERE name = ?", (name,)).fetchone()
    if row is None:
        names = [str(row[0]) for row in base.execute("SELECT name FROM sessions")]
        raise UnknownName(f"Unknown conversation `{name}`", name, names)
    return row[0], str(row[1]), str(row[2])


def _digest(name: str, model: str, texts: Sequence[str]) -> str:
    return records.digest_of([name, model, *texts])


def _add(base: sqlite3.Connection, name: str, model: str, texts: Sequence[str]) -> int:
    now = datetime.now().isoformat(" ", "seconds")
    base.execute(
        "INSERT INTO sessions (name, model, created, updated, digest) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (name) DO UPDATE SET"
        " model = excluded.model, updated = excluded.updated, digest = excluded.digest",
        (name, model, now, now, _digest(name, model, texts)),
    )
    return int(base.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchone()[0])


def _held(base: sqlite3.Connection, number: int) -> dict[int, str]:
    query = "SELECT place, message FROM messages WHERE session = ? ORDER BY place"
    return {place: str(message) for place, message in base.execute(query, (number,))}


def _free(base: sqlite3.Connection, start: str) -> str:
    names = {row[0] for row in base.execute("SELECT name FROM sessions")}
    tried = (f"{start}-{number}" for number in range(1, len(names) + 2))
    return next(one for one in tried if one not in names)
