"""The loop of an agent: the model calls tools and reads their results until it answers."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from localspec import plugins
from localspec.agent import events
from localspec.agent.attempt import Attempt
from localspec.agent.calls import INTERRUPTED_RESULT, result_message, run_call
from localspec.agent.events import Event, FinishedEvent, ToolResultEvent
from localspec.agent.loop_guard import FINAL, LoopGuard
from localspec.agent.partial_call import call_so_far, cut_answer
from localspec.agent.permission import Permission
from localspec.agent.tools.folder import Folder
from localspec.agent.turn import Turn, parse_turn
from localspec.agent.verification.review import Review, last_lines
from localspec.chat import opens_thought
from localspec.core.sampler import Sampling
from localspec.errors import BadValue, ContextFull, EmptyPrompt, PromptError, UnknownName
from localspec.output.tool_calls import Call
from localspec.output.tool_format import ToolFormat
from localspec.runtime.generation import Runtime
from localspec.tools import Tool, tool

DEFAULT_MAX_STEPS = 25
DEFAULT_MAX_TOKENS = 2048  # of one answer
SYSTEM = (
    "You work in the user's folder by calling tools, one at a time. Asked a question, find the answer in the"
    " files, then call final_answer. Asked for a change, call edit_file or write_file for every file that"
    " must change, check it, then call final_answer."
)
RETRY_TEMPERATURE = 0.8  # of a greedy model that has repeated a call
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
        folder: Folder | None = None,
        system: str = SYSTEM,
        tool_format: str | None = None,
        sampling: Sampling | None = None,
        seed: int | None = None,
        max_steps: int = DEFAULT_MAX_STEPS,
        max_tokens: int = DEFAULT_MAX_TOKENS,
    ) -> None:
        """Raise BadValue for two tools of one name, PromptError for a model without a chat template.

        In a `folder` that the tools work in, a task ends only once its checks pass (verification/review.py).
        """
        self.runtime = runtime
        self.tools = by_name([*tools, tool(final_answer)])
        template = runtime.model.template()
        if template is None:
            raise PromptError(
                f"`{runtime.model.name}` has no chat template, which an agent needs",
                "Choose a model that was trained to chat",
            )
        self._template = template
        self._review = Review(folder, self.tools) if folder else None
        self._permission = permission
        self.tool_format_name = tool_format or tool_format_of(template.with_tools or template.source)
        self._tool_format: ToolFormat = plugins.part("tool_formats", self.tool_format_name).made_by()
        self._sampling = sampling or Sampling()
        self._seed = seed
        self._max_steps = max_steps
        self._max_tokens = max_tokens
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": system}]

    def run(self, task: str, words: str = "") -> Generator[Event, None, None]:
        """Work on a task and yield what happens; the last event is a FinishedEvent.

        `words` are the user's own of a task that brings files with it. Raises EmptyPrompt, and ContextFull
        when even short results do not fit. The conversation keeps the messages written so far.
        """
        if not task.strip():
            raise EmptyPrompt
        self.messages.append({"role": "user", "content": task})
        if self._review:
            self._review.begin(words or task)
            yield from self._show_failure(self._review)
        yield events.PromptEvent(self.messages[-1]["content"])
        state = self._review.folder.changes.state if self._review else None
        attempt, begin = Attempt.begin(state), len(self.messages)
        for _ in range(self._max_steps):
            turn = yield from self._answer(attempt)
            finished = yield from self._take(turn, attempt)
            if finished and not (self._review and attempt.may_start_over(finished)):
                yield finished
                return
            if finished and self._review:
                names = self._review.folder.changes.roll_back().restored
                self._review.start_over()
                yield events.StartOverEvent(finished.reason, tuple(names))
                del self.messages[begin:]
                attempt = Attempt.begin(state, attempt.number + 1)
        yield FinishedEvent(events.MAX_STEPS, "")

    def _take(self, turn: Turn, attempt: Attempt) -> Generator[Event, None, FinishedEvent | None]:
        """Run the calls of a turn; return the end of the task if this is one."""
        cut = cut_answer(turn.text, FINAL, "answer") if not turn.calls else None
        if cut is not None:
            turn = Turn(calls=[Call(FINAL, {"answer": cut})])
            self.messages[-1] = turn.message()
        elif not turn.calls:
            return FinishedEvent(events.LENGTH, "" if call_so_far(turn.text) else turn.text.strip())
        final = next((call for call in turn.calls if call.name == FINAL), None)
        others = turn.calls[: turn.calls.index(final)] if final else turn.calls
        yield from self._run_calls(others, attempt)
        if final is None and (attempt.failed or attempt.guard.stuck):
            return FinishedEvent(events.UNVERIFIED if attempt.failed else events.REPEATED, "")
        if final is None:
            return None
        fault = (yield from self._fault(self._review)) if self._review else None
        if fault is not None:
            attempt.note(fault)
        if fault is not None and not attempt.failed:
            yield from self._go_on(final, fault, attempt.guard, len(others))
            return None
        reason = events.UNVERIFIED if fault else events.LENGTH if cut is not None else events.ANSWER
        return self._end(final, reason, len(others))

    def _show_failure(self, review: Review) -> Generator[Event, None, None]:
        """Run the tests or the program that the task says to fail; what they print goes with the task."""
        if call := review.first_call():
            result = yield from self._run_tests(review, call)
            if result.allowed:
                prompt = self.messages[-1]
                said = f"This is what `{call.arguments['command']}` prints now:\n{last_lines(result.text)}"
                attached = review.attached(result.text, self.messages).text
                prompt["content"] = "\n\n".join(filter(None, [attached, prompt["content"], said]))

    def _fault(self, review: Review) -> Generator[Event, None, str | None]:
        """Return why the task may not end yet; None if its checks pass."""
        fault = review.fault() or review.known_failure()
        if fault is None and (call := review.last_call()):
            yield from self._run_tests(review, call)
            fault = review.known_failure()
        if fault is None and (reason := review.not_checked()):
            yield events.NotCheckedEvent(reason)
        return fault

    def _run_tests(
        self, review: Review, call: Call, *, tells: bool = False
    ) -> Generator[Event, None, ToolResultEvent]:
        """Run tests; `tells` says that the model gets their verdict with the result of its last call."""
        yield events.CheckEvent(call)
        result = run_call(call, {call.name: review.run_tests}, self._permission)
        review.note_tests(result)
        yield events.CheckEvent(call, result, review.verdict(result) if tells else "")
        return result

    def _end(self, final: Call, reason: str, others: int) -> FinishedEvent:
        """Make the final answer the last message, in place of the call that brought it."""
        text = str(final.arguments["answer"])
        if others:
            turn = next(one for one in reversed(self.messages) if one["role"] == "assistant")
            turn["tool_calls"] = turn["tool_calls"][:others]
        else:
            self.messages.pop()
        self.messages.append({"role": "assistant", "content": text})
        return FinishedEvent(reason, text)

    def _go_on(self, final: Call, fault: str, guard: LoopGuard, number: int) -> Generator[Event, None, None]:
        """Hand a fault back to the model as the result of its last call, with the files that it names."""
        attached = self._review.attached(fault, self.messages).text if self._review else ""
        self.messages.append(result_message(final, number, f"error: {fault}", attached))
        guard.note(ToolResultEvent(final, fault, failed=True, allowed=True, seconds=0.0), self.tools[FINAL])
        yield events.NotYetEvent(final, fault, attached)

    def _answer(self, attempt: Attempt) -> Generator[Event, None, Turn]:
        """Have the model answer; the turn becomes a message even when it is interrupted."""
        prompt = yield from self._prompt()
        inside = opens_thought(self.runtime, prompt)
        answer, steps = self.runtime.answer(
            prompt,
            sampling=self._sampling_for(attempt),
            seed=self._seed if self._seed is not None or self._sampling.temperature else attempt.seed,
            max_tokens=self._max_tokens,
            grammar=self._grammar(inside, attempt.guard.barred),
            special=True,
            marks=self.runtime.thought_marks.tokens,
            loop_guard=True,
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

    def _sampling_for(self, attempt: Attempt) -> Sampling:
        """Return the sampling of the next answer: a greedy model that goes in circles samples."""
        if self._sampling.temperature == 0 and attempt.samples:
            return replace(self._sampling, temperature=RETRY_TEMPERATURE)
        return self._sampling

    def _grammar(self, inside: bool, barred: Collection[str]) -> str:
        token_id = self.runtime.tokenizer.token_to_id
        offered = [known for known in self.tools.values() if not self._review or self._review.allows(known)]
        free = [known for known in offered if known.name not in barred]
        schemas = [known.schema_now for known in free or offered]
        return self._tool_format.grammar(schemas, token_id, must=True, inside=inside)

    def _prompt(self) -> Generator[Event, None, list[int]]:
        """Return the prompt of the next answer; the oldest results are dropped until it fits."""
        context = self.runtime.engine.context
        min_room = min(self._max_tokens, context // 8)
        render = partial(self._tool_format.render, self._template.render)
        shown = [known for known in self.tools.values() if not self._review or self._review.shows(known)]
        schemas = [known.schema for known in shown]
        while True:
            prompt = self.runtime.model.encode_chat(self.messages, schemas, render)
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

    def _run_calls(self, calls: Sequence[Call], attempt: Attempt) -> Generator[Event, None, None]:
        results = [result_message(call, number, INTERRUPTED_RESULT) for number, call in enumerate(calls)]
        self.messages += results  # before any call runs: Ctrl-C may leave calls without a result
        for number, call in enumerate(calls):
            yield events.ToolCallEvent(call)
            result = run_call(call, self.tools, self._permission, attempt.guard)
            if self._review:
                result = self._reviewed(self._review, result)
            results[number] |= result_message(call, number, result.text, result.attached)
            attempt.guard.note(result, self.tools.get(call.name))
            yield result
            if self._review:
                told = yield from self._test_change(self._review, result, attempt)
                results[number] |= result_message(call, number, result.text, result.attached, told)

    def _test_change(
        self, review: Review, changed: ToolResultEvent, attempt: Attempt
    ) -> Generator[Event, None, str]:
        """Run tests that have failed once more after a change; return what the model gets to know of it."""
        call = review.call_after(changed, self.tools.get(changed.call.name))
        if call is None:
            return ""
        result = yield from self._run_tests(review, call, tells=True)
        if fault := review.known_failure():
            attempt.note(fault)
        return review.verdict(result)

    def _reviewed(self, review: Review, result: ToolResultEvent) -> ToolResultEvent:
        """Return a result with the files that a failed program names."""
        called = self.tools.get(result.call.name)
        review.note(result, called)
        if not (result.failed and result.allowed and called and called.access == "run"):
            return result
        attached = review.attached(result.text, self.messages)
        return result._replace(attached=attached.text, names=tuple(attached.names))


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


def check_tool_format(name: str | None) -> None:
    """Raise UnknownName for a tool-call format that does not exist."""
    names = plugins.names("tool_formats")
    if name is not None and name not in names:
        raise UnknownName(f"Unknown tool-call format `{name}`", name, names)
