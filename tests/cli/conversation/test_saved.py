"""Commands of a conversation on saved ones, and on parts of an answer, without a model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from localspec.cli.talk import clipboard, commands
from localspec.errors import BadValue, LocalspecError, PromptError, UnknownName
from localspec.state.conversations import Sessions

CODE = "Two:\n\n```python\nprint(1)\n```\n\nand\n\n~~~\nx = '''\n```\n~~~\n"
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Wie heißt der Fluß?"},
    {"role": "assistant", "content": CODE},
]


@pytest.fixture
def talk(tmp_path: Path) -> Any:
    sessions = Sessions(tmp_path / "home" / "sessions.db")
    chat = SimpleNamespace(messages=[dict(message) for message in MESSAGES], turns=[1])
    return SimpleNamespace(sessions=sessions, chat=chat, model="small", name=None, over=False)


def run(talk: Any, line: str, capsys: pytest.CaptureFixture[str]) -> str:
    commands.run(talk, line)
    return capsys.readouterr().err


def test_conversations_are_found_by_what_was_said(talk: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("rivers", "The Rhine\nand the FLUSS"), ("quotes", 'Say "hi" \\ there'), ("c", "x")):
        talk.sessions.write(name, "small", [{"role": "user", "content": text}])
    assert run(talk, "/search fluß", capsys).split()[0] == "rivers"
    assert run(talk, '/search "hi" \\ there', capsys).split()[0] == "quotes"
    assert run(talk, "/search rhine\nand", capsys).split()[0] == "rivers"
    assert run(talk, "/search nothing", capsys) == "No saved conversation has `nothing`\n"
    assert run(talk, "/search user", capsys) == "No saved conversation has `user`\n"
    with pytest.raises(PromptError, match="needs a text"):
        commands.run(talk, "/search")


def test_another_conversation_is_deleted_but_not_this_one(
    talk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        talk.sessions.write(name, "small", MESSAGES)
    talk.name = "a"
    assert run(talk, "/delete b", capsys) == "Deleted `b`\n"
    assert [kept.name for kept in talk.sessions.all()] == ["a"]
    for line, error in (("/delete a", PromptError), ("/delete", PromptError), ("/delete b", UnknownName)):
        with pytest.raises(error):
            commands.run(talk, line)


def test_a_conversation_is_exported(talk: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(talk, f"/export {tmp_path / 'a talk.md'}", capsys)
    written = (tmp_path / "a talk.md").read_text("utf-8")
    assert written.startswith(
        "**System prompt**\n\nBe brief.\n\n**You**\n\nWie heißt der Fluß?\n\n**small**\n\nTwo:"
    )
    run(talk, f"/export {tmp_path / 'talk.json'}", capsys)
    assert json.loads((tmp_path / "talk.json").read_text("utf-8")) == MESSAGES
    with pytest.raises(BadValue, match="exists already"):
        commands.run(talk, f"/export {tmp_path / 'talk.json'}")
    with pytest.raises(LocalspecError, match="cannot be written"):
        commands.run(talk, f"/export {tmp_path / 'talk.json' / 'below'}")
    for line in ("/export", "/export   "):
        with pytest.raises(PromptError, match="needs a file"):
            commands.run(talk, line)


def test_a_code_block_is_copied(
    talk: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied: list[str] = []
    monkeypatch.setattr(clipboard, "copy", lambda text: [copied.append(text), "a program"][1])
    for line in ("/copy", "/copy 1", "/copy 2"):
        run(talk, line, capsys)
    assert copied == [CODE, "print(1)\n", "x = '''\n```\n"]
    for line in ("/copy 3", "/copy 0", "/copy one"):
        with pytest.raises(PromptError, match="has 2 code blocks"):
            commands.run(talk, line)


@pytest.mark.parametrize("line", ["/exit", "/quit", "/bye", "/q"])
def test_every_usual_word_leaves(talk: Any, line: str) -> None:
    commands.run(talk, line)
    assert talk.over


def test_a_near_command_is_suggested(talk: Any) -> None:
    with pytest.raises(PromptError, match="Unknown command `/exprot`") as caught:
        commands.run(talk, "/exprot x.md")
    assert "/export" in str(caught.value.hint)
