"""Render a conversation with a model's chat template, exactly as transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from localspec.errors import ModelError
from localspec.formats.tokenizer import template_limits

if TYPE_CHECKING:
    from jinja2 import Environment, Template

ChatMessage = Mapping[str, Any]

PROBE = "a system prompt that no template has of its own"
PROBE_TOOL = {
    "type": "function",
    "function": {"name": "a", "description": "a", "parameters": {"type": "object", "properties": {}}},
}


class ChatTemplate:
    """A model's chat template.

    `bos` and `eos` are the texts of `bos_token` and `eos_token` in the template; `special` holds further ones
    by name. `with_tools` is the template's own variant for tools, if it has one. One of a model with eyes
    takes contents `in_parts`: a message's pictures, of which it has the number in `images`, then its text.
    """

    def __init__(
        self,
        source: str,
        *,
        bos: str | None = None,
        eos: str | None = None,
        special: Mapping[str, str] | None = None,
        with_tools: str | None = None,
        in_parts: bool = False,
    ) -> None:
        self._in_parts = in_parts
        self.source = source
        self.with_tools = with_tools
        named = {"bos_token": bos, "eos_token": eos, **(special or {})}
        self.special = {name: text for name, text in named.items() if text}
        self._system: dict[bool, bool] = {}  # with tools or without -> whether it takes a system prompt

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **extra: Any,
    ) -> str:
        """Return the prompt; raise ModelError with the template's message if it rejects the conversation.

        A template that refuses a system prompt, or leaves it out, gets it at the beginning of the first
        user's message.
        """
        turns = [_with_text(message) for message in messages]
        if turns and turns[0].get("role") == "system" and not self._takes_system(bool(tools)):
            turns = _merged(turns)
        return self._render(turns, tools, add_generation_prompt, extra)

    def _takes_system(self, tools: bool) -> bool:
        """Return whether a system prompt appears in the prompt that the template makes."""
        if tools not in self._system:
            tried = [{"role": "system", "content": PROBE}, {"role": "user", "content": "a"}]
            try:
                self._system[tools] = PROBE in self._render(tried, [PROBE_TOOL] if tools else None, True, {})
            except ModelError:
                self._system[tools] = False
        return self._system[tools]

    def _render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        extra: Mapping[str, Any],
    ) -> str:
        values = {
            **self.special,
            "messages": [_with_parts(message) for message in messages] if self._in_parts else messages,
            "tools": list(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
            **extra,
        }
        template = self._tools_template if tools else self._plain_template
        try:
            with template_limits.limited(_characters(values)):
                return template.render(values)
        except Exception as error:  # a template may raise anything
            raise _template_error(error) from error

    @cached_property
    def _plain_template(self) -> Template:
        return _compiled(self.source)

    @cached_property
    def _tools_template(self) -> Template:
        return self._plain_template if self.with_tools is None else _compiled(self.with_tools)


def _with_text(message: ChatMessage) -> dict[str, Any]:
    """Copy a message; without content, as in a bare tool call, it gets an empty text."""
    return {**message, "content": "" if message.get("content") is None else message["content"]}


def _with_parts(message: ChatMessage) -> dict[str, Any]:
    """Copy a message with its content as a list: its pictures, then its text."""
    found, content = dict(message), message["content"]
    pictures: int = found.pop("images", 0)
    if isinstance(content, str):
        parts: list[dict[str, str]] = [{"type": "image"}] * pictures
        found["content"] = [*parts, *([{"type": "text", "text": content}] if content or not parts else [])]
    return found


def _merged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the system prompt, the first, at the beginning of the first user's message."""
    system, *rest = messages
    if not rest or rest[0].get("role") != "user" or not isinstance(rest[0]["content"], str):
        return [{**system, "role": "user"}, *rest]
    both = f"{system['content']}\n\n{rest[0]['content']}".strip()
    return [{**rest[0], "content": both}, *rest[1:]]


def _characters(value: Any) -> int:
    """Return the characters of all texts in a value of JSON."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_characters, value.keys())) + sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, list | tuple) else 0


def _compiled(source: str) -> Template:
    try:
        with template_limits.limited(len(source)):
            template: Template = _environment().from_string(source)
            return template
    except ModelError:
        raise
    except Exception as error:  # deep nesting raises RecursionError, MemoryError or SyntaxError
        raise _template_error(error) from error


def _template_error(error: Exception) -> ModelError:
    return ModelError(
        f"The model's chat template failed: {str(error) or type(error).__name__}",
        "Read it with `localspec show --template`",
    )


def _environment() -> Environment:
    """Configure Jinja as transformers' `render_jinja_template` does, with limits."""
    from jinja2.ext import loopcontrols

    environment: Environment = template_limits.environment_class()(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation_tag(), loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.limit_filters()  # type: ignore[attr-defined]
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = _now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Replace Jinja's own filter, which escapes characters for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> NoReturn:
    from jinja2 import TemplateError

    raise TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _generation_tag() -> Any:
    """Return the tag that marks assistant messages for training; here it renders its body unchanged."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> Any:
            return caller()

    return Generation
