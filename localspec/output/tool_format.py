"""Tool-call formats: the grammar of the calls that a model family writes, and their parser."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from localspec.output import lark
from localspec.output.tool_calls import BareJsonParser, TaggedParser, ToolCallParser, parse_json_calls

Tools = Sequence[
    Mapping[str, Any]
]  # {"type": "function", "function": {"name", "parameters"}}, as in templates
TokenId = Callable[[str], int | None]  # a special token's text -> its id, None if the tokenizer lacks it


class ToolFormat(ABC):
    """A family's format of tool calls; it is chosen by its `marks` in a model's chat template."""

    marks: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def grammar(self, tools: Tools, token_id: TokenId, *, must: bool, inside: bool = False) -> str:
        """Return the Lark grammar of an answer: text without calls, or complete calls of `tools`.

        `must` allows calls only; `inside` tells that the prompt ends inside the model's reasoning.
        """

    @abstractmethod
    def parser(self) -> ToolCallParser:
        """Return a parser for one answer."""

    def render(
        self, template: Callable[..., str], messages: Sequence[Mapping[str, Any]], tools: Tools
    ) -> str:
        """Return the prompt that a chat template makes of a conversation with `tools`."""
        return template(messages, tools=tools)


class MarkedToolFormat(ToolFormat):
    """JSON calls between two marks, after text; an empty `closes` stands for the end of the answer."""

    opens: ClassVar[str]
    closes: ClassVar[str]
    between: ClassVar[str | None]  # separates several calls, each with its marks; None for one pair of marks

    @abstractmethod
    def body(self, call: str) -> str:
        """Return the Lark expression between the marks, from that of one call."""

    def grammar(self, tools: Tools, token_id: TokenId, *, must: bool, inside: bool = False) -> str:
        """Return the grammar of text, then calls between marks."""
        return lark.lark_marked_calls(
            opens=(self.opens, token_id(self.opens)),
            body=self.body(lark.lark_call(tools)),
            closes=(self.closes, token_id(self.closes) if self.closes else None),
            between=self.between,
            reasoning=lark.lark_reasoning(token_id, inside),
            must=must,
        )

    def parser(self) -> ToolCallParser:
        """Return a parser of the marks."""
        return TaggedParser(self.opens, self.closes, parse_json_calls)


class BareToolFormat(ToolFormat):
    """An answer that is one JSON call, without marks."""

    arguments: ClassVar[str] = "arguments"  # the key of the arguments

    def grammar(self, tools: Tools, token_id: TokenId, *, must: bool, inside: bool = False) -> str:
        """Return the grammar of one call, or of text that does not begin like one."""
        call = lark.lark_call(tools, self.arguments)
        return lark.lark_bare_call(call, reasoning=lark.lark_reasoning(token_id, inside), must=must)

    def parser(self) -> ToolCallParser:
        """Return a parser of a whole answer."""
        return BareJsonParser(partial(parse_json_calls, arguments=self.arguments))
