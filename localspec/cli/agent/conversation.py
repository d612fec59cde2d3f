"""One task after another, in one conversation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.agent.commands import complete, is_command, run_command
from localspec.cli.talk.entry import Entry, each_text
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.cli.agent.worker import Worker
    from localspec.cli.talk.terminal.keyboard import Keyboard


def converse(worker: Worker, history: Path, keyboard: Keyboard) -> None:
    """Ask for tasks until the end of the input; what is typed during one waits for the next."""
    name = worker.agent.runtime.model.name
    console.say(f"{name}. Type a task. Ctrl-C stops it, Ctrl-D leaves.", console.DIM)
    entry = Entry(history, complete, keyboard)
    for task in filter(str.strip, each_text(entry)):
        try:
            if is_command(task):
                if not run_command(task.strip(), worker):
                    return
            else:
                worker.work(task, as_json=False)
        except LocalspecError as error:
            console.show(error)
        except KeyboardInterrupt:
            console.say("\nStopped")
            keyboard.drop()
