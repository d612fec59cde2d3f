"""Measure how the cost of a pass grows with the number of its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter

from localspec.core.contracts import Engine, Session
from localspec.core.types import Tokens
from localspec.errors import PromptError

WIDTHS = (1, 2, 4, 8, 16)  # tokens of a pass
CONTEXTS = (64, 1024)  # tokens before it
REPEATS = 7


def pass_milliseconds(engine: Engine, context: int, repeats: int = REPEATS) -> dict[str, float]:
    """Return the median milliseconds of a pass over each of WIDTHS tokens after `context` tokens.

    The widths take turns. Empty if the engine's context is too short.
    """
    (milliseconds,) = compared_pass_milliseconds([engine], context, repeats)
    return milliseconds


def compared_pass_milliseconds(
    engines: Sequence[Engine], context: int, repeats: int = REPEATS
) -> list[dict[str, float]]:
    """Return `pass_milliseconds` of each engine; engines take turns, because machines slow down at times.

    A pass over one token is timed after another one, as in plain decoding: a new width costs OpenVINO 3 ms.
    """
    texts = [[at % engine.vocab for at in range(3, 3 + context)] for engine in engines]
    sessions = [_session_after(engine, text) for engine, text in zip(engines, texts, strict=True)]
    measured: list[dict[str, list[float]]] = [{} for _ in engines]
    for _ in range(repeats):
        for width in WIDTHS:
            for session, text, times in zip(sessions, texts, measured, strict=True):
                if session is None:
                    continue
                if width == 1:
                    _rewind(session, text)
                    session.forward(text[:1], 1)
                _rewind(session, text)
                started = perf_counter()
                session.forward(text[:width], width)
                times.setdefault(str(width), []).append(1000 * (perf_counter() - started))
    return [{width: round(median(of_width), 2) for width, of_width in times.items()} for times in measured]


def curves(engine: Engine) -> dict[str, dict[str, float]]:
    """Return `pass_milliseconds` for each of CONTEXTS that fits the engine."""
    return {str(context): times for context in CONTEXTS if (times := pass_milliseconds(engine, context))}


def pass_seconds(milliseconds: Mapping[str, float]) -> list[float]:
    """Return the seconds of passes over 1, 2, ... 16 tokens, interpolated between those of WIDTHS."""
    known = {int(width): value / 1000 for width, value in milliseconds.items()}
    return [_interpolated(known, width) for width in range(1, max(known) + 1)]


def _interpolated(known: Mapping[int, float], width: int) -> float:
    low = max(at for at in known if at <= width)
    high = min(at for at in known if at >= width)
    share = (width - low) / (high - low) if high > low else 0.0
    return known[low] + share * (known[high] - known[low])


def _session_after(engine: Engine, text: Tokens) -> Session | None:
    """Return a session that has read `text`, None if the text and a pass do not fit its context."""
    if len(text) + max(WIDTHS) > engine.context:
        return None
    session = engine.session()
    try:
        session.forward(text, 0)
    except PromptError:
        return None
    return session


def _rewind(session: Session, text: Tokens) -> None:
    """Rewind to the end of `text`, reading again what the session could not keep."""
    session.forward(text[session.rewind(len(text)) :], 0)
