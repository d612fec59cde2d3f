"""Fetch a file of the hub so that a download that broke off or was killed goes on where it stopped.

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
from localspec.library.download.retry import Patience
from localspec.library.progress import Progress

PIECE = 1 << 14  # bytes read at once; what of a piece came before the line broke may be lost
PARTIAL = ".localspec.incomplete"


@dataclass(frozen=True, slots=True)
class Wanted:
    """One file, and what is known of it."""

    name: str
    url: str
    size: int
    blob: Path  # where it goes
    digest: str = ""  # sha256, empty for a small file: that is not gone on with, but fetched anew

    @property
    def partial(self) -> Path:
        """Where it grows until it is whole."""
        return self.blob.with_name(self.blob.name + PARTIAL)


def grow(wanted: Wanted, progress: Progress, patience: Patience) -> None:
    """Fetch what is missing of a file's partial; where the line breaks, what came stays.

    Raises NetworkError when patience ends, and what the hub answers.
    """
    wanted.blob.parent.mkdir(parents=True, exist_ok=True)
    with wanted.partial.open("ab" if wanted.digest else "wb") as content:
        if content.tell() > wanted.size:  # not of this file
            content.truncate(0)
            content.seek(0)
        while content.tell() < wanted.size:
            before = content.tell()
            try:
                _append(wanted, content, progress)
            except Exception as error:
                if content.tell() > before:
                    patience.renew()
                patience.outlast(error, f"`{wanted.name}`")
        storage.synced(content)


def settle(wanted: Wanted, progress: Progress) -> None:
    """Give a partial its name if it is what the hub says; else drop it and raise DigestMismatch."""
    if (size := storage.size_of(wanted.partial)) != wanted.size:
        wanted.partial.unlink()
        raise wrong(wanted.name, f"{size:,} bytes", f"{wanted.size:,}")
    if wanted.digest:
        found = storage.digest_of(wanted.partial, progress, f"Checking {wanted.name}")
        if found != wanted.digest:
            wanted.partial.unlink()
            raise wrong(wanted.name, f"sha256 {found[:12]}…", f"{wanted.digest[:12]}…")
    os.replace(wanted.partial, wanted.blob)


def wrong(name: str, found: str, expected: str) -> DigestMismatch:
    """Say that a file is another than the hub says."""
    return DigestMismatch(
        f"`{name}` is not the file expected: {found}, not {expected}",
        "Nothing of it was kept: try again; if it stays so, do not use that file",
    )


def _append(wanted: Wanted, content: BinaryIO, progress: Progress) -> None:
    """Ask for what is missing and write what comes; raises when the line breaks off before the end."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    present = content.tell()
    with _answer(wanted.url, present) as (response, pieces):
        hf_raise_for_status(response)
        goes_on = response.headers.get("Content-Range", "").startswith(f"bytes {present}-")
        if present and not goes_on:  # it was sent from the start
            content.seek(0)
            content.truncate()
            progress.advance(-present)
        for piece in pieces:
            content.write(piece)
            progress.advance(len(piece))
    if content.tell() < wanted.size:
        raise ConnectionError(f"{content.tell()} of {wanted.size} bytes came")


@contextmanager
def _answer(url: str, start: int) -> Iterator[tuple[Any, Iterator[bytes]]]:
    """Ask for a file from its byte `start` on, with the hub client's own connections, proxies and token.

    Its HTTP library follows redirects, and tells another host no token. It was requests before 1.0.
    """
    from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

    session: Any = get_session()
    headers = build_hf_headers() | {"Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    if callable(session.stream):
        with session.stream("GET", url, headers=headers, timeout=cache.patience()) as response:
            yield response, response.iter_bytes()
    else:
        with session.get(url, headers=headers, timeout=cache.patience(), stream=True) as response:
            yield response, response.iter_content(PIECE)
