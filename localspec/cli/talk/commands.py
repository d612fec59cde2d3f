"""The commands of a conversation, such as `/help`."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.answers import format_stats_line
from localspec.cli.talk import answering, clipboard, saved
from localspec.cli.talk.change_settings import SETTINGS, change_settings
from localspec.cli.talk.terminal.keyboard import is_capable
from localspec.errors import BadValue, PromptError, suggestion

if TYPE_CHECKING:
    from localspec.cli.talk.state import Talk
    from localspec.runtime.choice import Choice

ON_OFF = {"on": True, "off": False}
THINK = ("on", "off", "show", "hide")
_CODE = re.compile(r"^ {0,3}(?P<fence>```+|~~~+)[^\n]*\n(?P<code>.*?)^ {0,3}(?P=fence)\s*?$", re.M | re.S)
COLOURS = ("\x1b[32m", "\x1b[36m", "\x1b[35m", "\x1b[33m", "\x1b[34m")


@dataclass(frozen=True, slots=True)
class Command:
    """A command: its argument for the help, its help, its function, and the completions of its argument."""

    argument: str
    help: str
    run: Callable[[Talk, str], None]
    choices: Callable[[Talk], Iterable[str]] = lambda talk: ()


def is_command(text: str) -> bool:
    """Return whether a text that begins with a slash is a command rather than a path or a comment of code."""
    word = text.split()[0]
    return word == "/" or (word[1].isalpha() and "/" not in word[1:])


def run(talk: Talk, text: str) -> None:
    """Run a command; raises PromptError for an unknown one, LocalspecError for a wrong argument."""
    name, *rest = text[1:].strip().split(None, 1) or [""]
    name = ALIASES.get(name, name)
    if name not in COMMANDS:
        hint = suggestion(name, COMMANDS).replace("`", "`/", 1)
        raise PromptError(f"Unknown command `/{name}`", hint if len(hint) < 40 else "See /help")
    COMMANDS[name].run(talk, "".join(rest).strip())


def complete(talk: Talk, line: str) -> list[str]:
    """Return completions of the last word of a line."""
    name, space, argument = line[1:].partition(" ")
    if not space:
        return [f"/{known}" for known in COMMANDS if known.startswith(name)]
    if name not in COMMANDS or " " in argument:
        return []
    return [choice for choice in COMMANDS[name].choices(talk) if choice.startswith(argument)]


def _help(talk: Talk, argument: str) -> None:
    for name, command in COMMANDS.items():
        console.say(f"  {f'/{name} {command.argument}':<24} {command.help}")
    console.say(
        '\n  """ begins and ends several lines; @PATH attaches a file; Ctrl-G opens $EDITOR;\n'
        "  Tab completes; Ctrl-C stops an answer; Ctrl-D leaves"
    )


def _clear(talk: Talk, argument: str) -> None:
    talk.chat.clear()
    saved = f"; the last one is saved as `{talk.name}`" if talk.name and talk.saving else ""
    talk.name, talk.last_answer, talk.steps, talk.asked_with = None, None, [], {}
    console.say(f"New conversation{saved}")


def _system(talk: Talk, argument: str) -> None:
    if argument:
        talk.chat.system = argument
        talk.save()
    mine, read = talk.chat.system, talk.chat.preamble()
    template = f"the chat template of `{talk.chat.runtime.model.name}`"
    if mine is None:
        console.say(f"You have set none; {template} has its own:" if read else "No system prompt")
    else:
        console.say(mine)
    if mine is not None and read not in ("", mine):
        console.say(f"With what {template} adds:")
    if read not in ("", mine):
        console.say(read, console.DIM)


def _model(talk: Talk, argument: str) -> None:
    if not argument:
        console.say(talk.chat.runtime.model.name)
        return
    _load(talk, argument, talk.choice)
    talk.model = argument
    console.say(f"{talk.chat.runtime.model.name} answers from here on")


def _draft(talk: Talk, argument: str) -> None:
    if argument:
        _load(talk, talk.model, replace(talk.choice, draft=argument, tuned=False))
    console.say(f"drafter: {talk.chat.runtime.draft_spec}")


def _load(talk: Talk, model: str, choice: Choice) -> None:
    from localspec.cli.progress import Terminal
    from localspec.runtime.generation import Runtime

    choice.check()
    old = talk.chat.runtime
    with Terminal() as progress:
        runtime = Runtime.load(model, choice, talk.library, progress, old.engines, old.prompt_cache.limit)
    talk.chat.use(runtime)
    talk.choice = choice
    if talk.chat.note:
        console.say(talk.chat.note)


def _stats(talk: Talk, argument: str) -> None:
    if argument:
        talk.stats = _on_off("/stats", argument)
    elif talk.last_answer is None:
        console.say("No answer yet; `/stats on` shows statistics after each answer")
    else:
        console.say(format_stats_line(talk.last_answer, talk.chat.runtime))


def _think(talk: Talk, argument: str) -> None:
    if argument in ("hide", "show"):
        talk.show_reasoning = argument == "show"
    elif argument:
        talk.chat.thinking = _on_off("/think", argument)
    states = {True: "on", False: "off", None: "the model's default"}
    visibility = "shown" if talk.show_reasoning else "hidden"
    console.say(f"thinking: {states[talk.chat.thinking]}, {visibility}")


def _undo(talk: Talk, argument: str) -> None:
    text = talk.chat.undo()
    talk.save()
    console.say(f"Removed: {' '.join(text.split())[:70]}")


def _retry(talk: Talk, argument: str) -> None:
    if why := answering.why_the_same(talk):
        console.say(f"The same answer comes again: {why}")
    answering.answer(talk, talk.chat.retry, keep=1)


def _edit(talk: Talk, argument: str) -> None:
    if not is_capable():
        raise PromptError("`/edit` needs a terminal that edits lines", "/undo removes the last question")
    if not talk.chat.turns:
        raise PromptError("Nothing was asked yet", None)
    talk.draft = str(talk.chat.messages[talk.chat.turns[-1]]["content"])


def _copy(talk: Talk, argument: str) -> None:
    answers = [message["content"] for message in talk.chat.messages if message["role"] == "assistant"]
    if not answers:
        raise PromptError("There is no answer yet", None)
    text = str(answers[-1])
    if argument:
        blocks = [match["code"] for match in _CODE.finditer(text)]
        if not argument.isdecimal() or not 1 <= int(argument) <= len(blocks):
            raise PromptError(
                f"The last answer has {len(blocks)} code blocks, not a block `{argument}`", None
            )
        text = blocks[int(argument) - 1]
    what = f"code block {argument}" if argument else "the last answer"
    console.say(f"Copied {what} through {clipboard.copy(text)}")


def _context(talk: Talk, argument: str) -> None:
    used, cached, context = talk.chat.usage()
    console.say(f"{used:,} of {context:,} tokens used, {context - used:,} left; {cached:,} in the KV cache")


def _accepted(talk: Talk, argument: str) -> None:
    """Show the last answer with its accepted draft tokens coloured, one colour for each source."""
    from localspec.core.text import TextStream

    if not talk.steps:
        raise PromptError("There is no answer yet", None)
    stream, colours = TextStream(talk.chat.runtime.tokenizer), dict[str, str]()
    parts: list[tuple[str, str]] = []
    for step in talk.steps:
        for position, token in enumerate(step.tokens):
            piece, colour = stream.push(token), ""
            if position < step.accepted:
                source = step.draft[position].source or talk.chat.runtime.draft_spec.name
                colour = colours.setdefault(source, COLOURS[len(colours) % len(COLOURS)])
                piece, colour = _coloured(piece, colour)
            parts.append((piece, colour))
    console.print_parts([*parts, (stream.flush(), "")])
    console.say_parts([("accepted draft tokens: ", ""), *(_legend(talk, colours) or [("none", "")])])


def _legend(talk: Talk, colours: dict[str, str]) -> list[tuple[str, str]]:
    """Return each source in its colour, with its counts where a drafter has several."""
    counts = talk.last_answer.stats.sources if talk.last_answer else {}
    shown: list[tuple[str, str]] = []
    for name, colour in colours.items():
        source = counts.get(name)
        numbers = f" {source.accepted} of {source.drafted}" if source else ""
        shown += [(", ", "")] * bool(shown) + [_coloured(f"{name}{numbers}", colour)]
    return shown


def _exit(talk: Talk, argument: str) -> None:
    talk.over = True


def _coloured(text: str, colour: str) -> tuple[str, str]:
    """Return a text with its colour, or in brackets where there are no colours."""
    return (text, colour) if sys.stdout.isatty() and console.coloured() else (f"[{text}]", "")


def _on_off(name: str, word: str) -> bool:
    if word not in ON_OFF:
        raise BadValue(f"`{name}` takes `on` or `off`, not `{word}`", None)
    return ON_OFF[word]


def _models(talk: Talk) -> list[str]:
    return [model.name for model in talk.library.known()]


def _drafts(talk: Talk) -> list[str]:
    return ["auto", "off", *_models(talk)]


COMMANDS = {
    "help": Command("", "show this list", _help),
    "clear": Command("", "start a new conversation", _clear),
    "system": Command("[TEXT]", "show or set the system prompt", _system),
    "set": Command(
        "[NAME VALUE]", "temperature, top-k, seed, max-tokens ...", change_settings, lambda talk: SETTINGS
    ),
    "model": Command("[NAME]", "switch to another model", _model, _models),
    "draft": Command(
        "[auto|off|SPEC]", "switch to another drafter", _draft, lambda talk: ("auto", "off", *_models(talk))
    ),
    "stats": Command(
        "[on|off]", "statistics of the last answer, or of each as it runs", _stats, lambda talk: ON_OFF
    ),
    "think": Command(
        "[on|off|show|hide]",
        "turn thinking on or off, show or hide it",
        _think,
        lambda talk: ("on", "off", "show", "hide"),
    ),
    "save": Command("[NAME]", "save the conversation under a name", saved.save),
    "load": Command("[NAME]", "continue a saved conversation", saved.load, saved.names),
    "search": Command("TEXT", "list the saved conversations that hold a text", saved.search),
    "export": Command("FILE", "write the conversation as Markdown, or as JSON", saved.export),
    "delete": Command("NAME", "delete a saved conversation", saved.delete, saved.names),
    "undo": Command("", "remove the last question and its answer", _undo),
    "retry": Command("", "answer the last question again", _retry),
    "edit": Command("", "change the last question, and ask it again", _edit),
    "copy": Command("[N]", "copy the last answer, or its code block N", _copy),
    "context": Command("", "tokens used, cached and left", _context),
    "accepted": Command("", "the last answer, its accepted draft tokens coloured", _accepted),
    "exit": Command("", "leave", _exit),
}
ALIASES = {"quit": "exit", "bye": "exit", "q": "exit"}
