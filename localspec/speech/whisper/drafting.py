"""Which draft a window gets, if any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.speech.types import RATE
from localspec.speech.whisper.drafts import Heard, SpeechDraft, draft_of
from localspec.speech.whisper.worth import DraftSeconds, Worth

if TYPE_CHECKING:
    from localspec.core.contracts import Drafter
    from localspec.core.types import Step
    from localspec.speech.whisper.model import SpeechModel
    from localspec.speech.whisper.vocabulary import SpeechTokens


@dataclass(slots=True)
class DraftSource:
    """A draft model that may be loaded: `encoder` and `decoder` are its weights by those of the target."""

    name: str
    tokens: SpeechTokens
    encoder: float
    decoder: float
    load: Callable[[], SpeechModel]
    draft: SpeechDraft | None = None
    worth: Worth | None = None


@dataclass(slots=True)
class Drafting:
    """The drafts of one target, best first. One is loaded once it is expected to pay for that too."""

    target: SpeechModel
    sources: Sequence[DraftSource]
    load_seconds: float  # that loading the target took
    notes: list[str] = field(default_factory=list)
    _used: DraftSource | None = None
    _fresh: bool = False

    def drafter(self, heard: Heard, remaining: float) -> tuple[Drafter, DraftSeconds] | None:
        """Return a drafter for a window, and what making it took; None if it gets none.

        `remaining` are the seconds of audio that are left, this window's included.
        """
        seconds = len(heard.window.samples) / RATE
        source = next((each for each in self.sources if each.tokens.knows(heard.language, heard.task)), None)
        self._used = source
        if source is None:
            if self.sources:
                self._note(f"no draft knows the language `{heard.language}`, or how to {heard.task} it")
            return None
        worth = source.worth = source.worth or self._first_guess(source)
        if source.draft is None and worth.gain(remaining) < self.load_seconds * source.decoder:
            return None
        if not worth.wanted(seconds):
            return None
        self._fresh = source.draft is None
        source.draft = source.draft or draft_of(source.load(), self.target)
        return source.draft.drafter(heard)

    def learn(self, window: float, steps: Sequence[Step], draft: DraftSeconds | None) -> None:
        """Learn from the steps of a window of so many seconds; a draft's first window is slow by itself."""
        if self._used is not None and self._used.worth is not None and not (draft and self._fresh):
            self._used.worth.learn(window, steps, draft)

    def _first_guess(self, source: DraftSource) -> Worth:
        """Return what a draft is expected to cost: the target's seconds times the ratio of the weights."""
        target = self.target
        return Worth(
            encoder=source.encoder * target.encode_seconds / 30,
            token=source.decoder * target.pass_seconds,
            plain=target.pass_seconds,
        )

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
