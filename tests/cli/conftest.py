"""The command with SmolLM2 in a library for the session, and with an empty one."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from command import MODEL, SECONDS, Localspec, Ran, Terminal

import models
from localspec.library import Library, Silent


@pytest.fixture(scope="session")
def gguf() -> Path:
    return models.smollm2_gguf()


@pytest.fixture(scope="session")
def localspec(tmp_path_factory: pytest.TempPathFactory, gguf: Path) -> Iterator[Localspec]:
    """The command with SmolLM2 installed."""
    home = tmp_path_factory.mktemp("home")
    assert Library(home).resolve(str(gguf), Silent()).name == MODEL
    yield Localspec(home)
    shutil.rmtree(home)


@pytest.fixture
def fresh(tmp_path: Path) -> Localspec:
    """The command with an empty library."""
    return Localspec(tmp_path / "home")


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def start(localspec: Localspec, *arguments: str, **more: Any) -> Terminal:
        opened.append(Terminal(localspec, *arguments, **more))
        return opened[-1]

    yield start
    for found in opened:
        found.close()


@pytest.fixture
def interrupt() -> Iterator[Callable[[subprocess.Popen[bytes]], Ran]]:
    """Send Ctrl-C to a process and return its exit code and output."""
    seen: list[subprocess.Popen[bytes]] = []

    def press(process: subprocess.Popen[bytes]) -> Ran:
        seen.append(process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        return Ran(process.returncode, out.decode(), err.decode())

    yield press
    for process in seen:
        if process.poll() is None:
            process.kill()
            process.wait()
