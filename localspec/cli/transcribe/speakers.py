"""Who says what: load a backend that tells speakers apart, and give each word its speaker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from localspec.errors import MissingExtra

if TYPE_CHECKING:
    from localspec.library import Library, Progress
    from localspec.speech.types import Segment

Speakers = Callable[[Path, list["Segment"], Callable[[float], None]], list["Segment"]]


def loaded(backend: str, count: tuple[int, int] | None, library: Library, progress: Progress) -> Speakers:
    """Return what gives the segments of a file their speakers, of whom there are `count`, from and to."""
    raise MissingExtra("diarization", "speech")
