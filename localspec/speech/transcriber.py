"""Transcribe files: windows of speech, each decoded with or without a draft, become segments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.core.stats import SourceCounts, Stats
from localspec.speech.audio import blocks, duration
from localspec.speech.types import RATE, Segment, Window, Word
from localspec.speech.voice import VoiceDetector
from localspec.speech.whisper.alignment import words
from localspec.speech.whisper.copies import SpeechCopies, earlier_texts
from localspec.speech.whisper.decoding import MOST_TOKENS, Decoded, WindowDecoder
from localspec.speech.whisper.drafting import Drafting
from localspec.speech.whisper.drafts import Heard
from localspec.speech.whisper.segments import segments, unread
from localspec.speech.whisper.together import MOST_PARTS, cuts
from localspec.speech.whisper.vocabulary import TRANSCRIBE
from localspec.speech.windows import windows

if TYPE_CHECKING:
    from localspec.core.contracts import CopyingDrafter, Drafter, DraftLengthPolicy

EXACT, NONE = ("verifiers", "exact"), ("drafters", "none")
# A pass over 12 tokens takes a small model twice as long as one over a single one, a large model as long.
QUICK = 0.01  # seconds of a pass up to which a model is small
SMALL, LARGE = ("adaptive:max_tokens=3", 4), ("adaptive:max_tokens=15", MOST_PARTS)  # draft length, parts


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: the `language` as a code, None to detect it; `words` for the time of each word."""

    language: str | None = None
    task: str = TRANSCRIBE
    words: bool = False
    previous_text: bool = False  # the text of the window before is part of the prompt


@dataclass(slots=True)
class SpeechStats:
    """The seconds that the windows of a file took, and how many guesses of its drafts stood.

    `sources` counts guesses by source: `copies`, and drafts by their names.
    """

    audio: float = 0.0
    windows: int = 0
    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    sources: dict[str, SourceCounts] = field(default_factory=dict)
    drafted_windows: int = 0
    encoder_seconds: float = 0.0
    decode_seconds: float = 0.0
    draft_seconds: float = 0.0  # before the first pass of each window
    align_seconds: float = 0.0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)  # why a draft was not used

    def add(self, decoded: Decoded, draft: str) -> None:
        """Count the passes of a window, whose draft has a name if it has one."""
        own = Stats()
        for step in decoded.steps:
            own.add(step)
        self.windows += 1
        self.drafted_windows += draft != "" or own.drafted > 0
        self.passes += own.passes
        self.tokens += own.tokens
        self.drafted += own.drafted
        self.accepted += own.accepted
        for source, counts in own.sources.items():
            self.sources.setdefault(source or draft, SourceCounts()).add(counts)


class Transcriber:
    """A speech model, and the drafts for it. One file at a time.

    `language` is that of the last file, and `stats` are what it took.
    """

    def __init__(self, drafting: Drafting) -> None:
        self.model, self.drafting = drafting.target, drafting
        self.language: str | None = None
        self.stats = SpeechStats()
        self._none: Drafter = plugins.parse(*NONE).make(self.model.cursor)
        self._policy: DraftLengthPolicy | None = None
        self._decoder = WindowDecoder(
            self.model.cursor, self.model.tokenizer, self.model.tokens, plugins.parse(*EXACT).make()
        )
        self._before: list[int] = []
        self._texts: CopyingDrafter = earlier_texts(self.model.cursor)  # of this file, to copy from
        self._voices: VoiceDetector | None = None

    def transcribe(
        self,
        path: Path,
        request: Request,
        heard: Callable[[float], None] = lambda seconds: None,
        later: float = 0.0,
    ) -> Iterator[Segment]:
        """Yield the segments of a file as its windows are decoded.

        `heard` is told the seconds of the file that are done after each window. `later` are the seconds of
        the files after it, for which a draft may pay. Raises BadValue for a language or a task that the model
        does not know, and what `audio.blocks` raises.
        """
        model = self.model
        if request.language is not None or not model.tokens.multilingual:
            model.tokens.prompt(request.language, request.task)
        self.language, self.stats, self._before = request.language, SpeechStats(), []
        self._texts = earlier_texts(model.cursor)
        self.drafting.notes = self.stats.notes
        started, whole = perf_counter(), duration(path) or 0.0
        self._voices = self._voices or VoiceDetector()
        self._voices.forget()
        for window in windows(blocks(path), self._voices):
            until: float | None = 0.0
            while until is not None:
                window = Window(window.start + until, window.samples[round(until * RATE) :])
                seconds = len(window.samples) / RATE
                found, until = self._window(window, request, max(seconds, whole - window.start) + later)
                self.stats.seconds = perf_counter() - started
                yield from found
            heard(window.start + seconds)
        self.stats.seconds = perf_counter() - started

    def _window(
        self, window: Window, request: Request, remaining: float
    ) -> tuple[list[Segment], float | None]:
        """Return the segments of a window, and from which second of it the rest is to be read again."""
        model, stats, seconds = self.model, self.stats, len(window.samples) / RATE
        before = model.encoder_seconds
        states = model.encode(window)
        model.hear(states)
        stats.encoder_seconds += model.encoder_seconds - before
        started = perf_counter()
        self.language, nobody = model.listen(self.language)
        earlier = self._before[-(MOST_TOKENS - 1) :] if request.previous_text else []
        prompt = model.tokens.prompt(self.language, request.task, earlier)
        listened = perf_counter()
        policy, most = self._draft_length()
        starts = cuts(window.samples, most) if self.drafting.sources else [0.0]
        heard = Heard(window, starts, states, prompt, self.language, request.task)
        found = self.drafting.drafter(heard, remaining)
        drafter, drafting = found or (self._none, None)
        if self.drafting.copies:
            drafter = SpeechCopies(model.tokens, self._texts, drafter)
        drafted = perf_counter()
        self._decoder.target = model.cursor
        decoded = self._decoder.decode(prompt, drafter, policy, nobody)
        stats.decode_seconds += perf_counter() - drafted + listened - started
        stats.draft_seconds += drafted - listened
        stats.add(decoded, self.drafting.used)
        stats.audio = window.start + seconds
        self.drafting.learn(heard, decoded.steps, drafting)
        if decoded.silent:
            return [], None
        until = unread(model.tokens, decoded, seconds)
        self._before += [token for token in decoded.tokens if not model.tokens.is_time(token)]
        said = self._words(decoded, seconds, request) if request.words else []
        return segments(model.tokens, model.tokenizer, decoded, window, until, said), until

    def _draft_length(self) -> tuple[DraftLengthPolicy, int]:
        """Return the policy, and the number of parts that are written at the same time."""
        policy, most = SMALL if self.model.pass_seconds < QUICK else LARGE
        if self._policy is None:
            self._policy = plugins.parse("draft_length", policy).make()
        return self._policy, most

    def _words(self, decoded: Decoded, seconds: float, request: Request) -> list[tuple[Word, int]]:
        prompt = self.model.tokens.prompt(self.language, request.task)
        started = perf_counter()
        found = words(self.model, prompt, decoded.tokens, decoded.logprobs, seconds, self.language)
        self.stats.align_seconds += perf_counter() - started
        return found
