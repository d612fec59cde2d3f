"""Which draft a window gets, if any."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.speech.features import SECONDS
from localspec.speech.types import RATE
from localspec.speech.whisper.drafts import Heard, SpeechDraft, draft_of
from localspec.speech.whisper.worth import DraftSeconds, Worth

if TYPE_CHECKING:
    from localspec.core.contracts import Drafter
    from localspec.core.types import Step
    from localspec.speech.whisper.model import SpeechModel
    from localspec.speech.whisper.vocabulary import SpeechTokens


WIDER = 1.5  # what a pass over a token of each part takes, by one over a single token


@dataclass(slots=True)
class DraftSource:
    """A draft model that may be loaded: `encoder` and `decoder` are its weights by those of the target.

    Both are 0 for the target itself, which drafts windows of at least two parts.
    """

    name: str
    tokens: SpeechTokens
    encoder: float
    decoder: float
    load: Callable[[], SpeechModel]
    draft: SpeechDraft | None = None
    worth: Worth = field(default_factory=Worth)

    def serves(self, heard: Heard) -> bool:
        """Return whether it can draft a window."""
        return (heard.parts > 1 or self.encoder > 0) and self.tokens.knows(heard.language, heard.task)


@dataclass(slots=True)
class Drafting:
    """The drafts of one target, best first. One is loaded once it is expected to pay for that too.

    Copies of what was said earlier in a file come beside them, or alone, where a pass of the target takes at
    least `copies_from` seconds.
    """

    target: SpeechModel
    sources: Sequence[DraftSource]
    load_seconds: float  # that loading the target took
    copies_from: float = math.inf
    notes: list[str] = field(default_factory=list)
    _used: DraftSource | None = None
    _fresh: bool = False

    @property
    def copies(self) -> bool:
        """Whether the window at hand gets copies."""
        return self.target.pass_seconds >= self.copies_from

    @property
    def used(self) -> str:
        """The name of the last window's draft, empty if it had none."""
        return self._used.name if self._used else ""

    def drafter(self, heard: Heard, remaining: float) -> tuple[Drafter, DraftSeconds] | None:
        """Return a drafter for a window, and what making it took; None if it gets none.

        `remaining` are the seconds of audio that are left, this window's included.
        """
        seconds = len(heard.window.samples) / RATE
        known = [source for source in self.sources if source.serves(heard)]
        self._used = None
        if self.sources and not any(each.tokens.knows(heard.language, heard.task) for each in self.sources):
            self._note(f"no draft knows the language `{heard.language}`, or how to {heard.task} it")
        for source in known:
            if not source.worth.plain:
                self._guess(source)
        best = max(known, key=lambda source: self._gain(source, remaining, heard.parts), default=None)
        if best is None or not best.worth.wanted(seconds, heard.parts):
            return None
        if best.draft is None and self._gain(best, remaining, heard.parts) < 0:
            return None
        self._used, self._fresh = best, best.draft is None
        best.draft = best.draft or draft_of(best.load(), self.target)
        return best.draft.drafter(heard)

    def _gain(self, source: DraftSource, remaining: float, parts: int) -> float:
        """Return the seconds that a draft saves in the rest of the audio, less those of loading it."""
        loading = 0.0 if source.draft or not source.encoder else self.load_seconds * source.decoder
        return source.worth.gain(remaining, parts) - loading

    def learn(self, heard: Heard, steps: Sequence[Step], draft: DraftSeconds | None) -> None:
        """Learn from the steps of a window; a draft's first window is slow by itself."""
        for source in self.sources:
            if not (source is self._used and self._fresh):
                own = draft if source is self._used else None
                source.worth.learn(len(heard.window.samples) / RATE, heard.parts, steps, own)

    def _guess(self, source: DraftSource) -> None:
        """Guess at first what a draft costs: the target's seconds times the ratio of the weights."""
        source.worth.encoder = source.encoder * self.target.last_encoder_seconds / SECONDS
        source.worth.token = source.decoder * self.target.pass_seconds * WIDER
        source.worth.plain = self.target.pass_seconds

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
