"""Marks of what is in use, which a crash of the machine leaves behind: such files may be damaged."""

from __future__ import annotations

import atexit
import glob
import os
import secrets
from contextlib import suppress
from pathlib import Path

import psutil

from localspec.disk import private

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


_marked: set[tuple[Path, str]] = set()  # by this process


def begin(folder: Path, name: str) -> bool:
    """Mark `name` in `folder` as in use until this process ends.

    Returns whether the machine crashed while it was in use, and `checked` was not called since. A folder that
    cannot be written keeps no marks.
    """
    crashed = False
    with suppress(OSError):
        private.make_folder(folder)
        for mark in _marks(folder, name):
            pid, _, boot = mark.read_text("utf-8").partition(" ")
            crashed |= boot != boot_id()
            if boot == boot_id() and not _alive(pid):
                mark.unlink(missing_ok=True)
        if (folder, name) not in _marked:
            own = folder / f"{name}@{secrets.token_hex(8)}"
            own.write_text(f"{os.getpid()} {boot_id()}", "utf-8")
            atexit.register(own.unlink, missing_ok=True)
            _marked.add((folder, name))
    return crashed


def checked(folder: Path, name: str) -> None:
    """Drop the marks that crashes have left: what they mark was found to be whole."""
    with suppress(OSError):
        for mark in _marks(folder, name):
            if not mark.read_text("utf-8").endswith(f" {boot_id()}"):
                mark.unlink(missing_ok=True)


def _marks(folder: Path, name: str) -> list[Path]:
    return list(folder.glob(f"{glob.escape(name)}@*"))


def boot_id() -> str:
    """Return a text that is new after each start of the machine."""
    try:
        return BOOT_ID.read_text("utf-8").strip()
    except OSError:
        return str(int(psutil.boot_time()) // 60)


def _alive(pid: str) -> bool:
    return pid.isdigit() and psutil.pid_exists(int(pid))
