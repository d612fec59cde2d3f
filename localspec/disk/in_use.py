"""Marks of what is in use, which a crash of the machine leaves behind: such files may be damaged."""

from __future__ import annotations

import atexit
import glob
import os
import secrets
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from localspec.disk import private

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@cache
def begin(folder: Path, name: str) -> bool:
    """Mark `name` in `folder` as in use until this process ends.

    Returns whether the machine crashed while it was in use. A folder that cannot be written keeps no marks.
    """
    crashed = False
    with suppress(OSError):
        private.make_folder(folder)
        for mark in folder.glob(f"{glob.escape(name)}@*"):
            pid, _, boot = mark.read_text("utf-8").partition(" ")
            crashed |= boot != boot_id()
            if boot != boot_id() or not _alive(pid):
                mark.unlink(missing_ok=True)
        own = folder / f"{name}@{secrets.token_hex(8)}"
        own.write_text(f"{os.getpid()} {boot_id()}", "utf-8")
        atexit.register(own.unlink, missing_ok=True)
    return crashed


def boot_id() -> str:
    """Return a text that is new after each start of the machine."""
    try:
        return BOOT_ID.read_text("utf-8").strip()
    except OSError:
        return str(int(psutil.boot_time()) // 60)


def _alive(pid: str) -> bool:
    return pid.isdigit() and psutil.pid_exists(int(pid))
