"""Python processes of localspec's own, which answer requests as JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import Any

from localspec.children.programs import SAFE, program_of, python, start, stop
from localspec.errors import ChildFailed, rebuilt

GRACE = 1.0  # seconds that a process has to end once its requests have ended

Reply = dict[str, Any]


class JsonChild:
    """A module of localspec in its own process: it reads requests and writes replies, a JSON line each.

    A reply `{"error": ..., "hint": ...}`, and a process that has died, raise ChildFailed with a message that
    begins with `name`; with the name of an error's class under "kind", that error is raised as it was.
    """

    def __init__(self, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._stderr = TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - a pipe could fill up
        self._process = start(
            python("-m", module, *arguments),
            env=os.environ | SAFE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            encoding="utf-8",
        )
        self._reader = ThreadPoolExecutor(1)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return program_of(self._process)

    def ask(self, request: Any, seconds: float | None = None) -> Reply:
        """Return the reply to a request; raises ChildFailed, and TimeoutError after `seconds`."""
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._failed() from None
        return self.reply(seconds)

    def reply(self, seconds: float | None = None) -> Reply:
        """Return the next reply; raises ChildFailed, and TimeoutError after `seconds`."""
        line = self._reader.submit(self._process.stdout.readline).result(seconds)
        try:
            reply: Reply = json.loads(line)
        except ValueError:
            raise self._failed() from None
        if "kind" in reply:
            raise rebuilt(reply["kind"], reply["error"], reply["hint"])
        if "error" in reply:
            raise ChildFailed(f"`{self.name}`: {reply['error']}", reply.get("hint"))
        return reply

    def end(self) -> None:
        """End the process."""
        with suppress(OSError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        stop(self._process)
        self._reader.shutdown()  # the pipe has ended, and with it a line that was waited for
        for pipe in (self._process.stdout, self._stderr):
            with suppress(OSError):
                pipe.close()

    def _failed(self) -> ChildFailed:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        stop(self._process)
        code = self._process.wait()
        self._stderr.seek(0)
        lines = [line for line in self._stderr.read().splitlines() if line.strip()]
        return ChildFailed(
            f"`{self.name}` exited with {code}: {lines[-1] if lines else 'no output'}", code=code
        )


@contextmanager
def replies_on_stdout() -> Iterator[Callable[[Reply], None]]:
    """Be the other end of a JsonChild: yield a function that writes a reply; other output goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(values: Reply) -> None:
        replies.write(json.dumps(values) + "\n")
        replies.flush()

    with replies:
        yield say
