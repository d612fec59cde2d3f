"""Conversations that are kept: written by their differences, beside other processes, and never harmed."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localspec.errors import BadValue, PromptError, StorageError, UnknownName
from localspec.state.conversations import FORMAT, Sessions

HELLO = {"role": "user", "content": "Hello\n  there"}
ANSWER = {"role": "assistant", "content": "General \N{SNOWMAN}"}
MORE = {"role": "user", "content": "x" * 100}

OTHER = """
import sys
from pathlib import Path
from localspec.state.conversations import Sessions
sessions = Sessions(Path(sys.argv[1]))
for number in range(20):
    sessions.write(sys.argv[2], "m", [{"role": "user", "content": str(at)} for at in range(number)])
"""


@pytest.fixture
def sessions(tmp_path: Path) -> Sessions:
    return Sessions(tmp_path / "home" / "sessions.db")


def rows(sessions: Sessions) -> list[tuple[Any, ...]]:
    base = sqlite3.connect(sessions.path)
    found = base.execute("SELECT place, message FROM messages ORDER BY session, place").fetchall()
    base.close()
    return found


def test_what_was_written_is_read(sessions: Sessions) -> None:
    assert sessions.all() == []
    assert sessions.write("a", "some-model", [HELLO, ANSWER]) == "a"
    assert Sessions(sessions.path).read("a") == ("some-model", [HELLO, ANSWER])
    assert sessions.write("b", "other", [MORE]) == "b"
    second, first = Sessions(sessions.path).all()
    assert (first.name, first.model, first.messages, first.first) == ("a", "some-model", 2, "Hello there")
    assert (second.name, len(second.first)) == ("b", 60)
    assert sessions.latest() == "b"


def test_only_what_changed_is_written(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO, ANSWER])
    base = sqlite3.connect(sessions.path)
    base.execute("CREATE TABLE seen (place)")
    base.execute(
        "CREATE TRIGGER tells AFTER INSERT ON messages BEGIN INSERT INTO seen VALUES (new.place); END"
    )
    base.commit()
    sessions.write("a", "m", [HELLO, ANSWER, MORE])
    assert base.execute("SELECT place FROM seen").fetchall() == [(2,)]
    sessions.write("a", "m", [HELLO])
    sessions.write("a", "m", [HELLO])
    assert base.execute("SELECT count(*) FROM seen").fetchone() == (1,)
    base.close()
    assert len(rows(sessions)) == 1


def test_a_name_is_new_or_is_gone_on_with(sessions: Sessions) -> None:
    assert sessions.found(None) == (None, None, [])
    assert sessions.found("a") == ("a", None, [])
    with pytest.raises(PromptError, match="No conversation to continue"):
        sessions.found(None, latest=True)
    sessions.write("a", "m", [HELLO])
    assert sessions.found("a") == ("a", "m", [HELLO])
    assert sessions.found(None, latest=True) == ("a", "m", [HELLO])
    with pytest.raises(UnknownName, match="Unknown conversation `b`"):
        sessions.read("b")
    sessions.remove("a")
    assert not sessions.has("a")
    assert rows(sessions) == []


@pytest.mark.parametrize("name", ["", "  ", "x" * 101, "a\nb", "a\x1b[2J"])
def test_what_is_no_name(sessions: Sessions, name: str) -> None:
    for refused in (lambda: sessions.found(name), lambda: sessions.write(name, "m", [HELLO])):
        with pytest.raises(BadValue, match="cannot be the name") as caught:
            refused()
        assert caught.value.message.isprintable()
    assert not sessions.path.exists()


def test_begun_ones_have_names_of_their_own(sessions: Sessions) -> None:
    names = [sessions.begin("m") for _ in range(3)]
    assert len(set(names)) == 3
    assert sessions.latest() == names[-1]


def test_two_who_go_on_with_one_conversation_lose_nothing(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO, ANSWER])
    one, other = Sessions(sessions.path), Sessions(sessions.path)
    held = one.read("a")[1]
    assert other.read("a")[1] == held
    assert one.write("a", "m", [*held, MORE]) == "a"
    assert other.write("a", "m", [*held, HELLO]) == "a-1"
    assert other.write("a-1", "m", [*held, HELLO, ANSWER]) == "a-1"
    assert one.write("a", "m", [*held, MORE, ANSWER]) == "a"
    assert sessions.read("a")[1] == [*held, MORE, ANSWER]
    assert sessions.read("a-1")[1] == [*held, HELLO, ANSWER]


def test_two_processes_write_at_once(sessions: Sessions) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", OTHER, str(sessions.path), name], stderr=subprocess.PIPE)
        for name in ("one", "two", "three")
    ]
    for process in started:
        assert process.communicate(timeout=60)[1] == b""
    assert {one.name: one.messages for one in sessions.all()} == {"one": 19, "two": 19, "three": 19}


@pytest.mark.parametrize("content", [b"no database at all, " * 100, b"SQLite format 3\0" + b"x" * 4000])
def test_a_damaged_file_is_told_and_left_alone(sessions: Sessions, content: bytes) -> None:
    sessions.path.parent.mkdir()
    sessions.path.write_bytes(content)
    for use in (sessions.all, sessions.latest, lambda: sessions.write("a", "m", [HELLO])):
        with pytest.raises(StorageError, match="cannot be read or written") as caught:
            use()
        assert "Move that file away" in str(caught.value.hint)
    assert sessions.path.read_bytes() == content


@pytest.mark.parametrize("message", ["{", "[]", "3", '{"role": "user"}'])
def test_a_damaged_message_is_told(sessions: Sessions, message: str) -> None:
    sessions.write("a", "m", [HELLO])
    base = sqlite3.connect(sessions.path)
    base.execute("UPDATE messages SET message = ?", (message,))
    base.commit()
    base.close()
    with pytest.raises(StorageError, match="`a` in `.*` is damaged"):
        sessions.read("a")
    assert [one.name for one in sessions.all()] == ["a"]


def test_flipped_bits_are_told(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO, ANSWER, MORE])
    content, draw, told = sessions.path.read_bytes(), random.Random(0), 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(10):
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        sessions.path.write_bytes(damaged)
        try:
            assert Sessions(sessions.path).read("a") == ("m", [HELLO, ANSWER, MORE])
        except (StorageError, UnknownName):
            told += 1
    assert told > 50


def test_conversations_of_format_1_are_kept(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO, ANSWER])
    base = sqlite3.connect(sessions.path)
    base.execute("ALTER TABLE sessions DROP COLUMN digest")
    base.execute("PRAGMA user_version = 1")
    base.close()
    assert Sessions(sessions.path).read("a") == ("m", [HELLO, ANSWER])
    assert Sessions(sessions.path).write("b", "m", [HELLO]) == "b"


def test_they_are_private_also_those_that_exist(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO])
    assert [path.stat().st_mode & 0o777 for path in (sessions.path, sessions.path.parent)] == [0o600, 0o700]
    sessions.path.chmod(0o644)
    sessions.read("a")
    assert sessions.path.stat().st_mode & 0o777 == 0o600


def test_a_newer_format_is_left_alone(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO])
    base = sqlite3.connect(sessions.path)
    base.execute(f"PRAGMA user_version = {FORMAT + 1}")
    base.close()
    before = sessions.path.read_bytes()
    with pytest.raises(StorageError, match="newer localspec"):
        sessions.write("a", "m", [HELLO, ANSWER])
    assert sessions.path.read_bytes() == before


def test_a_folder_in_its_place(sessions: Sessions) -> None:
    sessions.path.mkdir(parents=True)
    with pytest.raises(StorageError):
        sessions.begin("m")
    assert sessions.path.is_dir()


def test_a_write_that_fails_changes_nothing(sessions: Sessions) -> None:
    sessions.write("a", "m", [HELLO])
    with pytest.raises(TypeError):
        sessions.write("a", "m", [HELLO, {"role": "user", "content": object()}])
    base = sqlite3.connect(sessions.path)
    base.execute(
        "CREATE TRIGGER stops BEFORE INSERT ON messages WHEN new.place = 2"
        " BEGIN SELECT raise(ABORT, 'no'); END"
    )
    base.commit()
    base.close()
    with pytest.raises(StorageError):
        sessions.write("a", "m", [HELLO, ANSWER, MORE])
    assert sessions.read("a")[1] == [HELLO]
