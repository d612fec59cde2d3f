"""The options of `localspec agent`, and the checks that need no model."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import completion, options
from localspec.cli.prompt import is_prompt
from localspec.errors import BadValue, PromptError

if TYPE_CHECKING:
    from localspec.runtime.choice import Choice

DEFAULT_MODEL = "qwen2.5-coder-1.5b"


PANELS = {
    options.MODEL: ("system", "tool_format"),
    "Tools": ("tool", "mcp", "folder", "allow", "yes", "undo"),
    options.ANSWER: ("max_steps", "max_tokens", "temperature", "seed"),
    options.DRAFT: ("draft", "draft_length"),
    options.MACHINE: ("engine", "device", "threads", "prompt_cache"),
    options.OUTPUT: ("resume", "transcript", "stats", "as_json"),
}


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """Arguments and options of `localspec agent`, in the order of its help."""

    model: Annotated[
        str | None,
        typer.Argument(
            help="Model that works on the task.",
            autocompletion=completion.models,
            show_default=DEFAULT_MODEL,
            metavar="MODEL",
        ),
    ] = None
    task: Annotated[str | None, typer.Argument(help="Task to do.", show_default=False, metavar="TASK")] = None
    default_model: options.DefaultModel = DEFAULT_MODEL
    system: Annotated[
        str | None,
        typer.Option(help="System prompt.", metavar="TEXT", show_default="an agent's", callback=options.text),
    ] = None
    tool_format: Annotated[
        str | None,
        typer.Option(help="Tool-call format.", metavar="NAME", show_default="by the chat template"),
    ] = None
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="A tool, or MODULE:FUNCTION; may be repeated.", metavar="NAME", show_default="all built-in"
        ),
    ] = None
    mcp: Annotated[
        Path | None, typer.Option(help="JSON file of MCP servers.", show_default=False, metavar="FILE")
    ] = None
    folder: Annotated[Path, typer.Option("--dir", help="Folder to work in.", metavar="PATH")] = Path()
    allow: Annotated[
        list[str] | None,
        typer.Option(
            help="Allow read (the default), write, test, run, fetch or local unasked; may be repeated.",
            metavar="KIND",
            show_default=False,
        ),
    ] = None
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the files that the last task in the folder has written.")
    ] = False
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Allow everything but `test`.")] = False
    max_steps: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum answers for one task.")] = 25
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum tokens of one answer.")] = 2048
    temperature: options.Temperature = None
    seed: options.Seed = None
    draft: options.Draft = "auto"
    draft_length: options.DraftLengthPolicy = "adaptive"
    engine: options.Engine = "auto"
    device: options.Device = None
    threads: options.Threads = None
    prompt_cache: options.PromptCache = 2.0
    transcript: Annotated[
        Path | None,
        typer.Option(
            help="Append every event to this file, one JSON object a line.",
            show_default=False,
            metavar="FILE",
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--continue",
            "-c",
            help="Continue the folder's last conversation, or that of `--transcript`.",
        ),
    ] = False
    stats: Annotated[bool, typer.Option("--stats", help="Print statistics after a task, on stderr.")] = False
    as_json: options.AsJson = False

    @property
    def sampling(self) -> dict[str, Any]:
        """The sampling settings that were given."""
        return {} if self.temperature is None else {"temperature": self.temperature}

    def with_task_first(self) -> AgentOptions:
        """Return options in which a lone argument is the task, if it reads as one."""
        if self.task is None and is_prompt(self.model):
            return replace(self, model=None, task=self.model)
        return self

    def check_undo(self) -> None:
        """Raise BadValue for a task beside `--undo`, which would not be done."""
        if self.model or self.task:
            raise BadValue("`--undo` stands alone, or with `--dir`", "Leave the model and the task out")

    def check_task(self, task: str | None) -> None:
        """Raise PromptError for an empty task, or for none without a terminal to type one."""
        shown = self.model or self.default_model
        if not (task is None and on_terminal(sys.stdin)) and not (task or "").strip():
            raise PromptError("The task is empty", f'Type one: localspec agent {shown} "..."')
        if task is None and self.as_json:
            raise PromptError("`--json` needs a task", f'Type one: localspec agent {shown} "..." --json')

    def parts(self) -> Choice:
        """Return the chosen parts; raises UnknownName or BadValue for a wrong part or sampling setting."""
        from localspec.agent.loop import check_tool_format
        from localspec.runtime.choice import Choice, sampling_of

        sampling_of({}, self.sampling)
        choice = Choice(self.engine, self.draft, self.draft_length, device=self.device, threads=self.threads)
        choice.check()
        check_tool_format(self.tool_format)
        return choice


def on_terminal(stream: IO[str] | None) -> bool:
    """Return whether a stream is a terminal; a closed one is None."""
    return stream is not None and stream.isatty()
