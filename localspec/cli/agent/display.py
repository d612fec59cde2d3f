"""An agent on a terminal: its events, and the permission question."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.output.visible import visible

if TYPE_CHECKING:
    from localspec.agent.events import Event, ToolResultEvent
    from localspec.agent.permission import Reply
    from localspec.cli.talk.terminal.keyboard import Keyboard
    from localspec.output.tool_calls import Call
    from localspec.tools import Tool

MAX_WIDTH = 200  # characters of a call or of a line of a result that are shown
MAX_LINES, FIRST_LINES = 8, 3  # of a result, and of its beginning
QUESTION = "Allow this? [y]es, [n]o, [a]lways this tool: "
STOP_REASONS = {
    "max_steps": "reached `--max-steps`",
    "repeated": "the model keeps making the same call",
    "length": "an answer reached `--max-tokens`",
    "unverified": "the task is not done, as the check above shows",
}


def show(event: Event, waiting: console.Waiting) -> None:
    """Show one event: the final answer on stdout, everything else on stderr."""
    from localspec.agent import events

    if isinstance(event, events.WaitingEvent):
        count = event.characters
        waiting.show(f"Writing {event.call or 'a call'}, {count:,} characters" if count else "Reading")
        return
    waiting.clear()
    match event:
        case events.TextEvent(text) if text:
            console.say(text, console.DIM, end="")
        case events.ToolCallEvent(call):
            console.say(f"\N{RIGHTWARDS ARROW} {format_call(call)}", console.CYAN)
        case events.ToolResultEvent():
            console.say(format_result(event), console.RED if event.failed else console.DIM)
            if event.names:
                console.say(f"  Files read with it: {', '.join(event.names)}", console.DIM)
        case events.CheckEvent(call, None):
            console.say(f"\N{RIGHTWARDS ARROW} {format_call(call)}", console.CYAN)
        case events.CheckEvent(_, result) if result:
            console.say(format_result(result), console.RED if result.failed else console.DIM)
        case events.NotYetEvent(_, reason):
            console.say(f"Not done yet: {reason.splitlines()[0]}")
        case events.NotCheckedEvent(reason):
            console.say(reason)
        case events.StartOverEvent(reason, names):
            restored = f"; restored {', '.join(names)}" if names else ""
            console.say(f"Starting over, {STOP_REASONS[reason]}{restored}")
        case events.DroppedResultsEvent():
            console.say("The context is full: dropped the oldest tool result from the conversation")
        case events.FinishedEvent(events.ANSWER, text):
            console.print_answer(text)
        case events.FinishedEvent(reason, text):
            if text:
                console.print_answer(text)
            console.say(f"Stopped: {STOP_REASONS[reason]}")


def format_call(call: Call) -> str:
    """Return a call as one line, without its middle if it is long."""
    from localspec.agent.permission import format_whole_call

    return _without_middle(visible(format_whole_call(call.name, call.arguments)))


def format_result(event: ToolResultEvent) -> str:
    """Return the first and last lines of what a tool returned: a program says at its end how it went."""
    lines = visible(event.text).splitlines() or [""]
    left_out = len(lines) - MAX_LINES
    if left_out > 1:
        lines[FIRST_LINES : FIRST_LINES + left_out] = [f"(... {left_out:,} lines ...)"]
    return "\n".join(f"  {_without_middle(line)}" for line in lines)


def _without_middle(line: str) -> str:
    """Return a line of at most about MAX_WIDTH characters: its beginning and its end."""
    left_out, half = len(line) - MAX_WIDTH, MAX_WIDTH // 2
    return line if left_out <= 0 else f"{line[:half]} (... {left_out:,} characters ...) {line[-half:]}"


def ask_permission(keyboard: Keyboard, tool: Tool, preview: str) -> Reply:
    """Show all of what a call would do, and ask; anything but a clear yes or always is a no.

    The question has the number of lines if they may not fit on the screen. Keys pressed before the question
    appeared do not answer it.
    """
    console.say(f"\n{tool.name} ({tool.access})\n{preview.rstrip()}\n")
    width, height = shutil.get_terminal_size()
    rows = sum(1 + len(line) // width for line in preview.rstrip().split("\n"))
    with keyboard.lent(as_before=True):
        keyboard.gather()  # for the next task,
        discard_input()  # or for nothing where there is none
        console.say((f"All {rows} lines are above. " if rows > height - 4 else "") + QUESTION, end="")
        try:
            word = input().strip().lower()
        except EOFError:
            word = ""
    return "always" if word in ("a", "always") else "yes" if word in ("y", "yes") else "no"


def show_change(preview: str) -> None:
    """Show a change that was allowed beforehand."""
    console.say(preview.rstrip(), console.DIM)


def discard_input() -> None:
    """Discard keys that were pressed and not read yet."""
    try:
        import termios
    except ImportError:  # Windows
        return
    with suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
