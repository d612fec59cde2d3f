"""`localspec agent`: a model that works in a folder."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from localspec.cli import console, options
from localspec.cli.chat import asked
from localspec.errors import LocalspecError, PromptError

if TYPE_CHECKING:
    from localspec.agent.folder import Folder
    from localspec.agent.loop import Agent, Event
    from localspec.agent.permission import Word
    from localspec.output.tool_calls import Call
    from localspec.runtime.generation import Runtime
    from localspec.tools import Tool

DEFAULT_MODEL = "qwen2.5-coder-1.5b"
HELP = """Let a model work in a folder: it reads and changes files and runs programs until the task is done.

What it wants to write, run or fetch is shown first, and you are asked; reading files of the folder is
allowed. Without a TASK it asks for one after another. Tools are kept to the folder, but a program that you
let it run is not: look at it."""
EPILOG = """Examples:

  localspec agent qwen2.5-coder-1.5b "Add a --verbose flag to hello.py and run it" --dir demo

  localspec agent qwen3-8b "Why does the test fail?" --tool read_file --tool run_shell --allow run

  localspec agent qwen3-8b --mcp mcp.json --tool mytools:look_up --transcript work.jsonl"""
LINE = 200  # characters of a call or a result that are shown
ASKING = "Allow this? [y]es, [n]o, [a]lways this tool: "


def agent(
    model: Annotated[str, typer.Argument(help="Which model works.")] = DEFAULT_MODEL,
    task: Annotated[str | None, typer.Argument(help="What to do.", show_default=False)] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            help="A tool's name, or MODULE:FUNCTION; may be repeated.", show_default="all that ship"
        ),
    ] = None,
    mcp: Annotated[
        Path | None, typer.Option(help="JSON file of MCP servers.", show_default=False, metavar="FILE")
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="The folder to work in.", metavar="PATH")] = Path(),
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Do not ask: read, write, run or fetch; may be repeated.", show_default="read"),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Allow everything.")] = False,
    max_steps: Annotated[int, typer.Option(min=1, help="Most answers of the model for one task.")] = 25,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of one answer.")] = 2048,
    system: Annotated[
        str | None, typer.Option(help="What the model is told first.", show_default="that it is an agent")
    ] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="How calls are written.", show_default="by the chat template")
    ] = None,
    draft: options.Draft = "auto",
    draft_length: options.DraftLengthPolicy = "adaptive",
    engine: options.Engine = "auto",
    device: options.Device = None,
    threads: options.Threads = None,
    prompt_cache: options.PromptCache = 2.0,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    transcript: Annotated[
        Path | None,
        typer.Option(help="Write what happens, a JSON object a line.", show_default=False, metavar="FILE"),
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print numbers after a task, on stderr.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Put an agent together from the options and give it the task."""
    task = asked(task)
    if not (task is None and on_terminal(sys.stdin)) and not (task or "").strip():
        raise PromptError("The task is empty", f'Type one: localspec agent {model} "..."')
    if task is None and as_json:
        raise PromptError("`--json` needs a task", f'Type one: localspec agent {model} "..." --json')
    from localspec.agent import toolbox
    from localspec.agent.folder import Folder
    from localspec.agent.loop import SYSTEM, Agent, check_dialect
    from localspec.agent.permission import HARMLESS, KINDS, Permission
    from localspec.agent.transcript import opened
    from localspec.chat import sampling_of
    from localspec.library import Library, Terminal
    from localspec.runtime.generation import Runtime
    from localspec.runtime.resolution import Choice

    given = {} if temperature is None else {"temperature": temperature}
    sampling_of({}, given)
    choice = Choice(engine, draft, draft_length, device=device, threads=threads)
    choice.check()
    check_dialect(tool_format)
    somebody = all(map(on_terminal, (sys.stdin, sys.stderr)))  # who can answer, and sees the question
    permission = Permission(KINDS if yes else [*HARMLESS, *(allow or ())], ask if somebody else None)
    library = Library()
    with ExitStack() as held:
        place = Folder(folder)
        tools = toolbox.chosen(place, tool)
        if mcp:
            from localspec.agent import mcp_servers

            tools += held.enter_context(mcp_servers.connected(mcp_servers.read(mcp)))
        out = held.enter_context(opened(transcript)) if transcript else None
        with Terminal() as progress:
            runtime = Runtime(model, choice, library, progress, prompts=int(1e9 * prompt_cache))
        worker = Agent(
            runtime,
            tools,
            permission,
            system=system or SYSTEM,
            tool_format=tool_format,
            sampling=sampling_of(runtime.model.generation() if temperature is None else {}, given),
            seed=seed,
            max_steps=max_steps,
            max_tokens=max_tokens,
        )
        if task is None:
            converse(worker, place, library.home / "tasks", out, stats)
        else:
            work(worker, place, task, out, as_json=as_json, stats=stats)


def on_terminal(stream: IO[str] | None) -> bool:
    """Tell whether a stream is one of a terminal; a closed one is None."""
    return stream is not None and stream.isatty()


def converse(worker: Agent, place: Folder, history: Path, out: IO[str] | None, stats: bool) -> None:
    """Ask for tasks until the end of the input."""
    from localspec.cli.talk.entry import Entry, paths

    said = f"{worker.runtime.model.name}. What is to be done? Ctrl-C stops it, Ctrl-D leaves."
    console.say(console.paint(said, console.DIM))
    entry = Entry(history, lambda line: paths(line.rpartition(" ")[2]))
    while True:
        try:
            task = entry.read()
        except KeyboardInterrupt:
            console.say("Ctrl-D leaves")
            continue
        except EOFError:
            console.say("")
            return
        if not task.strip():
            continue
        try:
            work(worker, place, task, out, as_json=False, stats=stats)
        except LocalspecError as error:
            console.show(error)
        except KeyboardInterrupt:
            console.say("\nStopped")


def work(worker: Agent, place: Folder, task: str, out: IO[str] | None, *, as_json: bool, stats: bool) -> None:
    """Work on one task, with the files that it names; show what happens, and write it to `out`."""
    from localspec.agent import toolbox, transcript

    whole, names = toolbox.briefed(place, task, worker.messages)
    if names:
        console.say(console.paint(f"Read beside the task: {', '.join(names)}", console.DIM))
    written: list[dict[str, Any]] = []
    waiting = console.Waiting()

    def note(line: dict[str, Any]) -> None:
        written.append(line)
        if out:
            transcript.write(out, line)

    try:
        with closing(worker.run(whole)) as events:
            for event, line in transcript.lines(events, task):
                if line is not None:
                    note(line)
                if not as_json:
                    show(event, waiting)
    except (KeyboardInterrupt, LocalspecError) as error:
        note(transcript.cut_off(error, worker.messages))
        raise
    finally:
        waiting.clear()
    if as_json:
        print(json.dumps(summary(worker.runtime, written), ensure_ascii=False))
    if stats:
        console.say(console.paint(in_words(summary(worker.runtime, written)), console.DIM))


def show(event: Event, waiting: console.Waiting) -> None:
    """Show one event: the answer on stdout, all else on stderr."""
    from localspec.agent.loop import ANSWER, Called, Dropped, Finished, Returned, Said, Working
    from localspec.agent.shell import visible

    if isinstance(event, Working):
        count = event.characters
        waiting.show(f"Writing a call, {count:,} characters so far" if count else "Reading")
        return
    waiting.clear()
    match event:
        case Said(text) if text:
            sys.stderr.write(console.paint(visible(text), console.DIM))
            sys.stderr.flush()
        case Called(call):
            console.say(console.paint(f"\N{RIGHTWARDS ARROW} {shortly(call)}", console.CYAN))
        case Returned():
            lines = visible(event.text).splitlines() or [""]
            more = f" (and {len(lines) - 6} lines more)" if len(lines) > 6 else ""
            text = "\n".join(f"  {line[:LINE]}" for line in lines[:6])
            console.say(console.paint(text + more, console.RED if event.failed else console.DIM))
        case Dropped():
            console.say("The context is full: the oldest result of a tool is left out of the conversation")
        case Finished(reason, text):
            if reason == ANSWER:
                print(visible(text) if sys.stdout.isatty() else text, flush=True)
            else:
                console.say(f"Stopped: {WHY[reason]}")


WHY = {
    "max_steps": "that were the most answers that `--max-steps` allows",
    "repeated": "the model makes the same call again and again",
    "length": "an answer was longer than `--max-tokens` allows",
}


def ask(tool: Tool, preview: str) -> Word:
    """Show what a call would do and ask; anything but a clear word is a no.

    What was typed before the question was no answer to it.
    """
    from localspec.agent.shell import visible

    console.say(f"\n{tool.name} ({tool.access})\n{visible(preview).rstrip()}\n")
    forget_typed()
    sys.stderr.write(ASKING)
    sys.stderr.flush()
    try:
        word = input().strip().lower()
    except EOFError:
        word = ""
    return "always" if word in ("a", "always") else "yes" if word in ("y", "yes") else "no"


def forget_typed() -> None:
    """Drop what stands unread on the terminal."""
    try:
        import termios
    except ImportError:  # Windows
        return
    with suppress(termios.error):
        termios.tcflush(sys.stdin, termios.TCIFLUSH)


def shortly(call: Call) -> str:
    """Return a call as one line."""
    from localspec.agent.permission import written
    from localspec.agent.shell import visible

    line = visible(written(call.name, call.arguments))
    return line if len(line) <= LINE else f"{line[:LINE]} ..."


def summary(runtime: Runtime, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a task came to as one JSON object; times are in seconds."""
    answers = [line for line in lines if line["event"] == "answer"]
    results = [line for line in lines if line["event"] == "result"]
    tokens, drafted = sum(one["tokens"] for one in answers), sum(one["drafted"] for one in answers)
    accepted = sum(one["accepted"] for one in answers)
    last = lines[-1]
    return {
        "answer": last.get("text", ""),
        "finish_reason": last.get("reason", "interrupted"),
        "steps": len(answers),
        "calls": len(results),
        "failed_calls": sum(one["failed"] for one in results),
        "tokens": tokens,
        "seconds": round(sum(one["seconds"] for one in answers), 4),
        "prompt_seconds": round(sum(one["prompt_seconds"] for one in answers), 4),
        "tool_seconds": round(sum(one["seconds"] for one in results), 4),
        "speculation": {
            "drafter": str(runtime.draft_spec),
            "drafted": drafted,
            "accepted": accepted,
            "tokens_per_pass": round(tokens / max(tokens - accepted, 1), 3),
        },
        "model": runtime.model.name,
        "engine": str(runtime.engine_spec),
        "transcript": lines,
    }


def in_words(values: dict[str, Any]) -> str:
    """Return the line that `--stats` prints."""
    guesses = values["speculation"]
    reading, writing = values["prompt_seconds"], values["seconds"] - values["prompt_seconds"]
    return " | ".join(
        [
            f"{values['steps']} answers, {values['calls']} calls ({values['failed_calls']} failed)",
            f"prompts read in {reading:.1f} s, {values['tokens']} tokens written in {writing:.1f} s",
            f"{guesses['drafter']} guessed {guesses['drafted']}, {guesses['accepted']} stood,"
            f" {guesses['tokens_per_pass']:.2f} tokens a pass",
            f"tools took {values['tool_seconds']:.1f} s",
        ]
    )
