"""One request to a model: a conversation or a text, and the answer as events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from localspec import plugins
from localspec.agent.loop import tool_format_of
from localspec.chat import opens_thought
from localspec.core.sampler import Sampling
from localspec.core.types import Step, shared_prefix
from localspec.errors import BadValue, printable
from localspec.output.answer_parser import AnswerParser, Part
from localspec.output.reasoning import ReasoningParser
from localspec.output.tool_calls import Call
from localspec.output.tool_format import ToolFormat
from localspec.runtime.answer import Answer
from localspec.runtime.choice import AUTO, OFF, OFF_PART, sampling_of
from localspec.runtime.generation import NOTHING, Runtime
from localspec.serve.trace import Scored, Scores, Source, Sources

if TYPE_CHECKING:
    from localspec.core.contracts import DraftLengthPolicy

Message = dict[str, Any]
ToolChoice = Literal["auto", "required", "none"]


@dataclass(frozen=True)
class Request:
    """What a client asks of a model: the messages of a conversation, or the `text` to continue.

    The answer to a text fills the gap between it and the text `behind`, if there is one.
    `sampling` holds what the client set, the model's own generation config the rest. `grammar` is the source
    of a constraint (output/grammar.py). `tools` are as in chat templates; `tool_choice` "required" allows
    nothing but calls. `draft` is "auto", the runtime's own, or "off"; `draft_length` names a policy for this
    answer. `stats` tells how it was drafted, `alternatives` how likely its tokens were, with so many others.
    `prediction` is the text that it is expected to be.
    """

    messages: Sequence[Message] = ()
    text: str | None = None
    behind: str | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: ToolChoice = "auto"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    stop: Sequence[str] = ()
    grammar: str | None = None
    draft: str = AUTO
    draft_length: str | None = None
    stats: bool = False
    alternatives: int | None = None
    prediction: str = ""

    def policy(self) -> DraftLengthPolicy | None:
        """Return what decides about drafts in place of the runtime's own policy, None for nothing.

        Raises BadValue for a draft that a request cannot choose, and the errors of `plugins.parse`.
        """
        if self.draft not in (AUTO, OFF):
            raise BadValue(f"`draft` is `{printable(self.draft)}`", f"A request takes `{AUTO}` or `{OFF}`")
        idle = {"draft_length": self.draft_length is not None, "prediction": bool(self.prediction)}
        if self.draft == OFF and any(idle.values()):
            name = next(name for name, given in idle.items() if given)
            raise BadValue(f"`draft` is `{OFF}`, so `{name}` does nothing", "Leave one of them out")
        spec = NOTHING if self.draft == OFF else self.draft_length
        policy: DraftLengthPolicy | None = (
            None if spec is None else plugins.parse("draft_length", spec).make()
        )
        return policy


class Text(NamedTuple):
    """A part of the answer's text, or of its reasoning.

    `sources` are its parts with their sources, if the request asks for `stats`; `tokens` are those since the
    last text, if it asks for `alternatives`. `so_far` tells how fast the answer is, beside `sources`.
    """

    text: str
    is_reasoning: bool = False
    sources: Sequence[Source] = ()
    tokens: Sequence[Scored] = ()
    so_far: Mapping[str, Any] = {}


class Begin(NamedTuple):
    """The answer begins: it can fail no more for what was asked."""


class End(NamedTuple):
    """The answer has ended; `cached` tokens of its prompt were in the KV cache.

    `stats` tells how it was drafted, if the request asks for that; `tokens` are those behind the last text.
    `reasoning_tokens` are those up to the end of the reasoning, none without reasoning.
    """

    answer: Answer
    cached: int
    stats: dict[str, Any] | None = None
    tokens: Sequence[Scored] = ()
    reasoning_tokens: int = 0


Event = Begin | Text | Call | End


def generate(
    runtime: Runtime, request: Request, prompt: list[int], cancelled: Callable[[], bool]
) -> Generator[Event, None, None]:
    """Yield the answer to a request with its `prompt`; closing the iterator interrupts it.

    Nothing more of the prompt is read once it is cancelled. Raises the errors of `Runtime.answer`, and those
    of `prompt_of`.
    """
    tool_format = _tool_format(runtime, request)
    inside = request.text is None and opens_thought(runtime, prompt)
    marks = runtime.thought_marks if request.text is None and not request.grammar else None
    cached = shared_prefix(prompt, runtime.target.tokens)
    answer, steps = runtime.answer(
        prompt,
        sampling=_sampling(runtime.model.sampling_defaults(), dict(request.sampling)),
        seed=request.seed,
        max_tokens=request.max_tokens,
        stop=request.stop,
        stop_tokens=_ends(runtime, request),
        grammar=_grammar(runtime, request, tool_format, inside),
        special=tool_format is not None,
        marks=marks.tokens if marks else None,
        loop_guard=True,
        alternatives=request.alternatives,
        draft_length=request.policy(),
        prediction=_predicted(runtime, request),
        cancelled=cancelled,
    )
    yield Begin()
    parser = AnswerParser(
        ReasoningParser(inside, marks) if marks else None, tool_format.parser() if tool_format else None
    )
    shown = tool_format is not None or tuple(marks.tokens.values() if marks else ())
    told = _Told(
        Sources(runtime, shown) if request.stats else None,
        Scores(runtime) if request.alternatives is not None else None,
        answer,
    )
    with closing(steps):
        for step in steps:
            told.add(step)
            yield from map(told.event, parser.push(step.text, step.marks))
    yield from map(told.event, parser.end())
    stats = stats_of(runtime, request, answer) if request.stats else None
    yield End(answer, max(cached, answer.cached_prompt_tokens), stats, told.tokens(), told.reasoning_tokens)


class _Told:
    """Makes events of the parts of an answer, with what is told of their tokens."""

    def __init__(self, sources: Sources | None, scores: Scores | None, answer: Answer) -> None:
        self._sources, self._scores, self._answer = sources, scores, answer
        self._count = self.reasoning_tokens = 0

    def add(self, step: Step) -> None:
        """Take in a step, before its parts."""
        self._count += len(step.tokens)
        if self._sources is not None:
            self._sources.add(step)
        if self._scores is not None:
            self._scores.add(step)

    def event(self, part: Part) -> Event:
        """Return the event of a part."""
        if isinstance(part, Call):
            return part
        if part.is_reasoning:
            self.reasoning_tokens = self._count
        if self._sources is None:
            return Text(part.text, part.is_reasoning, tokens=self.tokens())
        sources = self._sources.take(part.text)
        return Text(part.text, part.is_reasoning, sources, self.tokens(), _speed_of(self._answer))

    def tokens(self) -> Sequence[Scored]:
        """Return the tokens since the last call."""
        return self._scores.take() if self._scores is not None else ()


def _speed_of(answer: Answer) -> dict[str, Any]:
    """Return how fast an answer is: its tokens per second, and how many times as fast as plain decoding."""
    speedup = answer.estimated_speedup
    return {
        "tokens": len(answer.token_ids),
        "tokens_per_second": round(answer.tokens_per_second, 2),
        "estimated_speedup": None if speedup is None else round(speedup, 2),
    }


def stats_of(runtime: Runtime, request: Request, answer: Answer) -> dict[str, Any]:
    """Return how an answer was drafted, and how fast it was."""
    stats = answer.stats
    off = request.draft == OFF or runtime.draft_spec.name == OFF_PART
    return {
        **_speed_of(answer),
        "tokens_per_pass": round(stats.tokens_per_pass, 3),
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "draft": OFF if off else str(runtime.draft_spec),
        "engine": str(runtime.resolution.target.spec),
        "off_reason": "the request says so" if request.draft == OFF else answer.off_reason,
    }


def _predicted(runtime: Runtime, request: Request) -> Sequence[int]:
    """Return the tokens of the text that is expected, without those that begin every text of the model."""
    if not request.prediction:
        return ()
    return runtime.encode(request.prediction, raw=True)[len(runtime.model.first_tokens()) :]


def _ends(runtime: Runtime, request: Request) -> Collection[int]:
    """Return the tokens that end a filled gap, none for another answer."""
    marks = runtime.model.infill_marks if request.behind is not None else None
    return marks.ends if marks else ()


def _grammar(runtime: Runtime, request: Request, tool_format: ToolFormat | None, inside: bool) -> str | None:
    if tool_format is None or request.tool_choice != "required":
        return request.grammar
    return tool_format.grammar(request.tools, runtime.tokenizer.token_to_id, must=True, inside=inside)


def _sampling(defaults: dict[str, Any], asked: dict[str, Any]) -> Sampling:
    """Return the sampling settings; those that do nothing in greedy decoding are left out.

    Clients send them as a matter of course, so they are no mistake as on the command line.
    """
    usual = defaults.get("temperature", 1.0) if defaults.get("do_sample") else 0.0
    if not asked.get("temperature", usual):
        asked = {name: value for name, value in asked.items() if name not in ("top_k", "top_p", "min_p")}
    return sampling_of(defaults, asked)


def prompt_of(runtime: Runtime, request: Request) -> list[int]:
    """Return the tokens of a request's prompt.

    Raises BadValue for tools without a chat template, and UnsupportedModel for a gap that cannot be filled.
    """
    tool_format = _tool_format(runtime, request)
    if request.text is not None and request.behind is not None:
        return runtime.model.encode_infill(request.text, request.behind)
    if request.text is not None:
        return runtime.encode(request.text, raw=True)
    template = runtime.model.template()
    if tool_format is None or template is None:
        return runtime.encode_chat(request.messages)
    render = partial(tool_format.render, template.render)
    return runtime.encode_chat(request.messages, request.tools, render)


def _tool_format(runtime: Runtime, request: Request) -> ToolFormat | None:
    if not request.tools or request.tool_choice == "none":
        return None
    template = runtime.model.template()
    if template is None:
        raise BadValue(f"`{runtime.model.name}` has no chat template, so it takes no `tools`", None)
    name = tool_format_of(template.with_tools or template.source)
    made: ToolFormat = plugins.part("tool_formats", name).made_by()
    return made
