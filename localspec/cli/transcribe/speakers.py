"""Load the diarization models, and give each word its speaker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from localspec.library import Library, Progress
    from localspec.speech.types import Segment, Turn

Heard = Callable[[float], None]
Speakers = Callable[[Path, list["Segment"], Heard], list["Segment"]]


def loaded(
    backend: str, count: tuple[int, int] | None, threads: int | None, library: Library, progress: Progress
) -> Speakers:
    """Return what gives the segments of a file their speakers; `count` are the fewest and the most of them.

    Raises LocalspecError if the backend is not installed, and the errors of its download.
    """
    from localspec.speech.speakers import assign

    turns = _pyannote(count, progress) if backend == "pyannote" else _own(count, threads, library, progress)

    def speakers(path: Path, segments: list[Segment], heard: Heard) -> list[Segment]:
        return assign(segments, turns(path, heard)) if segments else segments

    return speakers


def _own(
    count: tuple[int, int] | None, threads: int | None, library: Library, progress: Progress
) -> Callable[[Path, Heard], list[Turn]]:
    from localspec.speech.diarization import installed
    from localspec.speech.diarization.models import Models
    from localspec.speech.diarization.pipeline import diarize

    model = installed.get(library, progress)
    with progress.step(f"Loading {model.name}"):
        models = Models.open(model.folder, threads or 0)
    return lambda path, heard: diarize(path, models, count, heard)


def _pyannote(count: tuple[int, int] | None, progress: Progress) -> Callable[[Path, Heard], list[Turn]]:
    from localspec.speech.diarization import pyannote_backend

    with progress.step("Loading pyannote.audio"):
        pipeline = pyannote_backend.load()
    return lambda path, heard: pyannote_backend.diarize(path, pipeline, count, heard)
