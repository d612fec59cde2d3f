"""Folders and files that only their owner can read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
import tiny

from localspec.disk import private
from localspec.library import Library, Silent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_folders_and_files_are_private_and_old_files_become_so(tmp_path: Path) -> None:
    private.make_folder(tmp_path / "a" / "b")
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]
    (tmp_path / "a" / "old").write_text("text")
    (tmp_path / "a" / "old").chmod(0o664)
    for name in ("old", "new"):
        private.make_file(tmp_path / "a" / name)
        assert mode(tmp_path / "a" / name) == 0o600
    assert (tmp_path / "a" / "old").read_text() == "text"


def test_a_data_folder_that_localspec_creates_is_private(tmp_path: Path) -> None:
    gguf = tiny.write_gguf(tiny.make("llama"), tmp_path / "a.gguf")
    Library(tmp_path / "home").resolve(str(gguf), Silent())
    assert mode(tmp_path / "home") == 0o700


def test_the_usual_data_folder_becomes_private_and_a_chosen_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("usual", "chosen"):
        (tmp_path / name).mkdir(mode=0o755)
        (tmp_path / name).chmod(0o755)
    monkeypatch.delenv("LOCALSPEC_HOME", raising=False)
    monkeypatch.setattr("platformdirs.user_data_path", lambda *names, **options: tmp_path / "usual")
    Library()
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "chosen"))
    Library()
    assert [mode(tmp_path / name) for name in ("usual", "chosen")] == [0o700, 0o755]
