"""What a pass costs by its width: the curve that decides how far guessing pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from time import perf_counter

from localspec.core.contracts import Engine, Session
from localspec.core.types import Tokens
from localspec.errors import PromptError

WIDTHS = (1, 2, 4, 8, 16)  # tokens of a pass
CONTEXTS = (64, 1024)  # tokens before it
REPEAT = 7


def pass_milliseconds(engine: Engine, context: int, repeat: int = REPEAT) -> dict[str, float]:
    """Return the median milliseconds of a pass over each of WIDTHS after `context` tokens.

    Widths take turns. Empty where the engine has no room for so many tokens.
    """
    (found,) = by_turns([engine], context, repeat)
    return found


def by_turns(engines: Sequence[Engine], context: int, repeat: int = REPEAT) -> list[dict[str, float]]:
    """Return `pass_milliseconds` of each engine; all take turns, as machines are busy at times."""
    texts = [[at % engine.vocab for at in range(3, 3 + context)] for engine in engines]
    sessions = [_begun(engine, text) for engine, text in zip(engines, texts, strict=True)]
    spent: list[dict[str, list[float]]] = [{} for _ in engines]
    for _ in range(repeat):
        for width in WIDTHS:
            for session, text, found in zip(sessions, texts, spent, strict=True):
                if session is None:
                    continue
                _back(session, text)
                started = perf_counter()
                session.forward(text[:width], width)
                found.setdefault(str(width), []).append(1000 * (perf_counter() - started))
    return [{width: round(median(times), 2) for width, times in found.items()} for found in spent]


def curves(engine: Engine) -> dict[str, dict[str, float]]:
    """Return `pass_milliseconds` for each of CONTEXTS that the engine has room for."""
    return {str(context): times for context in CONTEXTS if (times := pass_milliseconds(engine, context))}


def seconds(milliseconds: Mapping[str, float]) -> list[float]:
    """Return the seconds of passes over 1, 2, ... 16 tokens: on lines through those of WIDTHS."""
    known = {int(width): spent / 1000 for width, spent in milliseconds.items()}
    return [_between(known, width) for width in range(1, max(known) + 1)]


def _between(known: Mapping[int, float], width: int) -> float:
    low = max(at for at in known if at <= width)
    high = min(at for at in known if at >= width)
    share = (width - low) / (high - low) if high > low else 0.0
    return known[low] + share * (known[high] - known[low])


def _begun(engine: Engine, text: Tokens) -> Session | None:
    """Return a session that has read `text`, None where there is no room for it and a pass."""
    if len(text) + max(WIDTHS) > engine.context:
        return None
    session = engine.session()
    try:
        session.forward(text, 0)
    except PromptError:
        return None
    return session


def _back(session: Session, text: Tokens) -> None:
    """Rewind to the end of `text`, reading again what the session could not keep."""
    session.forward(text[session.rewind(len(text)) :], 0)
