"""Tools that run programs in a folder, with a time limit and an output limit."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import threading
from contextlib import suppress
from typing import IO, Annotated

from localspec import children
from localspec.agent.tools.folder import Folder
from localspec.agent.tools.text_files import MAX_OUTPUT
from localspec.output.visible import visible
from localspec.tools import Tool, ToolFailed, tool

TIMEOUT = 60.0  # seconds
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}  # it would hide a change within the second and of equal size
OUTPUT_WAIT = 1.0  # seconds for the rest of the output of a program that has ended

# The program that stdin brings; modules of the folder come after all others, so that none takes their names.
PROGRAM = "import sys; sys.path.append(''); exec(compile(sys.stdin.buffer.read(), '<stdin>', 'exec'))"

_COMMAND = re.compile(r"(python3?|pip3?|pytest|bash|sh|ls|cat|cd) [^\n=(]*$")


def tools(folder: Folder, seconds: float = TIMEOUT) -> list[Tool]:
    """Return the tools that run programs in `folder`, for at most `seconds` each."""
    shell = Shell(folder, seconds)
    return [
        tool(shell.run_shell, access="run", preview=lambda command: f"$ {command}\n"),
        tool(shell.run_python, access="run", preview=preview_python),
    ]


def preview_python(code: str) -> str:
    """Return a program as the user reads it; raises ToolFailed for one that is a shell command."""
    _check_python(code)
    return f"{code.rstrip()}\n"


def _check_python(code: str) -> None:
    """Raise ToolFailed for a shell command: models confuse the two tools, and the user allows Python."""
    if _COMMAND.match(code):
        raise ToolFailed("This is a shell command, not a Python program", "Call run_shell with it")


class Shell:
    """Runs programs, each in its own session, and kills it with its children at the time limit."""

    def __init__(self, folder: Folder, seconds: float) -> None:
        self._folder = folder
        self._seconds = seconds

    def run_shell(
        self,
        command: Annotated[str, "command line"],
    ) -> str:
        """Run a shell command in the folder; return what it prints."""
        shell = ["cmd", "/c", command] if os.name == "nt" else ["bash", "-c", command]
        return self._run(shell, None, "Look at the files that this is about, and change what is wrong")

    def run_python(
        self,
        code: Annotated[str, "Python program; print what you want to know"],
    ) -> str:
        """Work something out, such as a sum: run a short Python program; return what it prints."""
        _check_python(code)
        return self._run(
            children.python("-c", PROGRAM), print_last_value(code), "Correct the program and run it again"
        )

    def _run(self, command: list[str], stdin: str | None, hint: str | None = None) -> str:
        limit = self._seconds
        try:
            data = stdin.encode() if stdin is not None else b""
            process = children.start(
                command,
                cwd=self._folder.root,
                env={**os.environ, **NO_BYTECODE},
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except (OSError, ValueError) as error:
            raise ToolFailed(f"It cannot be started: {error}") from None
        output = ProgramOutput(process.stdout)
        try:
            if stdin is not None and process.stdin:
                with suppress(BrokenPipeError), process.stdin as pipe:
                    pipe.write(data)
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            children.stop(process)
            raise ToolFailed(f"Stopped after {limit:g} seconds. {output.text()}".strip()) from None
        except BaseException:
            children.stop(process)
            raise
        printed = output.text()
        children.stop(process)  # and the children that it left running
        if code:
            raise ToolFailed(f"{printed}\n(exit code {code})".strip(), hint)
        return printed or "(it printed nothing)"


def print_last_value(code: str) -> str:
    """Return a program that also prints the value of its last line, as the Python prompt does.

    Models expect it.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return code
    *others, last = tree.body or [ast.Pass()]
    if not isinstance(last, ast.Expr) or (others and others[-1].end_lineno == last.lineno):
        return code
    head = "\n".join(code.splitlines()[: last.lineno - 1])
    return f"{head}\n_ = ({ast.unparse(last.value)})\nif _ is not None: print(_)\n"


class ProgramOutput:
    """Reads all that a program prints, and keeps its beginning and its end."""

    def __init__(self, stream: IO[bytes] | None) -> None:
        self._first, self._last, self._bytes = b"", b"", 0
        self._stream = stream
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return the output so far, without its middle if it is long."""
        self._thread.join(OUTPUT_WAIT)
        missing = self._bytes - len(self._first) - len(self._last)
        gap = f"\n(... {missing:,} bytes left out ...)\n" if missing else ""
        text = (self._first + gap.encode() + self._last).decode("utf-8", "replace")
        return visible(text).strip("\n")

    def _read(self) -> None:
        half = MAX_OUTPUT // 2
        assert self._stream is not None
        with self._stream, suppress(OSError, ValueError):
            while part := self._stream.read1(65536):  # type: ignore[attr-defined]
                self._bytes += len(part)
                room = half - len(self._first)
                self._first += part[: max(room, 0)]
                self._last = (self._last + part[max(room, 0) :])[-half:]
