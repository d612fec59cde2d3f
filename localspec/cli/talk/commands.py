"""What begins with a slash in a conversation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.cli.answers import in_words
from localspec.errors import BadValue, PromptError, UnknownName, suggestion

if TYPE_CHECKING:
    from localspec.cli.talk.loop import Talk

SWITCH = {"on": True, "off": False}
NUMBERS: dict[str, type] = {
    "temperature": float,
    "top-k": int,
    "top-p": float,
    "min-p": float,
    "repetition-penalty": float,
}
COLOURS = ("\x1b[32m", "\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: what it takes, what it does, and what its argument may be."""

    takes: str
    help: str
    run: Callable[[Talk, str], None]
    choices: Callable[[Talk], Iterable[str]] = lambda talk: ()


def is_command(text: str) -> bool:
    """Tell whether a text that begins with a slash is a command: the path of a file is none."""
    word = text.split()[0]
    return "/" not in word[1:]


def run(talk: Talk, text: str) -> None:
    """Run a command; raises UnknownName for one that does not exist, and what is wrong with its argument."""
    name, *rest = text[1:].strip().split(None, 1) or [""]
    if name not in COMMANDS:
        near = suggestion(name, COMMANDS).replace("`", "`/", 1)
        raise PromptError(f"There is no command `/{name}`", near if len(near) < 40 else "See /help")
    COMMANDS[name].run(talk, "".join(rest).strip())


def complete(talk: Talk, line: str) -> list[str]:
    """Return what the last word of a line may become."""
    name, space, argument = line[1:].partition(" ")
    if not space:
        return [f"/{one}" for one in COMMANDS if one.startswith(name)]
    if name not in COMMANDS or " " in argument:
        return []
    return [one for one in COMMANDS[name].choices(talk) if one.startswith(argument)]


def _help(talk: Talk, argument: str) -> None:
    for name, command in COMMANDS.items():
        console.say(f"  {f'/{name} {command.takes}':<24} {command.help}")
    console.say(
        '\n  """ begins and ends several lines; @PATH puts a file into the question; Ctrl-G opens $EDITOR;\n'
        "  Tab completes; Ctrl-C stops an answer; Ctrl-D leaves"
    )


def _clear(talk: Talk, argument: str) -> None:
    talk.chat.clear()
    kept = f"; the last one is kept as `{talk.name}`" if talk.name and talk.keeps else ""
    talk.name, talk.last, talk.steps = None, None, []
    console.say(f"A new conversation{kept}")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.chat.system = argument
        talk.keep()
    console.say(talk.chat.system or "The model is told nothing first")


def _set(talk: Talk, argument: str) -> None:
    chat = talk.chat
    name, _, value = argument.partition(" ")
    name = name.replace("_", "-")
    if not argument:
        for one in NUMBERS:
            console.say(f"  {one:<20} {getattr(chat.sampling, one.replace('-', '_')):g}")
        console.say(f"  {'seed':<20} {'random' if chat.seed is None else chat.seed}")
        console.say(f"  {'max-tokens':<20} {'the context' if chat.max_tokens is None else chat.max_tokens}")
        console.say(f"  {'stop':<20} {', '.join(map(repr, chat.stop)) or 'none'}")
        return
    if name in NUMBERS:
        number = _number(NUMBERS[name], name, value)
        chat.sampling = replace(chat.sampling, **{name.replace("-", "_"): number})
        if name != "temperature" and name != "repetition-penalty" and chat.sampling.temperature == 0:
            console.say(f"`{name}` does nothing at temperature 0: /set temperature 0.7")
    elif name == "seed":
        chat.seed = None if value == "random" else _number(int, name, value)
    elif name == "max-tokens":
        number = None if value in ("none", "context") else _number(int, name, value)
        if number is not None and number < 1:
            raise BadValue(f"`max-tokens` is {number}", "It takes a number from 1 on")
        chat.max_tokens = number
    elif name == "stop":
        chat.stop = (value,) if value else ()
    else:
        raise UnknownName(f"There is nothing called `{name}` to set", name, SETTINGS)


def _model(talk: Talk, argument: str) -> None:
    if not argument:
        console.say(talk.chat.runtime.model.name)
        return
    _load(talk, argument, talk.choice)
    talk.model = argument
    console.say(f"{talk.chat.runtime.model.name} goes on from here")


def _draft(talk: Talk, argument: str) -> None:
    if argument:
        _load(talk, talk.model, replace(talk.choice, draft=argument, tuned=False))
    console.say(f"guesses: {talk.chat.runtime.draft_spec}")


def _load(talk: Talk, model: str, choice: Any) -> None:
    from localspec.library import Terminal
    from localspec.runtime.generation import Runtime

    choice.check()
    old = talk.chat.runtime
    with Terminal() as progress:
        runtime = Runtime(model, choice, talk.library, progress, old.engines, old.prompts.limit)
    talk.chat.use(runtime)
    talk.choice = choice
    if talk.chat.note:
        console.say(talk.chat.note)


def _stats(talk: Talk, argument: str) -> None:
    if argument:
        talk.stats = _switch("/stats", argument)
    elif talk.last is None:
        console.say("Nothing was answered yet; `/stats on` shows numbers after each answer")
    else:
        console.say(in_words(talk.last, talk.chat.runtime))


def _think(talk: Talk, argument: str) -> None:
    if argument in ("hide", "show"):
        talk.thoughts = argument == "show"
    elif argument:
        talk.chat.thinking = _switch("/think", argument)
    words = {True: "on", False: "off", None: "as the model's makers have it"}
    console.say(f"thinking: {words[talk.chat.thinking]}, {'shown' if talk.thoughts else 'hidden'}")


def _save(talk: Talk, argument: str) -> None:
    if argument:
        if talk.sessions.has(argument) and argument != talk.name:
            raise BadValue(f"There is a conversation `{argument}` already", "Choose another name")
        talk.name = talk.sessions.write(argument, talk.model, talk.chat.messages)
    if talk.name is None:
        raise PromptError("Nothing was asked yet", None)
    console.say(f"Kept as `{talk.name}`; go on with: localspec chat --session {talk.name}")


def _load_session(talk: Talk, argument: str) -> None:
    from localspec.cli.talk.screen import printable

    if not argument:
        for one in talk.sessions.all():
            console.say(printable(f"  {one.name:<20} {one.updated}  {one.first}"))
        return
    model, messages = talk.sessions.read(argument)
    if model != talk.model:
        console.say(f"It was held with `{model}`; `{talk.model}` goes on with it")
    talk.chat.messages = messages
    talk.name = argument
    retold(messages)


def _undo(talk: Talk, argument: str) -> None:
    text = talk.chat.undo()
    talk.keep()
    console.say(f"Forgotten: {' '.join(text.split())[:70]}")


def _retry(talk: Talk, argument: str) -> None:
    if talk.chat.seed is not None or talk.chat.sampling.greedy:
        console.say("The same answer is to be expected: /set temperature 0.7, or /set seed random")
    talk.answer(talk.chat.retry, keep=1)


def _copy(talk: Talk, argument: str) -> None:
    from localspec.cli.talk import clipboard

    answers = [one["content"] for one in talk.chat.messages if one["role"] == "assistant"]
    if not answers:
        raise PromptError("Nothing was answered yet", None)
    console.say(f"The last answer is copied through {clipboard.copy(str(answers[-1]))}")


def _context(talk: Talk, argument: str) -> None:
    used, reused, context = talk.chat.usage()
    left = f"{used:,} of {context:,} tokens used, {context - used:,} left"
    console.say(f"{left}; {reused:,} are in the cache and are not read again")


def _accepted(talk: Talk, argument: str) -> None:
    """Show the last answer with the guesses that stood in colours, one a source."""
    from localspec.cli.talk.screen import printable
    from localspec.core.text import TextStream

    if not talk.steps:
        raise PromptError("Nothing was answered yet", None)
    stream, colours = TextStream(talk.chat.runtime.tokenizer), dict[str, str]()
    text = []
    for last in talk.steps:
        for at, token in enumerate(last.tokens):
            piece = printable(stream.push(token))
            if at < last.accepted:
                source = last.draft[at].source or talk.chat.runtime.draft_spec.name
                colour = colours.setdefault(source, COLOURS[len(colours) % len(COLOURS)])
                piece = _coloured(piece, colour)
            text.append(piece)
    print("".join(text) + printable(stream.flush()))
    counts = {name: talk.last.stats.sources.get(name) for name in colours} if talk.last else {}
    shown = [
        _coloured(f"{name}" + (f" {share.accepted} of {share.drafted}" if share else ""), colours[name])
        for name, share in counts.items()
    ]
    console.say("guesses that stood: " + (", ".join(shown) or "none"))


def _exit(talk: Talk, argument: str) -> None:
    talk.over = True


def retold(messages: list[dict[str, Any]]) -> None:
    """Show the end of a conversation that goes on."""
    from localspec.cli.talk.screen import printable

    for message in messages[-2:]:
        mark = "> " if message["role"] == "user" else ""
        console.say(console.paint(f"{mark}{printable(str(message['content']))}", console.DIM))


def _coloured(text: str, colour: str) -> str:
    return f"{colour}{text}\x1b[0m" if sys.stdout.isatty() and console.coloured() else f"[{text}]"


def _switch(name: str, word: str) -> bool:
    if word not in SWITCH:
        raise BadValue(f"`{name}` takes `on` or `off`, not `{word}`", None)
    return SWITCH[word]


def _number(kind: type, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise BadValue(f"`{name}` is `{value}`", f"It takes {what}") from None


def _models(talk: Talk) -> list[str]:
    return [model.name for model in talk.library.known()]


def _sessions(talk: Talk) -> list[str]:
    return [one.name for one in talk.sessions.all()]


SETTINGS = (*NUMBERS, "seed", "max-tokens", "stop")
COMMANDS = {
    "help": Command("", "this list", _help),
    "clear": Command("", "begin a new conversation", _clear),
    "system": Command("[TEXT]", "what the model is told first", _system),
    "set": Command("[NAME VALUE]", "temperature, top-k, seed, max-tokens ...", _set, lambda talk: SETTINGS),
    "model": Command("[NAME]", "go on with another model", _model, _models),
    "draft": Command("[auto|off|SPEC]", "who guesses", _draft, lambda talk: ("auto", "off", *_models(talk))),
    "stats": Command("[on|off]", "numbers of the last answer, or of each", _stats, lambda talk: SWITCH),
    "think": Command(
        "[on|off|show|hide]", "think first, and show it", _think, lambda talk: ("on", "off", "show", "hide")
    ),
    "save": Command("[NAME]", "keep the conversation under a name", _save),
    "load": Command("[NAME]", "go on with one that was kept", _load_session, _sessions),
    "undo": Command("", "forget the last question and its answer", _undo),
    "retry": Command("", "answer the last question again", _retry),
    "copy": Command("", "copy the last answer", _copy),
    "context": Command("", "tokens used, reused and left", _context),
    "accepted": Command("", "the last answer, the guesses that stood in colours", _accepted),
    "exit": Command("", "leave", _exit),
}
