"""Download a file of the hub so that an interrupted download resumes where it stopped.

huggingface_hub keeps no part of a file once its process ends; a model is one file of gigabytes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from localspec.errors import DigestMismatch, LocalspecError
from localspec.library import storage
from localspec.library.download import transfer
from localspec.library.download.names import RepoFile, Sha256
from localspec.library.download.retry import RetryPolicy
from localspec.library.download.transfer import Pace, requested
from localspec.library.progress import Progress

PARTIAL = ".localspec.incomplete"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the hub, and where it goes."""

    name: RepoFile
    url: str
    size: int
    blob: Path  # its place in the cache
    digest: Sha256 | None = None  # None for a small file, which is never resumed

    @property
    def partial(self) -> Path:
        """The path of the incomplete file."""
        return self.blob.with_name(self.blob.name + PARTIAL)


def download(file: RemoteFile, progress: Progress, retry: RetryPolicy) -> None:
    """Download what is missing of a file's partial; after an error the received bytes stay.

    Raises NetworkError when the retries are used up, for a body that is longer than the file or too slow, and
    the hub's errors.
    """
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    pace = Pace(progress)
    with file.partial.open("ab" if file.digest else "wb") as content:
        if content.tell() > file.size:  # left by another file
            content.truncate(0)
            content.seek(0)
        while content.tell() < file.size:
            before = content.tell()
            try:
                _append(file, content, progress, pace)
            except LocalspecError:
                raise
            except Exception as error:
                retry.received(content.tell() - before)
                retry.wait_or_raise(error, f"`{file.name}`")
        storage.sync_file(content)


def finish(file: RemoteFile, progress: Progress) -> None:
    """Move a checked partial to its place; delete it and raise DigestMismatch if it is not the hub's file."""
    if (size := storage.size_of(file.partial)) != file.size:
        file.partial.unlink()
        raise mismatch(file.name, f"{size:,} bytes", f"{file.size:,}")
    if file.digest:
        digest = storage.digest_of(file.partial, progress, f"Checking {file.name}")
        if digest != file.digest:
            file.partial.unlink()
            raise mismatch(file.name, f"sha256 {digest[:12]}…", f"{file.digest[:12]}…")
    os.replace(file.partial, file.blob)


def mismatch(name: str, actual: str, expected: str) -> DigestMismatch:
    """Return the error of a file that is not the one the hub lists."""
    return DigestMismatch(
        f"`{name}` is not the expected file: {actual}, expected {expected}",
        "It was deleted; try again, and if the error persists do not use that file",
    )


def _append(file: RemoteFile, content: BinaryIO, progress: Progress, pace: Pace) -> None:
    """Request the missing bytes and append them.

    Raises ConnectionError if the connection breaks before the end, NetworkError if there are too many bytes.
    """
    present = content.tell()
    pace.begin()
    with requested(file.url, present) as (response, chunks):
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {present}-")
        if present and not resumed:  # the server sends the whole file
            content.seek(0)
            content.truncate()
            progress.advance(-present)
        missing = file.size - content.tell()
        if (transfer.announced(response) or 0) > missing:
            raise transfer.too_long(file.name, missing)
        for chunk in transfer.at_most(chunks, missing, file.name, pace):
            content.write(chunk)
            progress.advance(len(chunk))
    if content.tell() < file.size:
        raise ConnectionError(f"received {content.tell()} of {file.size} bytes")
