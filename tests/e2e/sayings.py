"""The saved messages of a conversation, and waiting for them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from command import SECONDS

from localspec.state.conversations import Sessions


def kept(home: Path, name: str | None = None) -> list[tuple[str, str]]:
    """Return role and content of each saved message of a conversation, or of the latest one."""
    if not (home / "sessions.db").exists():
        return []
    sessions = Sessions(home / "sessions.db")
    found = [one.name for one in sessions.all() if name in (None, one.name)]
    messages = sessions.read(found[0])[1] if found else []
    return [(message["role"], message["content"]) for message in messages]


def wait(until: Callable[[], object]) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + SECONDS
    while not until():
        assert time.monotonic() < end
        time.sleep(0.02)
