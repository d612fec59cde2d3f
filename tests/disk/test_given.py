"""Paths and files as users type them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from localspec.disk import given
from localspec.errors import BadValue

WRONG = ["a" * 300, "a/" * 3000, "a/" * 300, "~no-such-user/x", "a\0b"]


@pytest.mark.parametrize("text", WRONG)
def test_a_text_that_is_no_path(text: str) -> None:
    with pytest.raises(BadValue) as caught:
        given.path_of(text)
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()
    assert not given.exists(text)
    assert not given.is_file(text)


def test_a_home_is_expanded_and_what_is_missing_is_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert given.path_of("~/a b") == tmp_path / "a b"
    assert given.path_of(tmp_path / "none" / "x") == tmp_path / "none" / "x"
    (tmp_path / "file").write_text("")
    assert given.path_of(tmp_path / "file" / "x").name == "x"
    assert given.is_file("~/file")


def test_texts_files_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\xef\xbb\xbfgr\xc3\xbc\xc3\x9f")
    assert given.read_text(tmp_path / "a") == "grüß"
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("from a pipe",))
    writer.start()
    assert given.read_text(tmp_path / "pipe") == "from a pipe"
    writer.join()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/dev/zero", "has more than 1,000 bytes"),
        ("none", "No such file"),
        ("latin", "is not UTF-8"),
        (".", "cannot be read: Is a directory"),
    ],
)
def test_a_file_that_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, said: str
) -> None:
    monkeypatch.setattr(given, "MAX_TEXT", 1000)
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(BadValue, match=said):
        given.read_text(tmp_path / path)
