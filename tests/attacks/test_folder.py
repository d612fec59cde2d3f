"""Code and configuration that lie in the working directory are never run or read unasked."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny

from localspec import children
from localspec.agent.tools.folder import Folder
from localspec.agent.tools.shell import Shell
from localspec.library.download import packages
from localspec.library.importing.add_local import add_local
from localspec.library.progress import Silent
from localspec.library.store import Library

# Names that a Python process imports early, and packages that localspec starts by name.
NAMES = (
    *("re", "json", "typing", "random", "logging", "subprocess", "multiprocessing", "sitecustomize"),
    *("usercustomize", "numpy", "psutil", "msgspec", "pip", "localspec", "llama_cpp", "tokenizers"),
)


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder full of code that leaves a mark when it runs; return the mark."""
    folder, mark = tmp_path / "somebody's", tmp_path / "mark"
    folder.mkdir()
    leave = f"open({str(mark)!r}, 'a').write(__name__ + '\\n')\n"
    for name in NAMES:
        (folder / f"{name}.py").write_text(leave)
        (folder / name).mkdir()
        for file in ("__init__.py", "__main__.py"):
            (folder / name / file).write_text(leave)
    (folder / "uv.toml").write_text('index-url = "http://127.0.0.1:9/stolen"\n')
    (folder / "pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/stolen\n")
    monkeypatch.chdir(folder)
    return mark


@pytest.fixture
def home(tmp_path: Path) -> Path:
    library = Library(tmp_path / "home")
    add_local(library, tiny.write_gguf(tiny.make("llama"), tmp_path / "a.gguf"), "small", Silent())
    return library.home


def localspec(home: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    environment = os.environ | {"LOCALSPEC_HOME": str(home), "LOCALSPEC_CONFIG": os.devnull}
    return subprocess.run(
        [sys.executable, "-P", "-m", "localspec", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("chat", "small", "a", "--raw", "--max-tokens", "2"),
        ("export", "small", "--to", "gguf", "--output", "{out}"),
        ("bench", "small", "--against", "llamacpp", "--tokens", "4", "--repeat", "1", "--draft", "off"),
        ("devices",),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_run_no_code_of_the_folder(
    home: Path, trap: Path, tmp_path: Path, arguments: Sequence[str]
) -> None:
    done = localspec(home, *(word.replace("{out}", str(tmp_path / "out")) for word in arguments))
    assert not trap.exists(), trap.read_text(encoding="utf-8")
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("program", ["pip", "uv"])
def test_downloads_read_no_configuration_of_the_folder(
    trap: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    """The program lists its own configuration where a download would start it."""
    into = tmp_path / "into"
    into.mkdir()
    started: list[tuple[list[str], dict[str, object]]] = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[bytes]:
        started.append((command, options))
        return subprocess.CompletedProcess(command, 0, b"", b"")

    monkeypatch.setattr(children, "run", run)
    monkeypatch.setattr(packages, "_has_pip", lambda: program == "pip")
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}")
    packages._download("a==1", into, Silent())
    ((command, options),) = started
    assert options["cwd"] == children.ROOT
    assert command[1] == "-P" if program == "pip" else command[0] == "/bin/uv"
    assert all(Path(word).is_absolute() for word in command if "into" in word)


def test_a_program_of_the_agent_imports_the_folder_last(trap: Path, tmp_path: Path) -> None:
    shell = Shell(Folder(Path.cwd()), 60)
    assert shell.run_python("import json, re\nprint(json.dumps(re.escape('a')))") == '"a"'
    assert not trap.exists()
    (Path.cwd() / "own.py").write_text("def answer(): return 42")
    assert shell.run_python("from own import answer\nanswer()") == "42"
