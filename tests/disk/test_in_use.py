"""After a crash of the machine, and only then, what was in use is looked at closely."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
from said import Said

from localspec.disk import in_use
from localspec.errors import BrokenModel
from localspec.library import Library, Silent
from localspec.library.importing.add_local import add_local

BEGIN = """
import os, signal, sys
from pathlib import Path
from localspec.disk import in_use
print(in_use.begin(Path(sys.argv[1]), "a"))
if sys.argv[2] == "killed":
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def begin(folder: Path, how: str = "") -> str:
    command = [sys.executable, "-c", BEGIN, str(folder), how]
    return subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.decode().strip()


def test_a_process_that_ends_or_is_killed_is_no_crash(tmp_path: Path) -> None:
    assert [begin(tmp_path), begin(tmp_path, "killed")] == ["False", "False"]
    assert len(list(tmp_path.iterdir())) == 1
    assert begin(tmp_path) == "False"
    assert list(tmp_path.iterdir()) == []


def test_a_mark_of_another_boot_is_a_crash(tmp_path: Path) -> None:
    (tmp_path / "a@0").write_text(f"{os.getpid()} another boot")
    (tmp_path / "b@0").write_text(f"{os.getpid()} another boot")
    assert [begin(tmp_path), begin(tmp_path)] == ["True", "True"]  # until it was checked
    in_use.checked(tmp_path, "a")
    assert [path.name for path in tmp_path.iterdir()] == ["b@0"]
    assert begin(tmp_path) == "False"


def test_a_crash_makes_a_start_read_whole_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(tmp_path / "home")
    gguf = tiny.write_gguf(tiny.make("llama"), tmp_path / "a.gguf")
    model = add_local(library, gguf, "small", Silent(), copy=True)
    file = model.folder / "openvino_model.bin"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    monkeypatch.setattr("localspec.library.store.check_samples", lambda model: None)  # as in a large file
    assert library.resolve("small", Silent()).name == "small"
    for mark in (library.home / "in-use").iterdir():
        mark.write_text("1 another boot")
    for _ in range(2):  # the second start does not take it for whole either
        with pytest.raises(BrokenModel, match=r"openvino_model\.bin` has the sha256"):
            library.resolve("small", Silent())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    said = Said()
    for _ in range(2):
        library.resolve("small", said)
    assert len(said.lines) == 1
