"""What a pass costs by its width: the curve that decides how far guessing pays."""

from __future__ import annotations

from time import perf_counter

from localspec.core.contracts import Engine, Session, Tokens
from localspec.errors import PromptError

WIDTHS = (1, 2, 4, 8, 16)  # tokens of a pass
CONTEXTS = (64, 1024)  # tokens before it
REPEAT = 5


def pass_milliseconds(engine: Engine, context: int, repeat: int = REPEAT) -> dict[str, float]:
    """Return the least milliseconds of a pass over each of WIDTHS after `context` tokens.

    Widths take turns. Empty where the engine has no room for so many tokens.
    """
    if context + max(WIDTHS) > engine.context:
        return {}
    session, text = engine.session(), [at % engine.vocab for at in range(3, 3 + context)]
    try:
        session.forward(text, 0)
    except PromptError:
        return {}
    best: dict[str, float] = {}
    for _ in range(repeat):
        for width in WIDTHS:
            _back(session, text)
            started = perf_counter()
            session.forward(text[:width], width)
            spent = round(1000 * (perf_counter() - started), 2)
            best[str(width)] = min(spent, best.get(str(width), spent))
    return best


def curves(engine: Engine) -> dict[str, dict[str, float]]:
    """Return `pass_milliseconds` for each of CONTEXTS that the engine has room for."""
    return {str(context): times for context in CONTEXTS if (times := pass_milliseconds(engine, context))}


def _back(session: Session, text: Tokens) -> None:
    """Rewind to the end of `text`, reading again what the session could not keep."""
    session.forward(text[session.rewind(len(text)) :], 0)
