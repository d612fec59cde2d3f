"""The record of one request, which whatever answers it fills in."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from localspec.serve.generation import End, Event


@dataclass(slots=True)
class Record:
    """The model that a request asks, and its answers that have ended."""

    model: str | None = None
    ends: list[End] = field(default_factory=list)


CURRENT: ContextVar[Record | None] = ContextVar("record", default=None)


def note(model: str, event: Event) -> None:
    """Take an event of an answer into the record of the request that is being answered."""
    record = CURRENT.get()
    if record is not None:
        record.model = model
        if isinstance(event, End):
            record.ends.append(event)
