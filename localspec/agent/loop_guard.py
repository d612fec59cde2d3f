"""Keep small models from running in circles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localspec.agent.events import ToolResultEvent
from localspec.output.tool_calls import Call
from localspec.tools import Tool, ToolFailed

FINAL = "final_answer"  # the tool whose call ends a task
MAX_FAILURES = 3  # failed calls in a row before the model may give up
MAX_REPEATS = 4  # repeated calls before the task is stopped
MAX_REPEATED = 500  # characters of a result that is told again
CHANGING = ("write", "run")  # access after which a repeated call may return something else


class LoopGuard:
    """Bars tools from the next answer, and rejects repeated calls.

    After a failed call the model must try again before it may give up, and a call that would return the same
    result again is not run: the model is told that result. Calls that differ in blanks, in `./` before a
    path, or in a default that one of them states are the same, unless they write or run: blanks are part of a
    file or a program.
    """

    def __init__(self, state: Callable[[], object] | None = None) -> None:
        """`state` returns a value that tells contents of the folder apart: back and forth is a circle."""
        self._state = state
        self._epoch = 0  # changes that `state` does not tell of
        self.barred: set[str] = set()
        self.repeats = 0
        self._failures = 0  # in a row
        self._results: list[tuple[object, Call, ToolResultEvent]] = []  # by the state and the plain call
        self._before = self._now()  # the state before the call that is checked

    @property
    def stuck(self) -> bool:
        """Return whether the model has repeated its calls too often."""
        return self.repeats >= MAX_REPEATS

    def check(self, call: Call, tool: Tool | None = None) -> None:
        """Raise ToolFailed for a call that was made before, with no change since."""
        self._before = self._now()
        before = self._result_of(plain(call, tool), self._before)
        if before is None:
            return
        self.repeats += 1
        if before.failed:
            raise ToolFailed("You did exactly this before, and it would fail again", "Do it another way")
        result = before.text[:MAX_REPEATED]
        raise ToolFailed(f"You did exactly this before; the result was:\n{result}\nGo on, or answer with it")

    def note(self, result: ToolResultEvent, tool: Tool | None) -> None:
        """Take the result of a call into account."""
        call = plain(result.call, tool)
        before = self._result_of(call, self._before)
        failed = result.failed and result.allowed and (before is None or before.failed)
        self._failures = self._failures + 1 if failed else 0
        self.barred = {FINAL} if 0 < self._failures <= MAX_FAILURES else set()
        if before is not None:
            self.barred |= {result.call.name}
            return
        changing = CHANGING if self._state is None else ("run",)
        if tool and tool.access in changing and not result.failed:
            self._epoch += 1
        self._results += [(where, call, result) for where in {self._before, self._now()}]

    def _now(self) -> tuple[int, object]:
        return self._epoch, self._state() if self._state else None

    def _result_of(self, call: Call, state: object) -> ToolResultEvent | None:
        found = (result for where, known, result in self._results if (where, known) == (state, call))
        return next(found, None)


def plain(call: Call, tool: Tool | None) -> Call:
    """Return a call without what makes no difference to its result."""
    if tool is None or tool.access in CHANGING:
        return call
    arguments = {name: _plain_value(value) for name, value in call.arguments.items()}
    default = {name: _plain_value(value) for name, value in tool.defaults.items()}
    return Call(call.name, {key: value for key, value in arguments.items() if value != default.get(key, ...)})


def _plain_value(value: Any) -> Any:
    return " ".join(value.split()).removeprefix("./") if isinstance(value, str) else value
