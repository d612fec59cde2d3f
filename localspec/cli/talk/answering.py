"""Answer a question of a conversation, and make room when the context is full."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from time import monotonic
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.answers import describe_file, format_speed, report
from localspec.cli.talk import attach, screen
from localspec.cli.talk.entry import no_echo
from localspec.cli.talk.terminal.bar import Bar
from localspec.errors import ContextFull, EmptyPrompt
from localspec.pictures.messages import IMAGES

if TYPE_CHECKING:
    from localspec.chat import Reply
    from localspec.cli.talk.state import Talk
    from localspec.core.types import Step
    from localspec.runtime.answer import Answer

SAVE_INTERVAL = 0.2  # minimum seconds between two saves of an answer in progress
SAVE_COST_FACTOR = 20.0  # the interval is at least this many times what a save takes
MAX_FILL = 7 / 8  # of the context, after turns are dropped
SUMMARY_ROOM = 1 / 4  # of the context
FULL_QUESTION = "[d]rop the oldest turns, [s]ummarize them, or Enter to cancel: "


def ask(talk: Talk, text: str, images: Sequence[str] = ()) -> None:
    """Answer a question with the files that it names, and with `images` in base64."""
    for word in attach.missing(text):
        console.say(f"No such file: `{word}`; it is sent as text")
    named = [file for file in map(attach.read_any, attach.named(text)) if _is_new(file, text, images)]
    for file in named:
        describe_file(file, talk.chat.runtime)
    files = [*talk.files, *named]
    prompt = attach.together(text, files)
    if not prompt.strip():
        raise EmptyPrompt
    pictures = [*images, *attach.images(files)]
    if answer(talk, lambda: talk.chat.ask(prompt, pictures)):
        talk.files = []


def _is_new(file: attach.File, text: str, images: Sequence[str]) -> bool:
    """Return whether a file that a question names is not in it, as it is when the question is edited."""
    if isinstance(file, attach.AttachedPicture):
        return file.encoded not in images
    return file.in_prompt() not in text


def ask_instead(talk: Talk, text: str) -> None:
    """Answer a question in place of the last one, which stays, with its answer, if this one cannot begin."""
    held = talk.chat.messages
    images = held[talk.chat.turns[-1]].get(IMAGES, ()) if talk.chat.turns else ()
    talk.chat.undo()
    shorter = talk.chat.messages
    try:
        ask(talk, text, images)
    finally:
        if talk.chat.messages == shorter:
            talk.chat.messages = held


def why_the_same(talk: Talk) -> str | None:
    """Return why another answer to the last question would be the same, None if it may be another."""
    chat = talk.chat
    if not chat.turns or talk.asked_with.get(chat.turns[-1]) != talk.settings:
        return None
    if chat.runtime.decoding_spec:
        return f"`{chat.runtime.decoding_spec}` draws no tokens. Start without `--decoding` for another"
    if chat.sampling.greedy:
        return "the temperature is 0. /set temperature 0.7 allows another"
    return None if chat.seed is None else f"the seed is {chat.seed}. /set seed random allows another"


def answer(talk: Talk, begin: Callable[[], Reply], keep: int = 0) -> bool:
    """Show the answer that `begin` starts; return False when the user cancels it.

    When the context is full, the user chooses which turns to drop, except for the last `keep`. All turns
    stay when the answer cannot start.
    """
    messages = talk.chat.messages
    reply = None
    try:
        while reply is None:
            try:
                reply = begin()
            except ContextFull as error:
                if not make_room(talk, error, keep):
                    talk.chat.messages = messages
                    return False
    except BaseException:
        talk.chat.messages = messages
        raise
    show(talk, *reply)
    return True


def show(talk: Talk, current: Answer, steps: Generator[Step, None, None]) -> None:
    """Show an answer as it streams, and save it; Ctrl-C stops it and keeps the part that is written."""
    talk.last_answer, talk.steps = current, []
    talk.asked_with[talk.chat.turns[-1]] = talk.settings
    out = screen.writer(sys.stdout, markdown=talk.markdown, thoughts=talk.show_reasoning)
    try:
        talk.save()
        reading = screen.prompt_progress(talk.chat.runtime, current)
        shown = screen.stream(steps, out, thinking=talk.chat.splitter(), reading=reading)
        with Bar(talk.stats) as bar, no_echo(), closing(shown):
            due = monotonic() + SAVE_INTERVAL
            for step in shown:
                talk.steps.append(step)
                tokens = len(current.token_ids)
                bar.show(f"{format_speed(current)} | {tokens:,} token{'s' * (tokens != 1)}")
                if (now := monotonic()) > due:
                    talk.save(current)
                    due = monotonic() + max(SAVE_INTERVAL, SAVE_COST_FACTOR * (monotonic() - now))
    except KeyboardInterrupt:
        talk.keyboard.drop()
    finally:
        talk.save()
    report(current, talk.chat, talk.stats)


def make_room(talk: Talk, error: ContextFull, keep: int) -> bool:
    """Ask how to make room and do it; return False for a cancel. Raises `error` when no turn can go."""
    if len(talk.chat.turns) <= keep:
        raise error
    console.say(f"{error.message}.")
    with talk.keyboard.lent(as_before=True):
        console.say(FULL_QUESTION, end="")  # now that an answer is read as a line
        try:
            word = input().strip().lower()
        except EOFError:
            word = ""
    if word in ("d", "drop"):
        pending = error.tokens - talk.chat.usage().used
        drop_oldest_turns(talk, keep, pending)
    elif word in ("s", "sum", "summarize"):
        summarize(talk, keep)
    else:
        console.say("Cancelled: nothing was asked or dropped")
        return False
    return True


def drop_oldest_turns(talk: Talk, keep: int, pending: int) -> None:
    """Drop the oldest turns until `pending` tokens and an answer fit."""
    dropped = 0
    while not dropped or talk.chat.usage().used + pending > talk.chat.runtime.engine.context * MAX_FILL:
        messages = talk.chat.drop_oldest(keep)
        if not messages:
            break
        dropped += messages
    if dropped:
        console.say(f"Dropped {dropped} messages")


def summarize(talk: Talk, keep: int) -> None:
    """Have the model summarize the turns; the oldest are dropped first when the summary does not fit."""
    if talk.chat.usage().used > talk.chat.runtime.engine.context * (1 - SUMMARY_ROOM):
        drop_oldest_turns(talk, keep, 0)
    _, steps = talk.chat.summarise(keep)
    console.say("The model's summary:", console.DIM)
    out = screen.PlainWriter(sys.stderr, safe=True)
    with no_echo():
        for _ in screen.stream(steps, out, thinking=None):
            pass
