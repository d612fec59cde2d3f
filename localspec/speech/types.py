"""The values that the parts of speech recognition share; all times are seconds from the file's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RATE = 16_000  # samples per second


@dataclass(frozen=True, slots=True)
class Word:
    """A word and when it is said.

    `text` begins with a space where the model writes one. `overlapped`: somebody else talks meanwhile.
    """

    start: float
    end: float
    text: str
    probability: float = 1.0
    speaker: str | None = None
    overlapped: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript: mostly a sentence, or one speaker's part of it.

    `tokens` are those of its text and of its timestamps, `words` is empty unless word times are asked for.
    `temperature`, `logprob` (the mean of its tokens), `no_speech` (a probability) and `compression` (bytes of
    the text by bytes of it compressed) tell how its window was decoded.
    """

    start: float
    end: float
    text: str
    tokens: tuple[int, ...] = ()
    words: tuple[Word, ...] = ()
    speaker: str | None = None
    overlapped: bool = False
    temperature: float = 0.0
    logprob: float = 0.0
    no_speech: float = 0.0
    compression: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """A time in which one speaker talks; the turns of two speakers may overlap."""

    start: float
    end: float
    speaker: str


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of audio that a model reads at once: mono samples at 16 kHz, at most 30 seconds of them."""

    start: float
    samples: NDArray[np.float32]
