"""Python processes of localspec's own, which answer requests as JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from tempfile import TemporaryFile
from typing import Any

from localspec.errors import ChildFailed

GRACE = 10.0  # seconds that a terminated process has to end


class JsonChild:
    """A module of localspec in its own process: it reads requests and writes replies, a JSON line each.

    The process does not import from the working directory. A reply `{"error": ..., "hint": ...}`, and a
    process that has died, raise ChildFailed with a message that begins with `name`.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._stderr = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - a pipe could fill up
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
        )
        self._reader = ThreadPoolExecutor(1)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def ask(self, request: Any, seconds: float | None = None) -> dict[str, Any]:
        """Return the reply to a request; raises ChildFailed, and TimeoutError after `seconds`."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._failed() from None
        return self.reply(seconds)

    def reply(self, seconds: float | None = None) -> dict[str, Any]:
        """Return the next reply; raises ChildFailed, and TimeoutError after `seconds`."""
        assert self._process.stdout is not None
        line = self._reader.submit(self._process.stdout.readline).result(seconds)
        try:
            reply: dict[str, Any] = json.loads(line)
        except ValueError:
            raise self._failed() from None
        if "error" in reply:
            raise ChildFailed(f"`{self.name}`: {reply['error']}", reply.get("hint"))
        return reply

    def end(self) -> None:
        """End the process."""
        self._process.terminate()
        try:
            self._process.wait(GRACE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.shutdown()  # the pipe has ended, and with it a line that was waited for
        for pipe in (self._process.stdin, self._process.stdout, self._stderr):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _failed(self) -> ChildFailed:
        self._process.kill()
        code = self._process.wait()
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().splitlines() if line.strip()]
        return ChildFailed(f"`{self.name}` exited with {code}: {lines[-1] if lines else 'no output'}")
