"""Transcribe files: windows of speech, each decoded with or without a draft, become segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.speech.alignment import words
from localspec.speech.audio import blocks
from localspec.speech.decoding import MOST_TOKENS, Decoded, WindowDecoder
from localspec.speech.draft import SpeechDraft, Worth
from localspec.speech.segments import segments, unread
from localspec.speech.types import RATE, Segment, Window, Word
from localspec.speech.vocabulary import TRANSCRIBE
from localspec.speech.windows import windows

if TYPE_CHECKING:
    from localspec.core.contracts import ExpectingDrafter
    from localspec.speech.model import SpeechModel


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: the `language` as a code, None to detect it; `words` for the time of each word."""

    language: str | None = None
    task: str = TRANSCRIBE
    words: bool = False
    previous_text: bool = False  # the text of the window before is part of the prompt


@dataclass(slots=True)
class SpeechStats:
    """What the windows of a file took, in seconds, and how its drafts fared."""

    audio: float = 0.0
    windows: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_windows: int = 0
    encoder_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0
    align_seconds: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    def add(self, decoded: Decoded) -> None:
        """Count the passes of a window."""
        self.windows += 1
        for step in decoded.steps:
            self.passes += 1
            self.tokens += len(step.tokens)
            self.drafted += step.drafted
            self.accepted += step.accepted


class Transcriber:
    """A speech model, and a draft for it if there is one. One file at a time.

    `language` is that of the last file, and `stats` are what it took.
    """

    def __init__(self, model: SpeechModel, draft: SpeechModel | None = None) -> None:
        self.model = model
        self.draft = SpeechDraft(draft, model) if draft else None
        self.worth = Worth()
        self.language: str | None = None
        self.stats = SpeechStats()
        self._drafter: ExpectingDrafter = plugins.parse(
            "drafters", f"expected:times={model.tokens.first_time}"
        ).make(model.cursor)
        self._policy = plugins.parse("draft_length", "adaptive").make()
        verifier = plugins.parse("verifiers", "exact").make()
        self._decoder = WindowDecoder(model.cursor, model.tokenizer, model.tokens, verifier)
        self._before: list[int] = []

    def transcribe(
        self, path: Path, request: Request, heard: Callable[[float], None] = lambda seconds: None
    ) -> Iterator[Segment]:
        """Yield the segments of a file as its windows are decoded.

        `heard` is told the seconds of the file that are done after each window. Raises BadValue for a
        language or a task that the model does not know, and what `audio.blocks` raises.
        """
        self._check(request)
        self.language, self.stats, self._before = request.language, SpeechStats(), []
        started = perf_counter()
        for window in windows(blocks(path)):
            until: float | None = 0.0
            while until is not None:
                window = Window(window.start + until, window.samples[round(until * RATE) :])
                found, until = self._window(window, request)
                self.stats.seconds = perf_counter() - started
                yield from found
            heard(window.start + len(window.samples) / RATE)
        self.stats.seconds = perf_counter() - started

    def _check(self, request: Request) -> None:
        if request.language is not None or not self.model.tokens.multilingual:
            self.model.tokens.prompt(request.language, request.task)

    def _window(self, window: Window, request: Request) -> tuple[list[Segment], float | None]:
        """Return the segments of a window, and from which second of it the rest is to be read again."""
        model, stats, seconds = self.model, self.stats, len(window.samples) / RATE
        before = model.encoder_seconds
        model.hear(model.encode(window))
        stats.encoder_seconds += model.encoder_seconds - before
        started = perf_counter()
        self.language, nobody = model.listen(self.language)
        earlier = self._before[-(MOST_TOKENS - 1) :] if request.previous_text else []
        prompt = model.tokens.prompt(self.language, request.task, earlier)
        listening = perf_counter() - started
        drafting = self._expect(window, prompt, request)
        started = perf_counter()
        self._decoder.target = model.cursor
        decoded = self._decoder.decode(prompt, self._drafter, self._policy, nobody)
        stats.decode_seconds += perf_counter() - started + listening
        stats.add(decoded)
        stats.audio = window.start + seconds
        self.worth.learn(seconds, decoded.steps, drafting)
        if decoded.silent:
            return [], None
        until = unread(model.tokens, decoded, seconds)
        self._before += [token for token in decoded.tokens if not model.tokens.is_time(token)]
        said = self._words(decoded, seconds, request) if request.words else []
        return segments(model.tokens, model.tokenizer, decoded, window, until, said), until

    def _words(self, decoded: Decoded, seconds: float, request: Request) -> list[tuple[Word, int]]:
        prompt = self.model.tokens.prompt(self.language, request.task)
        started = perf_counter()
        found = words(self.model, prompt, decoded.tokens, decoded.logprobs, seconds, self.language)
        self.stats.align_seconds += perf_counter() - started
        return found

    def _expect(self, window: Window, prompt: list[int], request: Request) -> tuple[float, float] | None:
        """Let the drafter expect what the draft hears; return the seconds it took, None without a draft."""
        self._drafter.expect(prompt, [])
        if self.draft is None:
            return None
        if not self.draft.serves(self.language, request.task):
            note = f"the draft does not know the language `{self.language}`"
            if note not in self.stats.notes:
                self.stats.notes.append(note)
            return None
        if not self.worth.wanted(len(window.samples) / RATE):
            return None
        answer, drafting = self.draft.expected(window, self.language, request.task)
        self._drafter.expect(prompt, answer)
        self.stats.drafted_windows += 1
        self.stats.draft_seconds += sum(drafting)
        return drafting
