"""Copy text to the clipboard: through a program of the system, or else through the terminal."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys

from localspec import children
from localspec.cli import console
from localspec.errors import LocalspecError

TIMEOUT = 5  # seconds
PROGRAMS = (
    ("pbcopy", (), None),
    ("wl-copy", (), "WAYLAND_DISPLAY"),
    ("xclip", ("-selection", "clipboard"), "DISPLAY"),
    ("xsel", ("--clipboard", "--input"), "DISPLAY"),
    ("clip.exe", (), None),
    ("clip", (), None),
)


def copy(text: str) -> str:
    """Copy `text` to the clipboard and return how; raises LocalspecError without a clipboard."""
    for name, options, variable in PROGRAMS:
        if (path := shutil.which(name)) and (variable is None or os.environ.get(variable)):
            try:
                _give(text, [path, *options])
            except (OSError, subprocess.SubprocessError) as error:
                raise LocalspecError(f"`{name}` failed: {error}", None) from None
            return name
    if sys.stdout.isatty():  # OSC 52, which works over ssh too
        console.print_exact(f"\x1b]52;c;{base64.b64encode(text.encode()).decode()}\x07")
        return "the terminal, if it allows that"
    raise LocalspecError("No clipboard is available", "Install `xclip` or `wl-clipboard`")


def _give(text: str, command: list[str]) -> None:
    """Run a clipboard program with `text` as its input; it may leave a process that holds the text."""
    process = children.start(
        command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.communicate(text.encode(), TIMEOUT)
    except BaseException:
        children.stop(process)
        raise
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
