"""Fetch a large file of the hub so that a download that was killed goes on where it stopped.

huggingface_hub keeps no part of a file once its process ends; a model is one file of gigabytes.
"""

from __future__ import annotations

import os
from pathlib import Path

from localspec.library import disk
from localspec.library.progress import Progress

LARGE = 64 << 20  # bytes; below it, fetching again costs less than thinking about it


def fetch(
    repository: str, file: str, revision: str, endpoint: str | None, blobs: Path, progress: Progress
) -> None:
    """Put one file into the cache's `blobs`, where huggingface_hub looks before it downloads.

    The part that is there goes on growing; it gets its final name when it has its full size.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    url = hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
    about = get_hf_file_metadata(url, endpoint=endpoint)
    if not about.etag or not about.size or (blobs / about.etag).exists():
        return
    blobs.mkdir(parents=True, exist_ok=True)
    partial = blobs / f"{about.etag}.localspec.incomplete"
    with partial.open("ab") as content:
        present = content.tell()
        progress.advance(present)
        if present < about.size:
            http_get(url, content, resume_size=present, headers=build_hf_headers(), expected_size=about.size)
        disk.synced(content)
    if partial.stat().st_size > about.size:  # not what we began to fetch
        partial.unlink()
        return
    os.replace(partial, blobs / about.etag)
