"""Looking after a task: what it may change, what its programs name, and whether it may end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from localspec.agent.events import ToolResultEvent
from localspec.agent.permission import CHANGES
from localspec.agent.tools import edits, files, shell, syntax
from localspec.agent.tools.folder import Folder
from localspec.agent.verification.commands import command_of_failing_program, command_of_tests, missing_runner
from localspec.agent.verification.definitions import definitions
from localspec.agent.verification.named_files import handed_over, named_files
from localspec.agent.verification.task import Demands, demands
from localspec.output.tool_calls import Call
from localspec.tools import Tool, tool

TIMEOUT = 300.0  # seconds of tests
LAST_LINES = 40  # of what tests print
QUICK = 10.0  # seconds of tests that run after each change, once they have failed
RUN_TESTS = "run_tests"

Changed = frozenset[tuple[str, bytes]]  # the files that a task has changed, with their contents


class Attached(NamedTuple):
    """Text that goes to the model with a result, and the names of the files in it."""

    text: str
    names: list[str]


class Failure(NamedTuple):
    """How tests failed, and how many programs had run by then: one may have changed the folder."""

    runs: int
    text: str


class Review:
    """The checks of one agent's tasks in a folder.

    A question changes no file. A test from before the task is not changed unless the task speaks of it. No
    task ends with a changed file that does not parse any more, without the run that it asks for, or while the
    tests, or a program that the task says to fail, fail.
    """

    def __init__(self, folder: Folder, tools: Mapping[str, Tool]) -> None:
        self.folder = folder
        run = shell.Shell(folder, TIMEOUT).run_shell
        self.run_tests = tool(run, name=RUN_TESTS, access="run", preview=lambda command: f"$ {command}\n")
        self._can_run = any(known.access == "run" for known in tools.values())
        self._can_write = any(known.access in CHANGES for known in tools.values())
        self.begin("")

    def begin(self, task: str) -> None:
        """Begin a task, by its words."""
        self._task = task
        self._demands: Demands = demands(task)
        self.folder.protects_tests = not self._demands.tests
        self._refused = False
        self._seconds = 0.0  # of the last tests
        self._runs = 0  # programs so far
        self._passed: tuple[Changed, int] | None = None  # what was changed and had run when the tests passed
        self._failures: dict[Changed, Failure] = {}  # by what was changed
        self._ran = self._asked_to_change = self._restarted = False

    def start_over(self) -> None:
        """Begin a new attempt at the task, with nothing done."""
        self._restarted = True
        self._ran = self._asked_to_change = False

    @property
    def _state(self) -> tuple[Changed, int]:
        return self.folder.changes.state(), self._runs

    def shows(self, known: Tool) -> bool:
        """Return whether the model sees a tool: one more that it has no use for makes a small model worse."""
        return known.name != edits.REPLACE or bool(self._demands.renames)

    def allows(self, known: Tool) -> bool:
        """Return whether the task may use a tool at the moment."""
        useless = known.access in CHANGES if self._demands.question else known.access == "run" and self._knows
        return self.shows(known) and not useless

    @property
    def _knows(self) -> bool:
        """Whether the failure is known, so that the next thing is a change: a program would show it again.

        The first attempt may look at it with one program.
        """
        failure = self._failures.get(self.folder.changes.state())
        return failure is not None and (self._restarted or self._runs > failure.runs)

    def note(self, result: ToolResultEvent, known: Tool | None) -> None:
        """Take the result of a call into account."""
        if known and known.access == "run" and result.allowed:
            self._runs += 1
            self._ran = True

    def attached(self, result: str, messages: Sequence[Mapping[str, Any]]) -> Attached:
        """Return the places and the files that a failed program names, unless a message has them."""
        known = list(_texts(messages))
        places = definitions(self.folder, result)
        text, names = handed_over(self.folder, named_files(self.folder, result), known)
        return Attached("\n\n".join(filter(None, [places, text])), names)

    def first_call(self) -> Call | None:
        """Return the call that shows the failure that the task speaks of."""
        return self._test_call() if self._demands.failing and self._can_run else None

    def last_call(self) -> Call | None:
        """Return the call whose success the end of the task needs; None if nothing is left to be run."""
        changed = any(self.folder.changes.texts())
        due = (changed or self._demands.failing) and not self._demands.question
        if not due or not self._can_run or self._refused or self._state == self._passed:
            return None
        return self._test_call()

    def not_checked(self) -> str | None:
        """Return why a task that has changed files ends without its tests; None if nothing kept them back."""
        if not any(self.folder.changes.texts()) or not self._can_run or self._refused:
            return None
        return missing_runner(self.folder, self._task)

    def call_after(self, result: ToolResultEvent, known: Tool | None) -> Call | None:
        """Return the call of tests that have failed and may pass after a change, if they are quick."""
        changed = not result.failed and known is not None and known.access in CHANGES
        due = changed and self._failures and self._seconds <= QUICK and not self._refused
        return self._test_call() if due else None

    def _test_call(self) -> Call | None:
        program = command_of_failing_program(self.folder, self._task)
        command = program or command_of_tests(self.folder, self._task)
        return Call(RUN_TESTS, {"command": command}) if command else None

    def note_tests(self, result: ToolResultEvent) -> None:
        """Take the result of tests into account; refused ones are not asked for again in the task."""
        self._refused = not result.allowed
        if not result.allowed:
            return
        self._ran, self._seconds, changed = True, result.seconds, self.folder.changes.state()
        if result.failed:
            text = f"`{result.call.arguments['command']}` fails:\n{last_lines(result.text)}"
            self._failures[changed] = Failure(self._runs, text)
        else:
            self._passed = self._state
            self._failures.pop(changed, None)  # a program that the model ran has mended it

    def verdict(self, result: ToolResultEvent) -> str:
        """Return what the model gets to know of the result of tests, "" if they were refused."""
        passes = f"`{result.call.arguments['command']}` passes now" if result.allowed else ""
        return self.known_failure() or passes

    def known_failure(self) -> str | None:
        """Return how the tests failed, if nothing has changed since and the task is not only a question."""
        failure = self._failures.get(self.folder.changes.state())
        if failure is None or failure.runs != self._runs or self._demands.question:
            return None
        return failure.text

    def fault(self) -> str | None:
        """Return why the task may not end yet, as far as that can be told without running anything."""
        broken = list(self._broken_files())
        if broken:
            return "\n".join(broken)
        if self._demands.run and self._can_run and not self._ran and not self._refused:
            return "The task says to run it, and nothing was run yet: call run_shell"
        if left := self._old_names():
            return left
        idle = not (any(self.folder.changes.texts()) or self._asked_to_change)
        if self._demands.change and self._can_write and idle:
            self._asked_to_change = True
            return "No file was changed yet: call edit_file or write_file, then final_answer"
        return None

    def _broken_files(self) -> Iterator[str]:
        for name, before, after in self.folder.changes.texts():
            fault = syntax.fault(name, after.decode("utf-8", "replace"))
            if fault and (before is None or not syntax.fault(name, before.decode("utf-8", "replace"))):
                yield f"`{name}` does not parse: {fault}"

    def _old_names(self) -> str | None:
        """Return the lines with a name that the task replaces in all files, or in those that it names."""
        for old, new in self._demands.renames:
            lines = files.lines_with(self.folder, old)
            if not self._demands.all_files:
                lines = [line for line in lines if line.partition(":")[0] in self._task]
            if lines and files.lines_with(self.folder, new):
                return "\n".join([f"`{old}` must become `{new}` here as well:", *lines])
        return None


def last_lines(text: str) -> str:
    """Return the last lines of what tests print: they say at their end what failed."""
    lines = text.splitlines()
    left_out = len(lines) - LAST_LINES
    if left_out > 0:
        lines = [f"(... {left_out:,} lines ...)", *lines[left_out:]]
    return "\n".join(lines)


def _texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for message in messages:
        yield str(message.get("content") or "")
        for call in message.get("tool_calls", ()):
            yield from map(str, call["function"]["arguments"].values())
