"""Drafts of a window: a smaller model that listens by itself, or one that uses the target's encoder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.contracts import Drafter, DraftModel, Engine
from localspec.speech.types import RATE
from localspec.speech.whisper.decoding import WindowDecoder
from localspec.speech.whisper.worth import DraftSeconds

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.core.contracts import ExpectingDrafter, Session
    from localspec.core.types import Logits
    from localspec.speech.types import Window
    from localspec.speech.whisper.model import SpeechModel

SILENCE = 4.0  # seconds behind a window that a draft hears too: with fewer it tends to repeat its last words
TOKENS_FIRST, TOKENS_PER_SECOND = 16, 8  # that a draft may write of a window: more is a loop
EXACT, NONE, PLAIN = ("verifiers", "exact"), ("drafters", "none"), ("draft_length", "fixed:tokens=0")


@dataclass(frozen=True, slots=True)
class Heard:
    """A window, the target's hidden states of it [frames, width], and the prompt of the answer to it."""

    window: Window
    states: Logits
    prompt: Sequence[int]
    language: str | None
    task: str


class SpeechDraft(ABC):
    """A smaller speech model that drafts for a larger one."""

    def __init__(self, model: SpeechModel, target: SpeechModel) -> None:
        self.model, self._target = model, target

    def serves(self, language: str | None, task: str) -> bool:
        """Return whether the draft knows the language and the task."""
        return self.model.tokens.knows(language, task)

    @abstractmethod
    def drafter(self, heard: Heard) -> tuple[Drafter, DraftSeconds]:
        """Return a drafter for the answer to what was heard, and what making it took."""


class ListeningDraft(SpeechDraft):
    """A draft that listens and writes by itself; the target is expected to write the same.

    Its vocabulary may be another. Its encoder reads only as many frames as the window has, and SILENCE: the
    text is then not always what the model would have written of 30 seconds, and a third of the cost.
    """

    def __init__(self, model: SpeechModel, target: SpeechModel) -> None:
        super().__init__(model, target)
        self._same = model.tokens == target.tokens
        self._decoder = WindowDecoder(
            model.cursor, model.tokenizer, model.tokens, plugins.parse(*EXACT).make()
        )
        self._expected: ExpectingDrafter = plugins.parse(
            "drafters", f"expected:times={target.tokens.first_time}"
        ).make(target.cursor)

    def drafter(self, heard: Heard) -> tuple[Drafter, DraftSeconds]:
        """Return a drafter that expects what the draft wrote."""
        model, started = self.model, perf_counter()
        seconds = len(heard.window.samples) / RATE
        model.hear(model.encode(heard.window, seconds + SILENCE))
        encoded = perf_counter()
        self._decoder.target = model.cursor
        prompt = model.tokens.prompt(heard.language if model.tokens.multilingual else None, heard.task)
        most = TOKENS_FIRST + round(TOKENS_PER_SECOND * seconds)
        found = self._decoder.attempt(
            prompt, plugins.parse(*NONE).make(model.cursor), plugins.parse(*PLAIN).make(), most=most
        )
        answer = found.tokens if self._same else self._translated(found.tokens)
        self._expected.expect(heard.prompt, [*answer, self._target.tokens.end])
        return self._expected, DraftSeconds(encoded - started, perf_counter() - encoded)

    def _translated(self, answer: Sequence[int]) -> list[int]:
        """Return an answer in the target's tokens: its text encoded anew, its times moved."""
        own, other = self.model.tokens, self._target.tokens
        found: list[int] = []
        text: list[int] = []
        for token in [*answer, own.first_time]:
            if not own.is_time(token):
                text.append(token)
                continue
            found += encoded(self._target.tokenizer, str(self.model.tokenizer.decode(text)))
            found.append(other.first_time + token - own.first_time)
            text = []
        return found[:-1]


class SharedEars(SpeechDraft):
    """A draft with the target's own encoder, such as a distilled model: only its decoder runs."""

    def drafter(self, heard: Heard) -> tuple[Drafter, DraftSeconds]:
        """Return a drafter that runs the draft's decoder token by token."""
        started = perf_counter()
        self.model.session.hear(heard.states)
        draft = DraftModel(_OneSession(self.model.engine, self.model.session), self._target.engine.vocab)
        drafter: Drafter = plugins.part("drafters", "draft_model").made_by(
            self._target.cursor, draft, name="shared"
        )
        return drafter, DraftSeconds(perf_counter() - started, 0.0)


class _OneSession(Engine):
    """An engine whose session has heard something already."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.vocab, self.context, self.device = engine.vocab, engine.context, engine.device
        self._session = session

    def session(self) -> Session:
        """Return that session."""
        return self._session


def draft_of(model: SpeechModel, target: SpeechModel) -> SpeechDraft:
    """Return the draft that a model is for a target: one with its ears if it has the same encoder."""
    same = model.tokens.same_text(target.tokens) and model.encoder_digest == target.encoder_digest
    return SharedEars(model, target) if same else ListeningDraft(model, target)


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, without those that begin or end one."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found
