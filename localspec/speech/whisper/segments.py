"""From a window's tokens to segments with times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from localspec.core.stop import LENGTH
from localspec.speech.types import RATE, Segment, Window, Word

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.speech.whisper.decoding import Decoded
    from localspec.speech.whisper.vocabulary import SpeechTokens

REST = 1.0  # seconds that are worth another window


class Span(NamedTuple):
    """The tokens of one segment: `first` to `last` are places in the answer, the times in its window."""

    start: float
    end: float
    first: int
    last: int


def spans(tokens: SpeechTokens, answer: tuple[int, ...], end: float) -> list[Span]:
    """Return the segments of an answer; one without a closing time lasts until `end`."""
    found: list[Span] = []
    start, first = 0.0, 0
    for at, token in enumerate(answer):
        if not tokens.is_time(token):
            continue
        time = min(tokens.seconds(token), end)
        if at > first:
            found.append(Span(start, max(time, start), first, at))
        start, first = time, at + 1
    if first < len(answer):
        found.append(Span(start, max(end, start), first, len(answer)))
    return found


def unread(tokens: SpeechTokens, decoded: Decoded, seconds: float) -> float | None:
    """Return the time in a window from which it should be read again; None if it was read to its end.

    As OpenAI's `transcribe`: an answer that ends with two times says that something follows the second, and
    one that was cut off at its limit is sure up to its last time.
    """
    answer = decoded.tokens
    pair = len(answer) > 1 and tokens.is_time(answer[-1]) and tokens.is_time(answer[-2])
    if not pair and decoded.finish != LENGTH:
        return None
    last = max((tokens.seconds(token) for token in answer if tokens.is_time(token)), default=0.0)
    return last if 0 < last < seconds - REST else None


def segments(
    tokens: SpeechTokens,
    tokenizer: Tokenizer,
    decoded: Decoded,
    window: Window,
    until: float | None,
    words: Sequence[tuple[Word, int]] = (),
) -> list[Segment]:
    """Return the segments of a window up to `until`, from where it is read again, or to its end.

    Those without a text are left out: Whisper writes them for music and noise. `words` are those of the
    window, each with the place of its end in the answer; segments have the times of theirs.
    """
    end = len(window.samples) / RATE
    found = []
    for span in spans(tokens, decoded.tokens, end):
        own = decoded.tokens[span.first : span.last]
        text = str(tokenizer.decode(list(own)))
        if not text.strip() or (until is not None and span.start >= until):
            continue
        said = [_moved(word, window.start) for word, place in words if span.first < place <= span.last]
        found.append(
            Segment(
                start=said[0].start if said else round(window.start + span.start, 3),
                end=said[-1].end if said else round(window.start + span.end, 3),
                text=text,
                tokens=own,
                words=tuple(said),
                temperature=decoded.temperature,
                logprob=decoded.logprob,
                no_speech=decoded.no_speech,
                compression=decoded.compression,
            )
        )
    return found


def _moved(word: Word, seconds: float) -> Word:
    return replace(word, start=round(word.start + seconds, 3), end=round(word.end + seconds, 3))
