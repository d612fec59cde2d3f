"""Download a file of the hub so that an interrupted download resumes where it stopped.

huggingface_hub keeps no part of a file once its process ends; a model is one file of gigabytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from localspec.errors import DigestMismatch
from localspec.library import storage
from localspec.library.download import cache
from localspec.library.download.retry import RetryPolicy
from localspec.library.progress import Progress

CHUNK_BYTES = 1 << 14  # small, because an incomplete chunk may be lost when the connection breaks
PARTIAL = ".localspec.incomplete"


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of the hub, and where it goes."""

    name: str
    url: str
    size: int
    blob: Path  # its place in the cache
    digest: str = ""  # sha256; empty for a small file, which is never resumed

    @property
    def partial(self) -> Path:
        """The path of the incomplete file."""
        return self.blob.with_name(self.blob.name + PARTIAL)


def download(file: RemoteFile, progress: Progress, retry: RetryPolicy) -> None:
    """Download what is missing of a file's partial; after an error the received bytes stay.

    Raises NetworkError when the retries are used up, and the hub's errors.
    """
    file.blob.parent.mkdir(parents=True, exist_ok=True)
    with file.partial.open("ab" if file.digest else "wb") as content:
        if content.tell() > file.size:  # left by another file
            content.truncate(0)
            content.seek(0)
        while content.tell() < file.size:
            before = content.tell()
            try:
                _append(file, content, progress)
            except Exception as error:
                if content.tell() > before:
                    retry.reset()
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


def _append(file: RemoteFile, content: BinaryIO, progress: Progress) -> None:
    """Request the missing bytes and append them; raises if the connection breaks before the end."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    present = content.tell()
    with _stream(file.url, present) as (response, chunks):
        hf_raise_for_status(response)
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {present}-")
        if present and not resumed:  # the server sends the whole file
            content.seek(0)
            content.truncate()
            progress.advance(-present)
        for chunk in chunks:
            content.write(chunk)
            progress.advance(len(chunk))
    if content.tell() < file.size:
        raise ConnectionError(f"received {content.tell()} of {file.size} bytes")


@contextmanager
def _stream(url: str, start: int) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """Request a file from byte `start` on, with the hub client's own session, proxies and token.

    Its HTTP library (requests before 1.0, then httpx) follows redirects and sends other hosts no token.
    """
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if callable(session.stream):
        with session.stream("GET", url, headers=headers, timeout=cache.timeout()) as response:
            yield response, response.iter_bytes()
    else:
        with session.get(url, headers=headers, timeout=cache.timeout(), stream=True) as response:
            yield response, response.iter_content(CHUNK_BYTES)
