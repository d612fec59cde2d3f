"""`localspec agent`: a model that works in a folder."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

import typer

from localspec.cli import console, options
from localspec.cli.agent.display import ask_permission, show_change
from localspec.cli.agent.options import PANELS, AgentOptions, on_terminal
from localspec.cli.agent.transcripts import Transcripts, show_tasks
from localspec.cli.agent.undo import transcript_file, undo_file, undo_last
from localspec.cli.agent.worker import Worker
from localspec.cli.prompt import read_prompt, say_model
from localspec.cli.talk.terminal.keyboard import Keyboard

if TYPE_CHECKING:
    from localspec.agent.loop import Agent
    from localspec.agent.permission import Permission
    from localspec.agent.resume import Conversation
    from localspec.agent.tools.folder import Folder
    from localspec.runtime.generation import Runtime
    from localspec.tools import Tool

NOT_DONE = 3  # exit code of a task that ended without an answer, or without one that passes its checks
HELP = """Let a model work in a folder: it reads and changes files and runs programs until the task is done.

It shows what it is about to write, run or fetch, and asks; reading files in the folder is allowed. Without a
TASK it asks for one after another. Its tools cannot leave the folder, but a program that you let it run can:
look at it first.

A lone argument is the TASK if it has a blank or ends in `?`, `.` or `!`, unless it is a path. The default
model, which `localspec config set agent.model NAME` changes, then works on it."""
EPILOG = """Examples:

  localspec agent "Why does test.py fail?"

  localspec agent qwen2.5-coder-1.5b "Add a flag to hello.py" --dir demo

  localspec agent qwen3-8b "Why does the test fail?" --allow run

  localspec agent qwen3-8b --mcp mcp.json --tool mytools:look_up"""


@options.panels(PANELS)
@options.command
def agent(given: AgentOptions) -> None:
    """Check the options, load the model, and work on the task, or on one after another."""
    if given.undo:
        given.check_undo()
        undo_last(given.folder)
        return
    given = given.with_task_first()
    task = read_prompt(given.task)
    given.check_task(task)
    with Keyboard(wanted=task is None) as keyboard:
        run(given, task, keyboard)


def run(given: AgentOptions, task: str | None, keyboard: Keyboard) -> None:
    """Load the model, then work on the task, or on one after another when it is None."""
    from localspec.agent import resume
    from localspec.agent.tools.folder import Folder
    from localspec.cli.progress import Terminal
    from localspec.library import Library
    from localspec.runtime.generation import Runtime

    choice = given.parts()
    permission = permission_of(given, keyboard)
    library = Library()
    kept = transcript_file(library.home, given.folder)
    conversation = resume.read(given.transcript or kept) if given.resume else None
    model = model_of(given, conversation, task)
    with ExitStack() as stack:
        folder = Folder(given.folder, undo_file(library.home, given.folder))
        tools = tools_of(given, folder, stack)
        out = Transcripts(stack, kept, given.transcript, continues=given.resume)
        with Terminal() as progress:
            cache = int(1e9 * given.prompt_cache)
            runtime = Runtime.load(model, choice, library, progress, prompt_cache_bytes=cache)
        worker = Worker(make_agent(runtime, tools, permission, given, folder), folder, out, given.stats)
        if conversation:
            show_tasks(conversation)
            worker.agent.messages += conversation.messages
        if task is None:
            from localspec.cli.agent.conversation import converse

            converse(worker, library.home / "tasks", keyboard)
        elif not worker.work(task, as_json=given.as_json):
            raise typer.Exit(NOT_DONE)


def model_of(given: AgentOptions, conversation: Conversation | None, task: str | None) -> str:
    """Return the model that works: the one that was given, that of the conversation, or the default one."""
    if given.model:
        if conversation and conversation.model != given.model:
            console.say(f"`{conversation.model}` began this conversation; `{given.model}` continues it")
        return given.model
    model = conversation.model if conversation else given.default_model
    if task is not None:
        say_model(model, "the model of the conversation" if conversation else "the default model")
    return model


def permission_of(given: AgentOptions, keyboard: Keyboard) -> Permission:
    """Return the permission; the user is asked where a terminal can show the question."""
    from localspec.agent.permission import EVERYTHING, HARMLESS, Permission

    interactive = all(map(on_terminal, (sys.stdin, sys.stderr)))
    allowed = [*(EVERYTHING if given.yes else HARMLESS), *(given.allow or ())]
    return Permission(allowed, partial(ask_permission, keyboard) if interactive else None, show_change)


def tools_of(given: AgentOptions, folder: Folder, stack: ExitStack) -> list[Tool]:
    """Return the chosen tools and those of the MCP servers, which `stack` ends."""
    from localspec.agent.tools import toolbox

    tools = toolbox.chosen(folder, given.tool)
    if given.mcp:
        from localspec.agent.loop_guard import FINAL
        from localspec.agent.tools.mcp import servers as mcp_servers

        taken = [FINAL, *(tool.name for tool in tools)]
        servers = mcp_servers.read_servers(given.mcp)
        tools += stack.enter_context(mcp_servers.connected(servers, taken=taken, say=console.say))
    return tools


def make_agent(
    runtime: Runtime, tools: list[Tool], permission: Permission, given: AgentOptions, folder: Folder
) -> Agent:
    """Return the agent that the options describe."""
    from localspec.agent.loop import SYSTEM, Agent
    from localspec.runtime.choice import sampling_of

    defaults = runtime.model.sampling_defaults() if given.temperature is None else {}
    return Agent(
        runtime,
        tools,
        permission,
        folder=folder,
        system=given.system or SYSTEM,
        tool_format=given.tool_format,
        sampling=sampling_of(defaults, given.sampling),
        seed=given.seed,
        max_steps=given.max_steps,
        max_tokens=given.max_tokens,
    )
