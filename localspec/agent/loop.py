"""The loop of an agent: the model calls tools and reads their results until it answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Annotated, Any

from localspec import plugins
from localspec.agent import events
from localspec.agent.events import Event, FinishedEvent, ToolResultEvent
from localspec.agent.loop_guard import FINAL, LoopGuard
from localspec.agent.permission import NotAllowed, Permission
from localspec.agent.tools.files import shortened
from localspec.agent.turn import Turn, call_id, parse_turn
from localspec.chat import opens_thought
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, ContextFull, EmptyPrompt, PromptError, UnknownName, suggestion
from localspec.output.tool_calls import Call
from localspec.output.tool_format import ToolFormat
from localspec.output.visible import visible
from localspec.runtime.generation import Runtime
from localspec.tools import Tool, ToolFailed, tool

DEFAULT_MAX_STEPS = 25
DEFAULT_MAX_TOKENS = 2048  # of one answer
SYSTEM = (
    "You work in the user's folder by calling tools, one at a time. Asked a question, find the answer in the"
    " files, then call final_answer. Asked for a change, call edit_file or write_file for every file that"
    " must change, check it, then call final_answer."
)
RETRY_TEMPERATURE = 0.8  # of a greedy model that has repeated a call
INTERRUPTED_RESULT = "(stopped by the user)"
DROPPED_RESULT = "(left out: there was no more room for it)"


def final_answer(answer: Annotated[str, "what to tell the user"]) -> str:
    """Tell the user the answer, or what was done, once the task is done."""
    return answer


class Agent:
    """A model with tools, and one conversation for all tasks.

    A grammar constrains its answers to complete calls of its tools, with arguments of the right types. The
    model reads what a tool raises as its result.
    """

    def __init__(
        self,
        runtime: Runtime,
        tools: Sequence[Tool],
        permission: Permission,
        *,
        system: str = SYSTEM,
        tool_format: str | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Raise BadValue for two tools of one name, PromptError for a model without a chat template."""
        self.runtime = runtime
        self.tools = by_name([*tools, tool(final_answer)])
        template = runtime.model.template()
        if template is None:
            raise PromptError(
                f"`{runtime.model.name}` has no chat template, which an agent needs",
                "Choose a model that was trained to chat",
            )
        self._template = template
        self._permission = permission
        self.tool_format_name = tool_format or tool_format_of(template.with_tools or template.source)
        self._tool_format: ToolFormat = plugins.part("tool_formats", self.tool_format_name).made_by()
        self._schemas = [known.schema for known in self.tools.values()]
        self._sampling = sampling or Sampling()
        self._seed = seed
        self._max_steps = max_steps
        self._max_tokens = max_tokens
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def run(self, task: str) -> Generator[Event, None, None]:
        """Work on a task and yield what happens; the last event is a FinishedEvent.

        Raises EmptyPrompt, and ContextFull when even short results do not fit. The conversation keeps the
        messages written so far.
        """
        if not task.strip():
            raise EmptyPrompt
        self.messages.append({"role": "user", "content": task})
        guard = LoopGuard()
        for _ in range(self._max_steps):
            turn = yield from self._answer(guard)
            final = next((call for call in turn.calls if call.name == FINAL), None)
            if final is not None:
                text = str(final.arguments["answer"])
                self.messages[-1] = {"role": "assistant", "content": text}
                yield FinishedEvent(events.ANSWER, text)
                return
            if not turn.calls:
                yield FinishedEvent(events.LENGTH, turn.text.strip())
                return
            yield from self._run_calls(turn.calls, guard)
            if guard.stuck:
                yield FinishedEvent(events.REPEATED, "")
                return
        yield FinishedEvent(events.MAX_STEPS, "")

    def _answer(self, guard: LoopGuard) -> Generator[Event, None, Turn]:
        """Have the model answer; the turn becomes a message even when it is interrupted."""
        prompt = yield from self._prompt()
        inside = opens_thought(self.runtime, prompt)
        answer, steps = self.runtime.answer(
            prompt,
            sampling=self._sampling_for(guard),
            seed=self._seed if self._seed is not None or self._sampling.temperature else guard.repeats,
            max_tokens=self._max_tokens,
            grammar=self._grammar(inside, guard.barred),
            special=True,
            marks=self.runtime.thought_marks.tokens,
        )
        turn = Turn()
        yield events.WaitingEvent(0)
        try:
            with closing(steps):
                pieces = ((step.text, step.marks) for step in steps)
                yield from parse_turn(pieces, self._tool_format, turn, inside, self.runtime.thought_marks)
        finally:
            self.messages.append(turn.message())
        yield events.AnswerEvent(answer)
        return turn

    def _sampling_for(self, guard: LoopGuard) -> Sampling:
        """Return the sampling of the next answer: a greedy model that repeats its calls samples."""
        greedy = self._sampling.temperature == 0
        return (
            replace(self._sampling, temperature=RETRY_TEMPERATURE)
            if greedy and guard.repeats
            else self._sampling
        )

    def _grammar(self, inside: bool, barred: Collection[str]) -> str:
        token_id = self.runtime.tokenizer.token_to_id
        offered = [known for known in self.tools.values() if known.name not in barred]
        schemas = [known.schema_now for known in offered or self.tools.values()]
        return self._tool_format.grammar(schemas, token_id, must=True, inside=inside)

    def _prompt(self) -> Generator[Event, None, list[int]]:
        """Return the prompt of the next answer; the oldest results are dropped until it fits."""
        context = self.runtime.engine.context
        min_room = min(self._max_tokens, context // 8)
        render = partial(self._tool_format.render, self._template.render)
        while True:
            prompt = self.runtime.model.encode_chat(self.messages, self._schemas, render)
            if len(prompt) + min_room <= context:
                return prompt
            oldest = self._oldest_result()
            if oldest is None:
                raise ContextFull(len(prompt), context)
            oldest["content"] = DROPPED_RESULT
            yield events.DroppedResultsEvent(1)

    def _oldest_result(self) -> dict[str, Any] | None:
        results = (message for message in self.messages if message["role"] == "tool")
        return next((result for result in results if len(result["content"]) > len(DROPPED_RESULT)), None)

    def _run_calls(self, calls: Sequence[Call], guard: LoopGuard) -> Generator[Event, None, None]:
        results = [
            {
                "role": "tool",
                "name": call.name,
                "tool_call_id": call_id(number),
                "content": INTERRUPTED_RESULT,
            }
            for number, call in enumerate(calls)
        ]
        self.messages += results  # before any call runs: Ctrl-C may leave calls without a result
        for call, message in zip(calls, results, strict=True):
            yield events.ToolCallEvent(call)
            result = self._run_call(call, guard)
            message["content"] = result.text
            guard.note(result, self.tools.get(call.name))
            yield result

    def _run_call(self, call: Call, guard: LoopGuard) -> ToolResultEvent:
        """Run a call if it is allowed; an error is its result."""
        started = perf_counter()
        failed, allowed = False, True
        try:
            called = self._tool(call)
            guard.check(call, called)
            called.check(call.arguments)
            self._permission.check(called, call.arguments)
            started = perf_counter()
            text = as_text(called.run(**call.arguments))
        except NotAllowed as error:
            text, failed, allowed = format_error(error), True, False
        except ToolFailed as error:
            text, failed = format_error(error), True
        except (Exception, SystemExit) as error:  # a tool is foreign code and may raise anything
            text, failed = f"error: {type(error).__name__}: {error}", True
        text = shortened(visible(text))
        return ToolResultEvent(call, text, failed, allowed, perf_counter() - started)

    def _tool(self, call: Call) -> Tool:
        if call.name not in self.tools:
            raise ToolFailed(f"There is no tool `{call.name}`", suggestion(call.name, self.tools))
        return self.tools[call.name]


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    """Return tools by name; raises BadValue for two of one name."""
    names = [known.name for known in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadValue(f"Two tools are called `{twice}`", "Leave one of them out")
    return dict(zip(names, tools, strict=True))


def tool_format_of(template: str) -> str:
    """Return the tool-call format whose marks a chat template contains, or else `json`."""
    for name, part in plugins.parts("tool_formats").items():
        if any(mark in template for mark in part.made_by.marks):
            return name
    return "json"


def as_text(value: Any) -> str:
    """Return a tool's result as the text that the model reads."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def format_error(error: ToolFailed) -> str:
    """Return an error as the text that the model reads."""
    return f"error: {error.message}" + (f". {error.hint}" if error.hint else "")


def check_tool_format(name: str | None) -> None:
    """Raise UnknownName for a tool-call format that does not exist."""
    names = plugins.names("tool_formats")
    if name is not None and name not in names:
        raise UnknownName(f"Unknown tool-call format `{name}`", name, names)
