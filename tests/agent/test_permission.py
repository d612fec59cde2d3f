"""Permission: calls that are allowed, asked about, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from localspec.agent.permission import KINDS, NotAllowed, Permission, Reply
from localspec.agent.tools.files import Files
from localspec.agent.tools.folder import Folder
from localspec.agent.tools.toolbox import briefed, built_in, chosen, overview
from localspec.errors import UnknownName
from localspec.tools import Tool, ToolFailed, tool

HERE = "this machine itself\n"


class Somebody:
    """Gives prepared replies, and records the previews."""

    def __init__(self, *words: Reply) -> None:
        self.words = list(words)
        self.shown: list[tuple[str, str]] = []

    def __call__(self, asked: Tool, shown: str) -> Reply:
        self.shown.append((asked.name, shown))
        return self.words.pop(0)


@pytest.fixture
def there(tmp_path: Path) -> dict[str, Tool]:
    (tmp_path / "a.txt").write_text("one\n")
    return {one.name: one for one in built_in(Folder(tmp_path))}


def test_only_reading_is_allowed_by_default(there: dict[str, Tool]) -> None:
    nobody = Permission()
    nobody.check(there["read_file"], {"path": "a.txt"})
    for name, given in [
        ("write_file", {"path": "a.txt", "text": "x"}),
        ("run_shell", {"command": "ls"}),
        ("run_python", {"code": "1"}),
        ("fetch_url", {"url": "http://localhost/"}),
    ]:
        with pytest.raises(NotAllowed, match="no terminal to ask on"):
            nobody.check(there[name], given)


def test_the_question_shows_a_preview(there: dict[str, Tool]) -> None:
    somebody = Somebody("yes", "no", "yes", "yes")
    permission = Permission(ask=somebody)
    permission.check(there["edit_file"], {"path": "a.txt", "old": "one", "new": "1"})
    with pytest.raises(NotAllowed, match="The user does not allow"):
        permission.check(there["run_shell"], {"command": "rm -r ."})
    permission.check(there["fetch_url"], {"url": "http://localhost/"})
    permission.check(there["run_python"], {"code": "print(1)"})
    assert somebody.shown == [
        ("edit_file", "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-one\n+1\n"),
        ("run_shell", "$ rm -r .\n"),
        ("fetch_url", f"GET http://localhost/\nlocalhost is 127.0.0.1: {HERE}localhost is ::1: {HERE}"),
        ("run_python", "print(1)\n"),
    ]


def test_a_call_that_cannot_work_is_not_asked_about(there: dict[str, Tool]) -> None:
    with pytest.raises(ToolFailed, match="does not have the text"):
        Permission(ask=Somebody()).check(there["edit_file"], {"path": "a.txt", "old": "two", "new": "1"})
    with pytest.raises(ToolFailed, match="outside"):
        Permission(ask=Somebody()).check(there["write_file"], {"path": "../x", "text": "1"})


def test_always_applies_to_one_tool(there: dict[str, Tool]) -> None:
    def look(word: str) -> str:
        """Look it up."""
        return word

    somebody = Somebody("always", "no")
    permission = Permission(ask=somebody)
    own = tool(look, access="run")
    for _ in range(3):
        permission.check(own, {"word": "x"})
    with pytest.raises(NotAllowed):
        permission.check(there["run_shell"], {"command": "ls"})
    assert len(somebody.shown) == 2


def test_a_call_without_a_preview_is_shown_whole() -> None:
    somebody = Somebody("yes")
    long = "x" * 5000 + "\n\x1b[2J"
    Permission(ask=somebody).check(Tool("t", "T", {}, print, "run"), {"a": {"b": long}})
    assert somebody.shown[0][1] == f"t(a={{'b': {long!r}}})"


def test_allowed_access_is_not_asked_about(there: dict[str, Tool]) -> None:
    permission = Permission(["write"])
    permission.check(there["write_file"], {"path": "b.txt", "text": "x"})
    with pytest.raises(NotAllowed):
        permission.check(there["run_shell"], {"command": "ls"})
    Permission(KINDS).check(there["run_shell"], {"command": "ls"})


def test_an_unknown_access() -> None:
    with pytest.raises(UnknownName) as error:
        Permission(["writing"])
    assert error.value.hint == "Did you mean `write`?"


def test_tools_are_chosen_by_name(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert len(chosen(folder, None)) == len(built_in(folder)) == 9
    assert [one.name for one in chosen(folder, ["run_shell", "read_file"])] == ["run_shell", "read_file"]
    with pytest.raises(UnknownName) as error:
        chosen(folder, ["run_shel"])
    assert error.value.hint == "Did you mean `run_shell` or `run_python`?"


def test_the_overview_of_a_folder_is_short(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    assert overview(Folder(tmp_path)) == "The folder has:\na.txt (1 line, 4 bytes)"
    assert Files(Folder(tmp_path)).list_files() in overview(Folder(tmp_path))
    for number in range(100):
        (tmp_path / f"{number:050}").touch()
    assert overview(Folder(tmp_path)) == "The folder has many files: list_files lists them."


def test_hidden_characters_of_files_are_marked_for_the_model(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\u200b\x1b[2J\n")
    (tmp_path / "b\x1b[2J.txt").touch()
    prompt, names = briefed(Folder(tmp_path), "Read a.txt")
    assert names == ["a.txt"]
    assert "one\ufffd\ufffd[2J" in prompt
    assert "b\ufffd[2J.txt" in prompt
    assert not set(prompt) & {"\x1b", "\u200b"}
