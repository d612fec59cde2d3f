"""The command `/set`: sampling settings and limits of a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.errors import BadValue, UnknownName

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.state import Talk

NUMBERS: dict[str, type] = {
    "temperature": float,
    "top-k": int,
    "top-p": float,
    "min-p": float,
    "repetition-penalty": float,
    "presence-penalty": float,
    "frequency-penalty": float,
}
IDLE_WHEN_GREEDY = ("top-k", "top-p", "min-p")
SETTINGS = (*NUMBERS, "seed", "max-tokens", "stop")


def change_settings(talk: Talk, argument: str) -> None:
    """Set `NAME VALUE`, or print every setting; raises UnknownName and BadValue."""
    name, _, value = argument.partition(" ")
    name = name.replace("_", "-")
    if not argument:
        _print(talk.chat)
    elif name in NUMBERS:
        _set_sampling(talk.chat, name, value)
    elif name == "seed":
        talk.chat.seed = None if value == "random" else _number(int, name, value)
    elif name == "max-tokens":
        _set_max_tokens(talk.chat, value)
    elif name == "stop":
        talk.chat.stop = (value,) if value else ()
    else:
        raise UnknownName(f"Unknown setting `{name}`", name, SETTINGS)


def _print(chat: Chat) -> None:
    values = {name: f"{getattr(chat.sampling, name.replace('-', '_')):g}" for name in NUMBERS} | {
        "seed": "random" if chat.seed is None else chat.seed,
        "max-tokens": "the context" if chat.max_tokens is None else chat.max_tokens,
        "stop": ", ".join(map(repr, chat.stop)) or "none",
    }
    for name, value in values.items():
        console.say(f"  {name:<20} {value}")


def _set_sampling(chat: Chat, name: str, value: str) -> None:
    number = _number(NUMBERS[name], name, value)
    chat.sampling = replace(chat.sampling, **{name.replace("-", "_"): number})
    if name in IDLE_WHEN_GREEDY and chat.sampling.temperature == 0:
        console.say(f"`{name}` does nothing at temperature 0: /set temperature 0.7")


def _set_max_tokens(chat: Chat, value: str) -> None:
    limit = None if value in ("none", "context") else _number(int, "max-tokens", value)
    if limit is not None and limit < 1:
        raise BadValue(f"`max-tokens` is {limit}", "It takes a number from 1 on")
    chat.max_tokens = limit


def _number(kind: type, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise BadValue(f"`{name}` is `{value}`", f"It takes {expected}") from None
