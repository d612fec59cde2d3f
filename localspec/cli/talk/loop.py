"""Ask, answer, and keep what was said, until the end of the input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.answers import after, tell
from localspec.cli.talk import attach, commands, screen
from localspec.cli.talk.entry import Entry, no_echo, paths
from localspec.errors import ContextFull, EmptyPrompt, LocalspecError, StorageError

if TYPE_CHECKING:
    from localspec.chat import Chat, Reply
    from localspec.core.types import Step
    from localspec.library import Library
    from localspec.runtime.generation import Answer
    from localspec.runtime.resolution import Choice
    from localspec.state.conversations import Sessions

KEPT_EVERY = 0.2  # seconds between two writes of an answer that is being written, at least
SHARE = 20.0  # and so many times what a write takes
FILLED = 7 / 8  # of the context: more is not left filled when turns are dropped
ROOM = 1 / 4  # of the context, for a summary
FULL = "[d]rop the oldest turns, [s]um them up, or Enter to ask nothing: "


@dataclass
class Talk:
    """A conversation on a terminal: the chat, how it is shown, and where it is kept."""

    chat: Chat
    model: str
    choice: Choice
    library: Library
    sessions: Sessions
    name: str | None  # under which it is kept, None until then
    stats: bool = False
    thoughts: bool = True
    markdown: bool = False
    files: list[attach.Attached] = field(default_factory=list)  # that go with the next question
    last: Answer | None = None
    steps: list[Step] = field(default_factory=list)  # of the last answer
    keeps: bool = True
    over: bool = False

    def run(self) -> None:
        """Talk until the end of the input."""
        entry = Entry(self.library.home / "history", self.complete)
        while not self.over:
            try:
                text = entry.read()
            except KeyboardInterrupt:
                console.say("Ctrl-D leaves")
                continue
            except EOFError:
                console.say("")
                return
            if text.strip() or self.files:
                self.take(text)

    def take(self, text: str) -> None:
        """Run a command or ask a question; what is wrong is said, and the conversation goes on."""
        try:
            if text.startswith("/") and commands.is_command(text):
                commands.run(self, text)
            else:
                self.ask(text)
        except LocalspecError as error:
            console.show(error)
        except KeyboardInterrupt:
            console.say("Stopped")

    def complete(self, line: str) -> Iterable[str]:
        """Return what the last word of a line may become: a command, what it takes, or a file."""
        word = line.rpartition(" ")[2]
        if word.startswith("@"):
            return [f"@{path}" for path in paths(word[1:])]
        return commands.complete(self, line) if line.startswith("/") else []

    def ask(self, text: str) -> None:
        """Answer a question with the files that it names."""
        for word in attach.missing(text):
            console.say(f"There is no file `{word}`: it is taken as text")
        files = [*self.files, *map(attach.read, attach.named(text))]
        for file in files[len(self.files) :]:
            tell(file, self.chat.runtime)
        whole = attach.together(text, files)
        if not whole.strip():
            raise EmptyPrompt
        if self.answer(lambda: self.chat.ask(whole)):
            self.files = []

    def answer(self, begin: Callable[[], Reply], keep: int = 0) -> bool:
        """Show the answer that `begin` begins, and tell whether there was one.

        Where the context is full the user chooses what goes, but for the last `keep` turns; where nothing
        helps, all turns stay.
        """
        held = self.chat.messages
        try:
            while True:
                try:
                    answer, steps = begin()
                    break
                except ContextFull as error:
                    if not self.make_room(error, keep):
                        self.chat.messages = held
                        return False
        except BaseException:
            self.chat.messages = held
            raise
        self.show(answer, steps)
        return True

    def show(self, answer: Answer, steps: Generator[Step, None, None]) -> None:
        """Show an answer as it streams and keep it; Ctrl-C stops it, and what there is stays."""
        self.last, self.steps = answer, []
        out = screen.writer(sys.stdout, markdown=self.markdown, thoughts=self.thoughts)
        try:
            self.keep()
            with (
                no_echo(),
                closing(screen.stream(steps, out, thinking=self.chat.splitter())) as shown,
            ):
                due = monotonic() + KEPT_EVERY
                for last in shown:
                    self.steps.append(last)
                    if (now := monotonic()) > due:
                        self.keep(answer.text)
                        due = monotonic() + max(KEPT_EVERY, SHARE * (monotonic() - now))
        except KeyboardInterrupt:
            pass
        finally:
            self.keep()
        after(answer, self.chat, self.stats)

    def make_room(self, error: ContextFull, keep: int) -> bool:
        """Ask what is to go; tell whether it went. Raises the error where there is nothing that could go."""
        if len(self.chat.turns) <= keep:
            raise error
        console.say(f"{error.message}.")
        sys.stderr.write(FULL)
        sys.stderr.flush()
        try:
            word = input().strip().lower()
        except EOFError:
            word = ""
        if word in ("d", "drop"):
            pending = error.tokens - self.chat.usage().used
            self.drop(keep, pending)
        elif word in ("s", "sum"):
            self.sum_up(keep)
        else:
            console.say("Nothing was asked, and nothing is gone")
            return False
        return True

    def drop(self, keep: int, pending: int) -> None:
        """Forget the oldest turns until there is room for `pending` tokens and an answer."""
        gone = 0
        while not gone or self.chat.usage().used + pending > self.chat.runtime.engine.context * FILLED:
            dropped = self.chat.drop_oldest(keep)
            if not dropped:
                break
            gone += dropped
        if gone:
            console.say(f"{gone} messages are left out")

    def sum_up(self, keep: int) -> None:
        """Have the model sum up the turns, so many of the latest ones as there is room for."""
        if self.chat.usage().used > self.chat.runtime.engine.context * (1 - ROOM):
            self.drop(keep, 0)
        _, steps = self.chat.summarise(keep)
        console.say(console.paint("The turns in the model's words:", console.DIM))
        out = screen.PlainWriter(sys.stderr, safe=True)
        with no_echo():
            for _ in screen.stream(steps, out, thinking=None):
                pass

    def keep(self, partial: str = "") -> None:
        """Write the conversation, with what there is of an answer; where that fails, say so once."""
        if not self.keeps:
            return
        messages = [*self.chat.messages, *([self.chat.message(partial)] if partial else [])]
        try:
            name = self.name or self.sessions.begin(self.model)
            self.name = self.sessions.write(name, self.model, messages)
            if self.name != name:
                console.say(f"`{name}` went on elsewhere: this is kept as `{self.name}`")
        except StorageError as error:
            self.keeps = False
            console.say("This conversation is not kept:")
            console.show(error)


def begin(talk: Talk) -> None:
    """Say how to leave, and talk."""
    name = talk.chat.runtime.model.name
    said = f"{name}. Ctrl-C stops an answer, Ctrl-D leaves, /help lists what else there is."
    console.say(console.paint(said, console.DIM))
    if talk.chat.turns:
        commands.retold(talk.chat.messages)
    talk.run()
