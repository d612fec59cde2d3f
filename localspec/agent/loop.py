"""The loop of an agent: the model answers or calls tools, reads what they return, and goes on."""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Annotated, Any, NamedTuple

from localspec import plugins
from localspec.agent.files import shortened
from localspec.agent.permission import NotAllowed, Permission
from localspec.chat import opens_thought
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, ContextFull, EmptyPrompt, PromptError, UnknownName, suggestion
from localspec.output.reasoning import ReasoningParser
from localspec.output.reasoning import Said as Thought
from localspec.output.tool_calls import Call, ToolFormat
from localspec.runtime.generation import Answer, Runtime
from localspec.tools import Tool, ToolFailed, tool

STEPS = 25
TOKENS = 2048  # most of one answer
FINAL = "final_answer"  # every answer is a call: the last one, of this tool
SYSTEM = (
    "You work in the user's folder by calling tools, one at a time. Asked a question, find the answer in the"
    " files, then call final_answer. Asked for a change, call edit_file or write_file for every file that"
    " must change, check it, then call final_answer."
)
TRIES = 3  # failed calls in a row until the model may give up
ASTRAY = 0.8  # temperature of a model that makes the same call again
AGAIN = 6  # calls that were made before, until it is stopped
CHANGING = ("write", "run")  # access after which another call may return something else
STOPPED = "(stopped by the user)"
OUT_OF_ROOM = "(left out: there was no more room for it)"
ANSWER, STEPS_GONE, REPEATED, LENGTH = "answer", "max_steps", "repeated", "length"


def final_answer(answer: Annotated[str, "what to tell the user"]) -> str:
    """Tell the user the answer, or what was done, once the task is done."""
    return answer


class Said(NamedTuple):
    """A piece of what the model says, or thinks."""

    text: str
    thought: bool = False


class Working(NamedTuple):
    """There is nothing to show yet: the model reads (0), or has written so much of what is no whole call."""

    characters: int


class Called(NamedTuple):
    """A call that the model made, before it is allowed and run."""

    call: Call


class Returned(NamedTuple):
    """What a call returned, or why it failed."""

    call: Call
    text: str
    failed: bool
    allowed: bool
    seconds: float


class Stepped(NamedTuple):
    """One answer of the model, when it has ended."""

    answer: Answer


class Dropped(NamedTuple):
    """Results of tools that were left out of the conversation, because its context was full."""

    results: int


class Finished(NamedTuple):
    """The end: why, and what the model said last."""

    reason: str
    text: str


Event = Said | Working | Called | Returned | Stepped | Dropped | Finished


@dataclass(slots=True)
class Turn:
    """What one answer of the model amounts to."""

    said: str = ""
    thought: str = ""
    calls: list[Call] = field(default_factory=list)

    def message(self) -> dict[str, Any]:
        """Return the answer as chat templates know it."""
        calls = [
            {
                "id": f"call{at:05d}",
                "type": "function",
                "function": {"name": one.name, "arguments": one.arguments},
            }
            for at, one in enumerate(self.calls)
        ]
        found: dict[str, Any] = {"role": "assistant", "content": self.said.strip()}
        found |= {"reasoning_content": self.thought.strip()} if self.thought.strip() else {}
        return found | ({"tool_calls": calls} if calls else {})


class LoopGuard:
    """How a task goes: which tools the next answer may not call, so that small models do not run in circles.

    After a call that failed the model tries again before it may give up, and a call that would return the
    same once more is not run: it has to be another one. `stuck` tells that this happened too often.
    """

    def __init__(self) -> None:
        self.barred: set[str] = set()
        self._failures = 0  # in a row
        self._made: list[Call] = []  # since something was changed
        self.again = 0  # calls that were made before

    @property
    def stuck(self) -> bool:
        """Tell whether the model makes the same calls again and again."""
        return self.again >= AGAIN

    def check(self, call: Call) -> None:
        """Raise ToolFailed for a call that was made before, and nothing has changed since."""
        if call in self._made:
            self.again += 1
            raise ToolFailed(
                "You did exactly this before, and it would come out the same", "Do the next thing"
            )

    def note(self, result: Returned, called: Tool | None) -> None:
        """Take in what a call returned."""
        again = result.call in self._made
        if called and called.access in CHANGING and not result.failed:
            self._made = []
        self._made.append(result.call)
        self._failures = self._failures + 1 if result.failed and result.allowed else 0
        self.barred = {FINAL} if 0 < self._failures <= TRIES else set()
        if again:
            self.barred |= {result.call.name}


class Agent:
    """A model with tools. Its conversation goes on from task to task; what was read once is not read again.

    What the model may write is held to the grammar of its tools, so a call is always whole and names a tool
    with arguments of the right form. What a tool raises is told to the model.
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
        max_steps: int = STEPS,
        max_tokens: int = TOKENS,
    ) -> None:
        """Raise BadValue for two tools of one name, PromptError for a model without a chat template."""
        self.runtime = runtime
        tools = [*tools, tool(final_answer)]
        self.tools = {one.name: one for one in tools}
        if len(self.tools) < len(tools):
            names = [one.name for one in tools]
            twice = next(name for name in names if names.count(name) > 1)
            raise BadValue(f"There are two tools called `{twice}`", "Leave one of them out")
        template = runtime.model.template()
        if template is None:
            raise PromptError(
                f"`{runtime.model.name}` has no chat template, which an agent needs",
                "Choose a model that was trained to chat",
            )
        self._template = template
        self._permission = permission
        self.tool_format_name = tool_format or chosen(template.with_tools or template.source)
        self._tool_format: ToolFormat = plugins.part("tool_formats", self.tool_format_name).made_by()
        self._schemas = [one.schema for one in tools]
        self._sampling = sampling or Sampling()
        self._seed = seed
        self._max_steps = max_steps
        self._max_tokens = max_tokens
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def run(self, task: str) -> Generator[Event, None, None]:
        """Work on a task and yield what happens; the last event is Finished.

        Raises EmptyPrompt, and ContextFull when not even short results leave room. The conversation keeps
        what was said until then.
        """
        if not task.strip():
            raise EmptyPrompt
        self.messages.append({"role": "user", "content": task})
        guard = LoopGuard()
        for _ in range(self._max_steps):
            turn = yield from self._step(guard)
            if not turn.calls:
                yield Finished(LENGTH, turn.said.strip())
                return
            final = next((call for call in turn.calls if call.name == FINAL), None)
            if final is not None:
                text = str(final.arguments["answer"])
                self.messages[-1] = {"role": "assistant", "content": text}
                yield Finished(ANSWER, text)
                return
            results = [
                {"role": "tool", "name": call.name, "tool_call_id": f"call{at:05d}", "content": STOPPED}
                for at, call in enumerate(turn.calls)
            ]
            self.messages += results  # whole from the start: Ctrl-C may end the turn at any call
            for call, message in zip(turn.calls, results, strict=True):
                yield Called(call)
                result = self._result(call, guard)
                message["content"] = result.text
                guard.note(result, self.tools.get(call.name))
                yield result
            if guard.stuck:
                yield Finished(REPEATED, "")
                return
        yield Finished(STEPS_GONE, "")

    def _step(self, guard: LoopGuard) -> Generator[Event, None, Turn]:
        """Have the model answer; the turn becomes a message, however far it got."""
        prompt = yield from self._prompt()
        inside = opens_thought(self.runtime, prompt)
        answer, steps = self.runtime.answer(
            prompt,
            sampling=self._sampling_of(guard),
            seed=self._seed if self._seed is not None or self._sampling.temperature else guard.again,
            max_tokens=self._max_tokens,
            grammar=self._grammar(inside, guard.barred),
            special=True,
        )
        turn = Turn()
        yield Working(0)
        try:
            with closing(steps):
                yield from reading((last.text for last in steps), self._tool_format, turn, inside)
        finally:
            self.messages.append(turn.message())
        yield Stepped(answer)
        return turn

    def _sampling_of(self, guard: LoopGuard) -> Sampling:
        """Return how the next answer is chosen: who runs in circles at temperature 0 draws it."""
        greedy = self._sampling.temperature == 0
        return replace(self._sampling, temperature=ASTRAY) if greedy and guard.again else self._sampling

    def _grammar(self, inside: bool, barred: Collection[str]) -> str:
        token = self.runtime.tokenizer.token_to_id
        offered = [one for one in self.tools.values() if one.name not in barred] or self.tools.values()
        return self._tool_format.grammar([one.schema_now for one in offered], token, must=True, inside=inside)

    def _prompt(self) -> Generator[Event, None, list[int]]:
        """Return the prompt of the next answer; where there is no room, the oldest results are left out."""
        least = min(self._max_tokens, self.runtime.engine.context // 8)
        while True:
            text = self._tool_format.render(self._template.render, self.messages, self._schemas)
            prompt = self.runtime.encode(text, raw=False)
            if len(prompt) + least <= self.runtime.engine.context:
                return prompt
            oldest = self._oldest_result()
            if oldest is None:
                raise ContextFull(len(prompt), self.runtime.engine.context)
            oldest["content"] = OUT_OF_ROOM
            yield Dropped(1)

    def _oldest_result(self) -> dict[str, Any] | None:
        found = (one for one in self.messages if one["role"] == "tool")
        return next((one for one in found if len(one["content"]) > len(OUT_OF_ROOM)), None)

    def _result(self, call: Call, guard: LoopGuard) -> Returned:
        """Run a call that is allowed; what goes wrong is the result."""
        started = perf_counter()
        failed, allowed = False, True
        try:
            called = self._tool(call)
            guard.check(call)
            called.check(call.arguments)
            self._permission.check(called, call.arguments)
            started = perf_counter()
            text = as_text(called.run(**call.arguments))
        except NotAllowed as error:
            text, failed, allowed = told(error), True, False
        except ToolFailed as error:
            text, failed = told(error), True
        except (
            Exception,
            SystemExit,
        ) as error:  # a tool is foreign code: what it raises is told to the model
            text, failed = f"error: {type(error).__name__}: {error}", True
        text = shortened(text.encode("utf-8", "replace").decode())  # names of files may be no text
        return Returned(call, text, failed, allowed, perf_counter() - started)

    def _tool(self, call: Call) -> Tool:
        if call.name not in self.tools:
            raise ToolFailed(f"There is no tool `{call.name}`", suggestion(call.name, self.tools))
        return self.tools[call.name]


def reading(pieces: Iterator[str], tool_format: ToolFormat, turn: Turn, inside: bool) -> Iterator[Event]:
    """Split what streams in into thoughts, words and calls; note them in `turn`, and yield what is said."""
    thinking, reader = ReasoningParser(inside), tool_format.reader()
    unseen = 0

    def taken(found: Sequence[str | Call]) -> Iterator[Event]:
        for one in found:
            if isinstance(one, Call):
                turn.calls.append(one)
            else:
                turn.said += one
                yield Said(one)

    def split(found: Sequence[Thought]) -> Iterator[Event]:
        for said in found:
            if said.thought:
                turn.thought += said.text
                yield Said(said.text, thought=True)
            else:
                yield from taken(reader.push(said.text))

    for piece in pieces:
        unseen, made = unseen + len(piece), len(turn.calls)
        for event in split(thinking.push(piece)):
            unseen = 0
            yield event
        unseen = 0 if len(turn.calls) > made else unseen
        if unseen:
            yield Working(unseen)
    yield from split(thinking.end())
    yield from taken(reader.end())


def chosen(template: str) -> str:
    """Return the tool-call format whose signs a chat template shows, else the one that needs no template."""
    for name, part in plugins.parts("tool_formats").items():
        if any(sign in template for sign in part.made_by.signs):
            return name
    return "json"


def as_text(value: Any) -> str:
    """Return what a tool returned as the model is told."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def told(error: ToolFailed) -> str:
    """Return an error as the model is told."""
    return f"error: {error.message}" + (f". {error.hint}" if error.hint else "")


def check_dialect(name: str | None) -> None:
    """Raise UnknownName for a tool-call format that does not exist."""
    names = plugins.names("tool_formats")
    if name is not None and name not in names:
        raise UnknownName(f"There is no tool-call format called `{name}`", name, names)
