"""An agent at work on a task."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.cli.agent.display import show
from localspec.cli.agent.summary import format_stats_line, summary
from localspec.errors import LocalspecError

if TYPE_CHECKING:
    from localspec.agent.loop import Agent
    from localspec.agent.tools.folder import Folder
    from localspec.cli.agent.transcripts import Transcripts


@dataclass
class Worker:
    """An agent at work: shows what happens, and writes it to a transcript."""

    agent: Agent
    folder: Folder
    transcripts: Transcripts
    stats: bool
    lines: list[dict[str, Any]] = field(default_factory=list)  # of the current task

    def work(self, task: str, *, as_json: bool) -> bool:
        """Work on one task, with the files that it names in the prompt; return whether it is done."""
        from localspec.agent.events import ANSWER
        from localspec.agent.tools import toolbox

        prompt, names = toolbox.briefed(self.folder, task, self.agent.messages)
        if names:
            console.say(f"Files read with the task: {', '.join(names)}", console.DIM)
        self.lines = []
        self.folder.changes.begin()
        try:
            self._follow(prompt, task, quiet=as_json)
        finally:
            self.folder.changes.keep()
            if changed := self.folder.changes.lines():
                restore = "`/undo` or `localspec agent --undo` restores it"
                console.say(f"Changed: {', '.join(changed)}; {restore}")
        values = summary(self.agent.runtime, self.lines)
        if as_json:
            console.print_json(values)
        if self.stats:
            console.say(format_stats_line(values), console.DIM)
        return bool(values["finish_reason"] == ANSWER)

    def _follow(self, prompt: str, task: str, *, quiet: bool) -> None:
        """Run the agent and record each event; show it too unless `quiet`."""
        from localspec.agent import transcript

        waiting = console.Waiting()
        try:
            with closing(self.agent.run(prompt, task)) as events:
                for event, line in transcript.lines(events, task):
                    if line is not None:
                        self._record(line)
                    if not quiet:
                        show(event, waiting)
        except (KeyboardInterrupt, LocalspecError) as error:
            self._record(transcript.stopped_line(error, self.agent.messages))
            raise
        finally:
            waiting.clear()

    def _record(self, line: dict[str, Any]) -> None:
        self.lines.append(line)
        self.transcripts.write(line, self.agent.runtime.model.name)
