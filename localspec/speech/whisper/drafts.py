"""Drafts of a window: of the target itself, of a smaller model with its encoder, or of one with its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.contracts import Drafter, DraftModel, Engine
from localspec.core.cursor import Cursor
from localspec.speech.types import RATE
from localspec.speech.whisper.together import JointSession, Parts, TogetherDraft, written
from localspec.speech.whisper.worth import DraftSeconds

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.core.contracts import ExpectingDrafter, Session
    from localspec.core.types import Logits
    from localspec.speech.types import Window
    from localspec.speech.whisper.model import SpeechModel

SILENCE = 4.0  # seconds behind a window that a draft hears too: with fewer it tends to repeat its last words


@dataclass(frozen=True, slots=True)
class Heard:
    """A window, where its parts begin, the target's hidden states of it, and the prompt of the answer."""

    window: Window
    cuts: Sequence[float]
    states: Logits
    prompt: Sequence[int]
    language: str | None
    task: str

    @property
    def parts(self) -> int:
        """The number of parts that a draft writes at the same time."""
        return len(self.cuts)


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


class SelfDraft(SpeechDraft):
    """The target itself: beside the answer it writes the later parts of the window, in the same passes.

    What they say is mostly what the answer says too, once it is there.
    """

    def __init__(self, model: SpeechModel, target: SpeechModel) -> None:
        super().__init__(model, target)
        self._expected = _expected(target)

    def drafter(self, heard: Heard) -> tuple[Drafter, DraftSeconds]:
        """Return a drafter that guesses what the parts say; effects: they grow in the target's passes."""
        target, started = self._target, perf_counter()
        prompt = target.tokens.prompt(heard.language, heard.task)
        parts = Parts(target, prompt, heard.cuts, len(heard.window.samples) / RATE, first=1)
        held, target.cursor = target.cursor.tokens, Cursor(JointSession(target.session, parts))
        target.cursor.tokens = held
        drafter = TogetherDraft(parts, self._expected, heard.prompt)
        return drafter, DraftSeconds(0.0, perf_counter() - started)


class ListeningDraft(SpeechDraft):
    """Another model, with its own encoder and maybe vocabulary, which writes a first version of a window.

    Its encoder reads only as many frames as the window has, and SILENCE: the text is then not always what the
    model would have written of 30 seconds, at a part of the cost. It writes all parts in the same passes.
    """

    def __init__(self, model: SpeechModel, target: SpeechModel) -> None:
        super().__init__(model, target)
        self._expected = _expected(target)

    def drafter(self, heard: Heard) -> tuple[Drafter, DraftSeconds]:
        """Return a drafter that expects what the draft wrote."""
        model, started, seconds = self.model, perf_counter(), len(heard.window.samples) / RATE
        model.hear(model.encode(heard.window, seconds + SILENCE))
        listened = perf_counter()
        prompt = model.tokens.prompt(heard.language if model.tokens.multilingual else None, heard.task)
        answer = written(model, prompt, heard.cuts, seconds)
        self._expected.expect(heard.prompt, self._translated(answer))
        return self._expected, DraftSeconds(listened - started, perf_counter() - listened)

    def _translated(self, answer: Sequence[int]) -> Sequence[int]:
        """Return an answer in the target's tokens: its text encoded anew, its times moved."""
        own, other = self.model.tokens, self._target.tokens
        if own.same_text(other):
            return answer
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


class SharedEncoderDraft(SpeechDraft):
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
    """Return the draft that a model is for a target: one that shares its encoder if that is the same."""
    if model is target:
        return SelfDraft(model, target)
    same = model.tokens.same_text(target.tokens) and model.encoder_digest == target.encoder_digest
    return SharedEncoderDraft(model, target) if same else ListeningDraft(model, target)


def _expected(target: SpeechModel) -> ExpectingDrafter:
    found: ExpectingDrafter = plugins.parse("drafters", f"expected:times={target.tokens.first_time}").make(
        target.cursor
    )
    return found


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, without those that begin or end one."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found
