"""Run a program, and kill its process group when the process that asked for it has gone.

`python -I -S guard.py PARENT PROGRAM ARGUMENT...` in a session of its own. The guard passes signals on, and
ends as the program ended, by the same signal or with the same exit code. It imports as little as it can,
because every program waits for it.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
from time import sleep

INTERVAL = 0.3  # seconds between two looks at the parent
NOT_FOUND = 127  # exit code, as shells have it
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DEFAULTS = [signal.SIGPIPE, signal.SIGXFSZ]  # Python ignores them; programs expect not to


def main(parent: int, command: list[str]) -> None:
    """Run the command; does not return."""
    try:
        program = os.posix_spawnp(command[0], command, os.environ, setsigdef=DEFAULTS)
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode("utf-8", "backslashreplace"))
        sys.exit(NOT_FOUND)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: _send(program, number))
    _thread.start_new_thread(_watch, (parent,))
    _, status = os.waitpid(program, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        _die_of(-code)
    sys.exit(code)


def _send(program: int, number: int) -> None:
    try:  # noqa: SIM105 - contextlib takes longer to import than all of this
        os.kill(program, number)
    except ProcessLookupError:
        pass


def _watch(parent: int) -> None:
    """Kill the process group, this process included, once the parent is another one."""
    while os.getppid() == parent:
        sleep(INTERVAL)
    os.killpg(0, signal.SIGKILL)


def _die_of(number: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has written its own
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
