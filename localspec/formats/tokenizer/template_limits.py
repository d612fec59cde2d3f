"""Limits of time and memory for chat templates, which are programs from strangers.

A template spends steps and characters of a budget: every round of a loop, call and filter, and every text and
list that it makes. Operations whose result can be far larger than their arguments spend before they run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from typing import Any

from localspec.errors import ModelError

SECONDS = 3.0  # of processor time for one prompt
ROOM = 30_000_000  # steps and characters of one prompt, besides
ROOM_FACTOR = 60  # times the characters of the conversation: templates join texts piece by piece
CHECKED = 500  # steps between two looks at the clock
MAX_SOURCE = 500_000  # characters of a template
MAX_BITS = 10_000  # of a number
REMOVED_FILTERS = ("urlize", "striptags", "wordwrap")  # for web pages; slow on odd text
REMOVED_GLOBALS = ("lipsum",)
PADDING = {"center", "ljust", "rjust", "zfill"}
TEXTS = {"join", "tojson", "string", "pprint", "urlencode", "xmlattr", "format", "format_map", "str"}

# Names that no template can write, for what is inserted into it.
SPEND, SHOW, JOIN, MADE = "limits: spend", "limits: show", "limits: join", "limits: made"

_WIDE = re.compile(r"%[^%a-zA-Z]*(\d{5,}|\*)|\{[^{}]*(\d{5,}|\{)")  # a field of thousands of characters


class TooMuch(Exception):
    """A template has spent its budget."""


class Budget:
    """The steps and characters that are left, and the end of the time."""

    def __init__(self, room: int) -> None:
        self._left = room
        self._end = time.thread_time() + SECONDS
        self._unchecked = 0

    def spend(self, amount: int = 1) -> None:
        """Spend steps or characters; raises TooMuch."""
        self._left -= amount
        if self._left < 0:
            raise TooMuch("it makes too much text, or takes too many steps")
        self._unchecked += 1
        if self._unchecked > CHECKED:
            self._unchecked = 0
            if time.thread_time() > self._end:
                raise TooMuch(f"it takes more than {SECONDS:g} seconds")

    def weigh(self, value: Any, *, texts: bool = False) -> None:
        """Spend the size of a value: the characters of a text, the items of a list and of the lists in it.

        With `texts`, the characters of all texts in it count, as when they are written.
        """
        if isinstance(value, str):
            self.spend(len(value))
            return
        waiting = [value]
        while waiting:
            item = waiting.pop()
            self.spend(1 + (len(item) if texts and isinstance(item, str) else 0))
            if isinstance(item, Mapping):
                waiting += item.keys() if texts else ()
                waiting += item.values()
            elif isinstance(item, list | tuple | set):
                waiting += item


_BUDGET: ContextVar[Budget] = ContextVar("budget")


@contextmanager
def limited(characters: int) -> Iterator[None]:
    """Give the template that runs in the block a budget for a conversation of so many characters."""
    token = _BUDGET.set(Budget(ROOM + ROOM_FACTOR * characters))
    try:
        yield
    finally:
        _BUDGET.reset(token)


def check_source(source: str) -> None:
    """Raise ModelError for a template that is too long to compile."""
    if len(source) > MAX_SOURCE:
        raise ModelError(
            f"The model's chat template is too long: {len(source):,} characters",
            "Read it with `localspec show --template`",
        )


@cache
def environment_class() -> Any:
    """Return Jinja's sandbox with limits; it is made on first use, because Jinja is imported late."""
    from jinja2 import nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        """Jinja's sandbox, in which templates spend a budget."""

        intercepted_binops = frozenset(["+", "*", "**", "%"])

        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            for name in REMOVED_FILTERS:
                del self.filters[name]
            for name in REMOVED_GLOBALS:
                del self.globals[name]

        def limit_filters(self) -> None:
            """Let all filters spend; the inserted ones come last."""
            self.filters = {name: _spending(name, function) for name, function in self.filters.items()}
            self.filters |= _inserted_filters()

        def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
            check_source(source)
            tree: nodes.Template = _with_spending(super()._parse(source, name, filename))
            return tree

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _foresee_operator(operator, left, right)
            return super().call_binop(context, operator, left, right)

        def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
            inner = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
            own = getattr(inner, "__self__", None)
            first = (own,) if isinstance(own, str) else ()
            _foresee(getattr(inner, "__name__", ""), (*first, *args, *kwargs.values()))
            return _weighed(super().call(__context, __obj, *args, **kwargs))

    return LimitedEnvironment


def _weighed(value: Any) -> Any:
    _BUDGET.get().weigh(value)
    return value


def _spending(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that spends the size of its arguments and of its result."""
    own = 1 if hasattr(function, "jinja_pass_arg") else 0  # the environment comes first

    @wraps(function)
    def spending(*arguments: Any, **named: Any) -> Any:
        given = list(arguments)
        if len(given) > own and isinstance(given[own], Iterator):
            given[own] = list(given[own])
        _foresee(name, (*given[own:], *named.values()))
        return _weighed(function(*given, **named))

    return spending


def _foresee(name: str, arguments: tuple[Any, ...]) -> None:
    """Spend for a call before it runs; `arguments` begin with the text whose method it is."""
    budget = _BUDGET.get()
    budget.spend()
    for argument in arguments:
        budget.weigh(argument, texts=name in TEXTS)
    text = arguments[0] if arguments and isinstance(arguments[0], str) else ""
    numbers = [abs(argument) for argument in arguments if isinstance(argument, int)]
    if name in PADDING:
        budget.spend(max(numbers, default=0))
    elif name in ("expandtabs", "indent"):
        words = sum(len(argument) for argument in arguments[1:] if isinstance(argument, str))
        budget.spend((max(numbers, default=0) + words) * (text.count("\n") + text.count("\t") + 1))
    elif name == "batch" or name == "slice":
        budget.spend(max(numbers, default=0))
    elif name == "replace" and len(arguments) > 2:
        old, new = str(arguments[1]), str(arguments[2])
        budget.spend((str(arguments[0]).count(old) + 1) * len(new))
    elif name == "join":
        longest = max((len(one) for one in arguments if isinstance(one, str)), default=0)
        budget.spend(longest * sum(len(one) for one in arguments if isinstance(one, list | tuple)))
    elif name in ("format", "format_map") and _WIDE.search(text):
        raise TooMuch("it formats a text of thousands of characters")


def _foresee_operator(operator: str, left: Any, right: Any) -> None:
    """Spend for an operation before it runs; raises TooMuch for a huge number."""
    budget = _BUDGET.get()
    budget.spend()
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise TooMuch("it computes a huge number")
    elif operator == "%":
        budget.weigh(right, texts=True)
        if isinstance(left, str):
            _foresee("format", (left,))
    elif operator == "*":
        for many, count in ((left, right), (right, left)):
            if isinstance(many, str | list | tuple) and isinstance(count, int):
                budget.spend(len(many) * max(count, 0))
    else:
        budget.spend(sum(len(side) for side in (left, right) if isinstance(side, str | list | tuple)))


def _inserted_filters() -> dict[str, Callable[..., Any]]:
    from jinja2 import pass_context

    def spend(context: Any, amount: int) -> str:
        _BUDGET.get().spend(amount)
        return ""

    def show(context: Any, value: Any) -> Any:
        _BUDGET.get().weigh(value, texts=True)
        return value

    def join(context: Any, values: list[Any]) -> str:
        for value in values:
            _BUDGET.get().weigh(value, texts=True)
        return "".join(map(str, values))

    def made(context: Any, value: Any) -> Any:
        return _weighed(value)

    functions: list[Callable[..., Any]] = [spend, show, join, made]
    # Jinja evaluates nothing beforehand that needs the context.
    return dict(zip((SPEND, SHOW, JOIN, MADE), map(pass_context, functions), strict=True))


def _with_spending(tree: Any) -> Any:
    """Insert the filters that spend into a parsed template."""
    from jinja2 import nodes

    literals = nodes.List | nodes.Dict | nodes.Tuple

    def filtered(node: Any, name: str) -> Any:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)

    def changed(node: Any) -> Any:
        for field, value in node.iter_fields():
            if isinstance(value, nodes.Node):
                setattr(node, field, changed(value))
            elif isinstance(value, list):
                value[:] = [changed(one) if isinstance(one, nodes.Node) else one for one in value]
        if isinstance(node, nodes.For):
            cost = 1 + sum(len(data.data) for data in node.find_all(nodes.TemplateData))
            spend = filtered(nodes.Const(cost, lineno=node.lineno), SPEND)
            node.body.insert(0, nodes.ExprStmt(spend, lineno=node.lineno))
        elif isinstance(node, nodes.Output):
            node.nodes = [
                one if isinstance(one, nodes.TemplateData) else filtered(one, SHOW) for one in node.nodes
            ]
        elif isinstance(node, nodes.Concat):
            return filtered(nodes.List(node.nodes, lineno=node.lineno), JOIN)
        elif isinstance(node, literals) and getattr(node, "ctx", "load") == "load":
            return filtered(node, MADE)
        return node

    return changed(tree)
