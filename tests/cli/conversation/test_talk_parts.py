"""Typed text, attached files, the clipboard and commands, without a model."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from localspec.cli.talk import attach, clipboard, commands, entry
from localspec.errors import LocalspecError, PromptError


@pytest.mark.parametrize(
    ("typed", "open_still", "text"),
    [
        ("hello", False, "hello"),
        ("  hello ", False, "  hello "),
        ('"""', True, ""),
        ('"""a', True, "a"),
        ('"""a\nb', True, "a\nb"),
        ('"""a\nb"""', False, "a\nb"),
        ('  """\n  a\n"""  ', False, "  a"),
        ('""""""', False, ""),
        ('""""', True, '"'),
        ('say """ twice', False, 'say """ twice'),
    ],
)
def test_triple_quotes(typed: str, open_still: bool, text: str) -> None:
    assert entry.unfinished(typed) is open_still
    assert entry.unquoted(typed) == text


def test_paths_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes").mkdir()
    for name in ("notes/a.txt", "nothing.md", ".hidden", "other"):
        (tmp_path / name).write_text("x")
    monkeypatch.chdir(tmp_path)
    assert list(entry.paths("no")) == ["notes/", "nothing.md"]
    assert list(entry.paths("")) == ["notes/", "nothing.md", "other"]
    assert list(entry.paths(".h")) == [".hidden"]
    assert list(entry.paths("notes/")) == ["notes/a.txt"]
    assert list(entry.paths(f"{tmp_path}/ot")) == [f"{tmp_path}/other"]
    assert list(entry.paths("no/such/")) == []


def test_files_in_a_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b c.txt"):
        Path(name).write_text("```\nx\n```\n", encoding="utf-8")
    text = 'Compare @a.txt with @"b c.txt", me@a.txt, @nobody, @no/such and @a.txt'
    assert attach.named(text) == [Path("a.txt"), Path("b c.txt")]
    assert attach.missing(text) == ["no/such"]
    told = attach.together("Why?", [attach.read_file(Path("a.txt"))])
    assert told == "a.txt:\n````\n```\nx\n```\n````\n\nWhy?"


def test_a_file_is_read_as_text_or_refused(tmp_path: Path) -> None:
    def refused(content: bytes, said: str) -> None:
        path = tmp_path / "file"
        path.write_bytes(content)
        with pytest.raises(PromptError, match=said) as caught:
            attach.read_file(path)
        assert caught.value.hint

    refused(b"", "is empty")
    refused(b" \n", "is empty")
    refused(b"\xff\xfe\x00", "is not a text file")
    refused(b"a\0b", "is not a text file")
    refused(b"x" * (attach.MAX_BYTES + 1), "more than any context holds")
    with pytest.raises(PromptError, match="No such file"):
        attach.read_file(tmp_path / "none")
    with pytest.raises(PromptError, match="cannot be read"):
        attach.read_file(tmp_path)
    (tmp_path / "marked").write_bytes(b"\xef\xbb\xbfhello")
    assert attach.read_file(tmp_path / "marked").text == "hello"


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"from a command")
    os.close(writing)
    assert attach.read_file(Path(f"/dev/fd/{reading}")).text == "from a command"
    os.close(reading)


def test_a_program_sets_the_clipboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "pbcopy"
    program.write_text(f"#!/bin/sh\n/bin/cat > {tmp_path}/copied\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert clipboard.copy("some \N{SNOWMAN} text") == "pbcopy"
    assert (tmp_path / "copied").read_text("utf-8") == "some \N{SNOWMAN} text"
    program.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(LocalspecError, match="`pbcopy` failed"):
        clipboard.copy("text")


def test_a_missing_clipboard_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LocalspecError, match="No clipboard"):
        clipboard.copy("text")


def test_a_path_is_not_a_command() -> None:
    assert commands.is_command("/help me")
    assert commands.is_command("/halp")
    for text in ("/usr/bin/env is what?", "/* a comment */", "// another", "/1 of what?"):
        assert not commands.is_command(text)
