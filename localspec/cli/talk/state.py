"""A conversation on a terminal: its chat, how it is shown, and where it is saved."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.cli import console
from localspec.cli.talk.terminal.keyboard import Keyboard
from localspec.errors import StorageError

if TYPE_CHECKING:
    from localspec.chat import Chat
    from localspec.cli.talk.attach import File
    from localspec.core.types import Step
    from localspec.library import Library
    from localspec.runtime.answer import Answer
    from localspec.runtime.choice import Choice
    from localspec.state.conversations import Sessions

Settings = tuple[Hashable, ...]


@dataclass
class Talk:
    """A chat with the choices and the display settings that commands change."""

    chat: Chat
    model: str
    choice: Choice
    library: Library
    sessions: Sessions
    name: str | None  # of the saved conversation, None until it is saved
    keyboard: Keyboard = field(default_factory=Keyboard)
    stats: bool = False
    show_reasoning: bool = True
    markdown: bool = False
    files: list[File] = field(default_factory=list)  # for the next question
    last_answer: Answer | None = None
    steps: list[Step] = field(default_factory=list)  # of the last answer
    asked_with: dict[int, Settings] = field(default_factory=dict)  # by the positions of questions
    draft: str = ""  # what the next line begins with
    editing: bool = False  # the line replaces the last question
    saving: bool = True
    over: bool = False

    @property
    def settings(self) -> Settings:
        """All that an answer depends on, besides the conversation."""
        chat = self.chat
        parts = (chat.runtime.model.name, str(chat.runtime.decoding_spec), chat.system, chat.thinking)
        return (*parts, chat.sampling, chat.seed, chat.max_tokens, tuple(chat.stop), chat.grammar)

    def next_draft(self) -> str:
        """Return what the next line begins with: the last question, if it is edited."""
        draft, self.draft = self.draft, ""
        self.editing = bool(draft)
        return draft

    def save(self, partial: Answer | None = None) -> None:
        """Save the conversation with a `partial` answer; if that fails, say so and stop saving."""
        if not self.saving:
            return
        messages = list(self.chat.messages)
        if partial is not None and partial.text:
            messages.append(self.chat.message(partial.text, partial.marks))
        try:
            name = self.name or self.sessions.begin(self.model)
            self.name = self.sessions.write(name, self.model, messages)
            if self.name != name:
                console.say(f"`{name}` was continued elsewhere: this one is saved as `{self.name}`")
        except StorageError as error:
            self.saving = False
            console.say("This conversation is not saved:")
            console.show(error)
