"""Atomic writes: whole or not at all, and only the dead are swept."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from localspec.disk import atomic

SWEEP = """
import sys
from pathlib import Path
from localspec.disk import atomic
atomic.sweep(Path(sys.argv[1]))
"""


def test_a_folder_that_appears_meanwhile_stays(tmp_path: Path) -> None:
    def write() -> None:
        with atomic.folder(tmp_path / "a") as partial:
            (partial / "mine").write_text("")
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "theirs").write_text("")

    with pytest.raises(FileExistsError):
        write()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]


def test_a_living_writer_is_not_swept(tmp_path: Path) -> None:
    with atomic.file(tmp_path / "a") as out, atomic.scratch(tmp_path / "b") as folder:
        (folder / "inside").write_text("")
        subprocess.run([sys.executable, "-c", SWEEP, str(tmp_path)], check=True)
        out.write(b"whole")
        assert (folder / "inside").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"whole"


def test_the_dead_are_swept_and_others_stay(tmp_path: Path) -> None:
    for name in (".a.partial-1-0123abcd", ".b.partial-99999999", ".c.partial", "d.partial-1-0123abcd"):
        (tmp_path / name).write_text("")
    (tmp_path / ".e.partial-1-0123abcd").mkdir()
    (tmp_path / ".e.partial-1-0123abcd" / "x").write_text("")
    (tmp_path / "outside").write_text("")
    (tmp_path / ".f.partial-99999999-0123abcd").symlink_to(tmp_path / "outside")
    atomic.sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {".c.partial", "d.partial-1-0123abcd", "outside"}


def test_an_error_leaves_the_old_file_and_its_mode(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "a").chmod(0o640)

    def fail() -> None:
        with atomic.file(tmp_path / "a") as out:
            out.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert (tmp_path / "a").read_text() == "old"
    atomic.write(tmp_path / "a", "new")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
