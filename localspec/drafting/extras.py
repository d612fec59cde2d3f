"""The extras of a session that parts ask for: one that reads hints, one that reads pairs."""

from __future__ import annotations

from localspec.core.contracts import HintedSession, PairSession, Session
from localspec.core.cursor import Cursor
from localspec.errors import BadValue


def hinted(target: Cursor, part: str, name: str, k: int) -> tuple[HintedSession, int]:
    """Return the session of a target whose passes read the hints `name`, and the tokens of each: `k`.

    With 0 these are as many as the hints were trained for. Raises BadValue for more, and for an engine that
    reads no hints.
    """
    session = target.session
    if not isinstance(session, HintedSession):
        raise BadValue(
            f"`{part}` needs an engine with `hints`", "Choose one for the target, such as `--engine torch`"
        )
    if k > session.k:
        raise BadValue(
            f"`k` is {k}, and the hints `{name}` were trained for {session.k} tokens a pass",
            f"Leave `k` out, or train others: `localspec train-head MODEL --kind k-forcing --k {k}`",
        )
    return session, k or session.k


def paired(session: Session, part: str) -> PairSession:
    """Return a session that reads pairs; raises BadValue for that of an engine which reads single tokens."""
    if not isinstance(session, PairSession):
        raise BadValue(
            f"`{part}` needs an engine with `pairs`", "Choose one for the target, such as `--engine torch`"
        )
    return session
