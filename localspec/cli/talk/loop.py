"""Ask, answer, and keep what was said, until the end of the input."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any

from localspec.cli import console
from localspec.cli.talk import attach, commands, screen
from localspec.cli.talk.entry import Entry, paths
from localspec.core.thinking import Thinking
from localspec.errors import ContextFull, EmptyPrompt, LocalspecError, StorageError

if TYPE_CHECKING:
    from localspec.chat import Chat, Reply
    from localspec.choosing import Choice
    from localspec.core.contracts import Round
    from localspec.library import Library
    from localspec.runtime import Answer, Runtime
    from localspec.sessions import Sessions

KEPT_EVERY = 1.0  # seconds between two writes of an answer that is being written
FULL = "The context is full. [d]rop the oldest turns, [s]um them up, or Enter to stop: "


@dataclass
class Talk:
    """A conversation on a terminal: the chat, how it is shown, and where it is kept."""

    chat: Chat
    model: str
    choice: Choice
    library: Library
    sessions: Sessions
    name: str | None  # under which it is kept, None until then
    after: Callable[[Answer, Runtime, bool], None]  # says what is to be said after an answer
    tell: Callable[[attach.Attached, Runtime], None]  # says what a file adds
    stats: bool = False
    thoughts: bool = True
    markdown: bool = False
    files: list[attach.Attached] = field(default_factory=list)  # that go with the next question
    last: Answer | None = None
    rounds: list[Round] = field(default_factory=list)  # of the last answer
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
            self.tell(file, self.chat.runtime)
        whole = attach.together(text, files)
        if not whole.strip():
            raise EmptyPrompt
        self.answer(lambda: self.chat.ask(whole))
        self.files = []

    def answer(self, begin: Callable[[], Reply]) -> None:
        """Show the answer that `begin` begins; where the context is full, the user chooses what goes."""
        while True:
            try:
                answer, rounds = begin()
                break
            except ContextFull as error:
                if not self.make_room(error):
                    return
        self.show(answer, rounds)

    def show(self, answer: Answer, rounds: Generator[Round, None, None]) -> None:
        """Show an answer as it streams and keep it; Ctrl-C stops it, and what there is stays."""
        self.last, self.rounds = answer, []
        self.keep()
        out = screen.writer(sys.stdout, markdown=self.markdown, thoughts=self.thoughts)
        thinking = Thinking(self.chat.begins_in_thought) if not self.chat.raw else None
        kept = monotonic()
        try:
            with closing(screen.stream(rounds, out, thinking=thinking)) as shown:
                for last in shown:
                    self.rounds.append(last)
                    if monotonic() - kept > KEPT_EVERY:
                        self.keep(answer.text)
                        kept = monotonic()
        except KeyboardInterrupt:
            pass
        finally:
            self.keep()
        self.after(answer, self.chat.runtime, self.stats)

    def make_room(self, error: ContextFull) -> bool:
        """Ask what is to go; tell whether there is room now."""
        console.say(f"{error.message}.")
        sys.stderr.write(FULL)
        sys.stderr.flush()
        try:
            word = input().strip().lower()
        except EOFError:
            word = ""
        if word in ("d", "drop"):
            gone = self.chat.drop_oldest()
            console.say(f"{gone} messages are left out" if gone else "There is but one turn left")
            return gone > 0
        if word in ("s", "sum"):
            self.sum_up()
            return True
        console.say("Nothing was asked")
        return False

    def sum_up(self) -> None:
        """Have the model sum up the turns, so many of the latest ones as there is room for."""
        while True:
            try:
                answer, rounds = self.chat.summarise()
                break
            except ContextFull:
                if not self.chat.drop_oldest():
                    raise
        out = screen.PlainWriter(sys.stderr, safe=True)
        with closing(rounds):
            for last in rounds:
                out.push(last.text)
        out.end()
        self.keep()

    def keep(self, partial: str = "") -> None:
        """Write the conversation, with what there is of an answer; where that fails, say so once."""
        if not self.keeps:
            return
        messages: list[dict[str, Any]] = list(self.chat.messages)
        if partial:
            messages.append({"role": "assistant", "content": partial})
        try:
            self.name = self.name or self.sessions.begin(self.model)
            self.sessions.write(self.name, self.model, messages)
        except StorageError as error:
            self.keeps = False
            console.say("This conversation is not kept:")
            console.show(error)


def begin(talk: Talk) -> None:
    """Say how to leave, and talk."""
    name = talk.chat.runtime.model.name
    said = f"{name}. Ctrl-C stops an answer, Ctrl-D leaves, /help lists what else there is."
    console.say(console.paint(said, console.DIM))
    talk.run()
