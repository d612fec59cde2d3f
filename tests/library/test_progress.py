from __future__ import annotations

import io
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from localspec.library.progress import Terminal, folder_bytes, report_growth


def test_one_line_per_step_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal() as progress:
        progress.step("Downloading m", 10)
        progress.advance(5)
        progress.say("the first source is away")
    found = capsys.readouterr()
    assert found.err == "Downloading m\nthe first source is away\n"
    assert found.out == ""


def test_a_terminal_gets_a_bar_with_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Screen(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Terminal() as progress:
        progress.step("Downloading m", 2000)
        progress.advance(1500)
        progress.step("Checking [b]m", 4000)
        progress.advance(1000)
        progress.say("a [word]")
    assert "Downloading m" in screen.getvalue()
    assert "1.0/4.0 kB" in screen.getvalue()
    assert "a [word]" in screen.getvalue()


def test_growth_is_what_was_added(tmp_path: Path, said: Any) -> None:
    (tmp_path / "old").write_bytes(bytes(100))
    with report_growth(tmp_path, said, seconds=0.01):
        (tmp_path / "new").write_bytes(bytes(70))
        time.sleep(0.05)
        (tmp_path / "newer").write_bytes(bytes(7))
    assert said.bytes == 77
    assert folder_bytes(tmp_path) == 177


def test_folders_may_vanish_while_their_sizes_are_added_up(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(bytes(5))
    ended = threading.Event()

    def come_and_go() -> None:
        while not ended.is_set():
            for name in "abc":
                (tmp_path / name / "inner").mkdir(parents=True)
                (tmp_path / name / "inner" / "file").write_bytes(bytes(9))
            for name in "abc":
                shutil.rmtree(tmp_path / name)

    other = threading.Thread(target=come_and_go)
    other.start()
    try:
        assert all(folder_bytes(tmp_path) >= 5 for _ in range(1000))
    finally:
        ended.set()
        other.join()
    assert folder_bytes(tmp_path) == 5
