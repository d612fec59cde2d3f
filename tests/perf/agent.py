"""Run an agent's tasks with and without a draft: how many are solved, is the transcript the same, how fast.

    python tests/perf/agent.py MODEL [--draft SPEC] [--engine NAME] [--task NAME]... [--once] [--show]
                                     [--prompt-cache GB]

Every task is done by turns, plain and with the draft, each in a folder and with a cache of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from localspec.agent.events import (
    AnswerEvent,
    Event,
    FinishedEvent,
    ToolCallEvent,
    ToolResultEvent,
    WaitingEvent,
)
from localspec.agent.loop import DEFAULT_MAX_STEPS, DEFAULT_MAX_TOKENS, Agent
from localspec.agent.permission import EVERYTHING, Permission
from localspec.agent.tools import toolbox
from localspec.agent.tools.folder import Folder
from localspec.cli.progress import Terminal
from localspec.library import Library
from localspec.runtime.choice import Choice
from localspec.runtime.generation import Runtime
from localspec.state import prompt_cache as kept

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
import agent_tasks  # noqa: E402

SUITE = Path(__file__).parents[2] / "suites" / "agent.toml"


def done(runtime: Runtime, task: agent_tasks.Task, steps: int, show: bool) -> dict[str, Any]:
    """Have the agent do a task in a new folder; return what came of it."""
    runtime.forget()
    folder = Path(tempfile.gettempdir()) / f"localspec-{task.name}"  # the same each time: tracebacks have it
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    task.lay_out(folder)
    place = Folder(folder)
    agent = Agent(
        runtime,
        toolbox.built_in(place),
        Permission(EVERYTHING),
        folder=place,
        max_steps=steps,
        max_tokens=DEFAULT_MAX_TOKENS,
    )
    events: list[Event] = []
    for event in agent.run(toolbox.briefed(place, task.text)[0], task.text):
        events.append(event)
        if show and not isinstance(event, (AnswerEvent, WaitingEvent)):
            print("   ", repr(event)[:600])
    last = events[-1]
    assert isinstance(last, FinishedEvent)
    answers = [one.answer for one in events if isinstance(one, AnswerEvent)]
    solved = task.solved(folder, last.text)
    shutil.rmtree(folder, ignore_errors=True)
    return {
        "solved": solved,
        "reason": last.reason,
        "steps": len(answers),
        "calls": sum(isinstance(one, ToolCallEvent) for one in events),
        "failed": sum(isinstance(one, ToolResultEvent) and one.failed for one in events),
        "tokens": [one.token_ids for one in answers],
        "decode": sum(one.seconds - one.prompt_seconds for one in answers),
        "seconds": sum(one.seconds for one in answers),
    }


def main() -> None:
    """Run the tasks and print a line each, then the sums."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--draft", default="auto")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--device")
    parser.add_argument("--task", action="append")
    parser.add_argument("--once", action="store_true", help="with the draft alone")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--steps", type=int, default=DEFAULT_MAX_STEPS)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--prompt-cache", type=float, default=0.0, metavar="GB")
    options = parser.parse_args()
    prompts = int(1e9 * options.prompt_cache)
    with Terminal() as progress:
        runtimes = {
            "draft": Runtime.load(
                options.model,
                Choice(options.engine, options.draft, device=options.device),
                Library(),
                progress,
                prompt_cache_bytes=prompts,
            )
        }
        if not options.once:
            shared = runtimes["draft"].engines
            engine = str(runtimes["draft"].resolution.target.spec)  # another one writes other texts
            runtimes["plain"] = Runtime.load(
                options.model,
                Choice(engine, "off", device=options.device),
                Library(),
                progress,
                shared,
                prompts,
            )
    rows = []
    if prompts:  # what is the same for all tasks is on disk when they begin
        done(runtimes["draft"], agent_tasks.read(SUITE)[0], 1, show=False)
        kept.SLOW = math.inf  # and nothing else, whoever comes first
    for number, task in enumerate(agent_tasks.read(SUITE)):
        if options.task and task.name not in options.task:
            continue
        order = list(runtimes) if number % 2 else list(reversed(runtimes))
        row = {name: done(runtimes[name], task, options.steps, options.show) for name in order}
        rows.append({"task": task.name, **row})
        print(task.name, {name: {k: v for k, v in one.items() if k != "tokens"} for name, one in row.items()})
    for name in runtimes:
        print(f"{name}: {sum(row[name]['solved'] for row in rows)} of {len(rows)} solved")
    if not options.once:
        print("same transcripts:", sum(row["plain"]["tokens"] == row["draft"]["tokens"] for row in rows))
        for key in ("decode", "seconds"):
            ratios = [row["plain"][key] / row["draft"][key] for row in rows]
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            total = sum(row["plain"][key] for row in rows) / sum(row["draft"][key] for row in rows)
            print(f"{key}: {mean:.2f} times as fast (geometric mean), {total:.2f} in all")
    if options.keep:
        options.keep.write_text(json.dumps(rows), "utf-8")


if __name__ == "__main__":
    main()
