"""A conversation with one model: turns, chat template, and one KV cache for all turns."""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

from localspec.core.text import TextStream
from localspec.core.types import shared_prefix
from localspec.errors import BadValue, EmptyPrompt, ModelError, PromptError
from localspec.output.reasoning import OPENS, ReasoningParser, split
from localspec.output.visible import visible
from localspec.pictures.messages import IMAGES
from localspec.runtime.answer import Answer, AnswerStream
from localspec.runtime.generation import Runtime
from localspec.runtime.pictures import with_pictures

if TYPE_CHECKING:
    from localspec.core.sampler import Sampling
    from localspec.core.types import Step

Message = dict[str, Any]
Reply = tuple[Answer, Generator["Step", None, None]]

THINKING = "enable_thinking"  # the variable of chat templates
SUMMARY = (
    "Sum up our conversation so far in a few sentences, with every fact and decision that may matter later."
)
QUESTION_PROBE, ANSWER_PROBE = "one-question", "one-answer"  # find out what a chat template puts around them
SUMMARY_TOKENS = 512  # at most, and at most a quarter of the context


class Usage(NamedTuple):
    """Tokens of a conversation, the part of them in the KV cache, and the model's context length."""

    used: int
    reused: int
    context: int


class Chat:
    """A conversation. The runtime's cursor reads the common beginning of its turns once.

    A model without a chat template continues the text of the turns, as with `raw`, and `note` says so.
    `thinking` sets `enable_thinking` in a template that has it; None leaves it to the template. An answer
    that repeats one passage without end is ended, unless `loop_guard` is false.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        sampling: Sampling,
        system: str | None = None,
        raw: bool = False,
        seed: int | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] = (),
        grammar: str | None = None,
        thinking: bool | None = None,
        loop_guard: bool = True,
    ) -> None:
        self.messages: list[Message] = []
        self.sampling = sampling
        self.seed = seed
        self.max_tokens = max_tokens
        self.stop = stop
        self.grammar = grammar
        self.loop_guard = loop_guard
        self._asked_raw = raw
        self._thinking: bool | None = None
        self.begins_in_thought = False  # the last answer, as some templates make it
        self.use(runtime)
        if self.raw and system:
            raise PromptError(
                f"`{runtime.model.name}` has no chat template, so it takes no system prompt", None
            )
        self.thinking = thinking
        self.system = system

    def use(self, runtime: Runtime) -> None:
        """Switch to another model, or to other parts with the same one; the turns stay."""
        self.runtime = runtime
        self._template = None if self._asked_raw else runtime.model.template()
        self.raw = self._template is None
        self.note = (
            f"`{runtime.model.name}` has no chat template: it continues your text, as with `--raw`"
            if self.raw and not self._asked_raw
            else None
        )
        if not self.can_think:
            self._thinking = None

    @property
    def system(self) -> str | None:
        """The system prompt, None without one."""
        first = self.messages[0] if self.messages else {}
        return str(first["content"]) if first.get("role") == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = self.messages[1:] if self.system is not None else self.messages
        self.messages = [*([{"role": "system", "content": text}] if text else []), *rest]

    @property
    def thinking(self) -> bool | None:
        """Whether the model thinks before it answers; None leaves it to the chat template."""
        return self._thinking

    @thinking.setter
    def thinking(self, wanted: bool | None) -> None:
        """Set it; raises BadValue for a template that has no such switch."""
        if wanted is not None and not self.can_think:
            raise BadValue(
                f"The chat template of `{self.runtime.model.name}` has no switch for thinking",
                "Leave out `--think` and `--no-think`: the model thinks, or does not, by its own default",
            )
        self._thinking = wanted

    @property
    def can_think(self) -> bool:
        """Return whether the chat template can switch thinking on and off."""
        return self._template is not None and THINKING in self._template.source

    def ask(self, text: str, images: Sequence[str] = ()) -> Reply:
        """Return the answer to `text` and the steps that fill it; an interrupted turn is kept, too.

        `images` are pictures in base64 that the text is about. Raises EmptyPrompt, PromptError for a picture
        that cannot be seen, and ContextFull if the conversation leaves no room; the turn is then not kept.
        """
        if not text.strip():
            raise EmptyPrompt
        held = self.messages
        asked: Message = {"role": "user", "content": text} | ({IMAGES: list(images)} if images else {})
        self.messages = [*held, *self._unanswered(held), asked]
        try:
            return self.reply()
        except BaseException:
            self.messages = held
            raise

    def _unanswered(self, messages: Sequence[Message]) -> list[Message]:
        """Return an empty answer to an unanswered question, because templates require turns to alternate."""
        asked = messages and messages[-1]["role"] == "user"
        return [{"role": "assistant", "content": ""}] if asked else []

    def retry(self) -> Reply:
        """Answer the last question again; the old answer is dropped once the new one can begin."""
        if not self.turns:
            raise PromptError("Nothing was asked yet", "Ask something first")
        held = self.messages
        self.messages = held[: self.turns[-1] + 1]
        try:
            return self.reply()
        except BaseException:
            self.messages = held
            raise

    def undo(self) -> str:
        """Drop the last question and its answer; return the question."""
        if not self.turns:
            raise PromptError("Nothing was asked yet", None)
        at = self.turns[-1]
        text = str(self.messages[at]["content"])
        self.messages = self.messages[:at]
        return text

    def clear(self) -> None:
        """Drop all turns except the system prompt."""
        self.messages = self.messages[:1] if self.system is not None else []

    @property
    def turns(self) -> list[int]:
        """The positions of the user's messages."""
        return [at for at, message in enumerate(self.messages) if message["role"] == "user"]

    def drop_oldest(self, keep: int = 0) -> int:
        """Drop the oldest question and its answer, unless it is one of the last `keep`.

        Returns the number of messages dropped.
        """
        turns = [*self.turns, len(self.messages)]
        if len(turns) - 1 <= keep or len(turns) == 1:
            return 0
        first, second = turns[:2]
        self.messages = [*self.messages[:first], *self.messages[second:]]
        return second - first

    def summarise(self, keep: int = 0) -> Reply:
        """Let the model sum up all but the last `keep` turns.

        When the steps have ended, the request for the summary and its text replace those turns. Raises
        ContextFull.
        """
        at = self.turns[-keep] if keep else len(self.messages)
        earlier, rest = self.messages[:at], self.messages[at:]
        question: Message = {"role": "user", "content": SUMMARY}
        prompt = self.prompt([*earlier, *self._unanswered(earlier), question])
        inside = opens_thought(self.runtime, prompt)
        room = max(1, min(SUMMARY_TOKENS, self.runtime.engine.context // 4))
        marks = self.runtime.thought_marks
        answer, steps = self.runtime.answer(
            prompt,
            sampling=self.sampling,
            seed=self.seed,
            max_tokens=room,
            marks=None if self.raw else marks.tokens,
        )

        def replaced() -> Generator[Step, None, None]:
            yield from steps
            said = answer.text if self.raw else split(answer.text, inside, marks, answer.marks)[1]
            first = earlier[:1] if self.system is not None else []
            self.messages = [*first, question, {"role": "assistant", "content": said.strip()}, *rest]

        return answer, replaced()

    def preamble(self) -> str:
        """Return what the chat template has the model read before the first question, "" for nothing.

        That is the system prompt, if the template has a place for it, and what the template adds by itself.
        """
        if (template := self._template) is None:
            return ""

        def render(messages: list[Message]) -> str:
            return template.render(messages, **self._told())

        asked: list[Message] = [{"role": "user", "content": QUESTION_PROBE}]
        answered: Message = {"role": "assistant", "content": ANSWER_PROBE}
        try:
            later = render([*asked, answered, *asked]).rpartition(QUESTION_PROBE)[0]
            bare, whole = (
                render([*first, *asked]).partition(QUESTION_PROBE)[0]
                for first in ([], self.messages[: self.system is not None])
            )
        except ModelError:  # the template refuses such a conversation
            return ""
        backwards = zip(reversed(bare), reversed(later.rpartition(ANSWER_PROBE)[2]), strict=False)
        opening = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], backwards))  # of a question
        before = whole if whole.endswith(bare[len(bare) - opening :]) else bare
        return self._without_marks(before[: len(before) - opening])

    def _without_marks(self, text: str) -> str:
        """Return the text of a rendered message without special tokens and its role."""
        stream = TextStream(self.runtime.tokenizer)
        tokens = self.runtime.encode(text, raw=False)
        plain = "".join([*map(stream.push, tokens), stream.flush()]).strip()
        return re.sub(r"\Asystem\s*\n", "", plain).strip()

    def usage(self) -> Usage:
        """Return how much of the context the conversation takes, and how much of it is in the KV cache."""
        held = self.runtime.target.tokens
        tokens = self.prompt(self.messages) if self.messages else []
        return Usage(len(tokens), shared_prefix(tokens, held), self.runtime.engine.context)

    def reply(self) -> Reply:
        """Return the answer to the present messages and the steps that fill it; it becomes a message."""
        prompt = self.prompt(self.messages)
        self.begins_in_thought = self.grammar is None and opens_thought(self.runtime, prompt)
        answer, steps = self._answered(prompt, self.grammar)
        return answer, self._kept(answer, steps)

    def splitter(self) -> ReasoningParser | None:
        """Return the reasoning parser for the answer that `reply` began; None if it has no reasoning."""
        if not self._tells_thoughts:
            return None
        return ReasoningParser(self.begins_in_thought, self.runtime.thought_marks)

    @property
    def _tells_thoughts(self) -> bool:
        return not self.raw and not self.grammar

    def message(self, text: str, marks: Sequence[int] = ()) -> Message:
        """Return the model's output as a message, with its reasoning apart from the content.

        `marks` are the places of tokens that are marks, as in an `Answer`.
        """
        reasoning, content = self._split(text, marks)
        return {"role": "assistant", "content": content} | (
            {"reasoning_content": reasoning} if reasoning else {}
        )

    def _split(self, text: str, marks: Sequence[int]) -> tuple[str, str]:
        if not self._tells_thoughts:
            return "", text
        return split(text, self.begins_in_thought, self.runtime.thought_marks, marks)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt for the next answer."""
        if self._template is None:
            tokens = self.runtime.encode("".join(str(message["content"]) for message in messages), raw=True)
            return with_pictures(self.runtime.target.session, self.runtime.model.name, tokens, messages)
        return self.runtime.encode_chat(messages, render=partial(self._template.render, **self._told()))

    def _told(self) -> dict[str, Any]:
        return {} if self._thinking is None else {THINKING: self._thinking}

    def _answered(self, prompt: Sequence[int], grammar: str | None) -> Reply:
        return self.runtime.answer(
            prompt,
            sampling=self.sampling,
            seed=self.seed,
            max_tokens=self.max_tokens,
            stop=self.stop,
            grammar=grammar,
            marks=self.runtime.thought_marks.tokens if self._tells_thoughts else None,
            loop_guard=self.loop_guard,
        )

    def _kept(self, answer: Answer, steps: Generator[Step, None, None]) -> Generator[Step, None, None]:
        """Draw the steps, then append the answer to the messages and set its text and reasoning apart."""
        messages = self.messages
        try:
            yield from steps
        finally:
            messages.append(self.message(answer.text, answer.marks))
            answer.reasoning, answer.text = self._split(answer.text, answer.marks)

    def send(self, text: str, images: Sequence[str] = ()) -> Answer:
        """Return the complete answer to `text` and its pictures; raises what `ask` raises."""
        return self.stream(text, images).finish()

    def stream(self, text: str, images: Sequence[str] = ()) -> AnswerStream:
        """Return the answer to `text` and its pictures as a stream of text; raises what `ask` raises."""
        return AnswerStream(*self.ask(text, images), self.splitter())

    def stream_reply(self) -> AnswerStream:
        """Return the answer to the present messages as a stream of text; raises what `reply` raises."""
        return AnswerStream(*self.reply(), self.splitter())


def fenced(name: str, text: str) -> str:
    """Return a file for a prompt: its name, and its text in a fence longer than any fence in it."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{visible(name)}:\n{fence}\n{text.rstrip()}\n{fence}"


def opens_thought(runtime: Runtime, prompt: Sequence[int]) -> bool:
    """Return whether the answer to a prompt begins inside its reasoning, as some templates make it."""
    template = runtime.model.template()
    if template is None or OPENS not in template.source + (template.with_tools or ""):
        return False  # what looks like a mark is text of the conversation
    return runtime.thought_marks.open_at_end(runtime.tokenizer, prompt)
