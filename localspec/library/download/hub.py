"""Download a model from a Hugging Face hub into the cache that all Hugging Face tools share."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from localspec.errors import LocalspecError, NetworkError, StorageError
from localspec.library import storage
from localspec.library.download import cache, resume
from localspec.library.download.hub_errors import hub_errors, not_cached
from localspec.library.download.retry import RetryPolicy
from localspec.library.download.selection import FileSelection, choose, is_complete
from localspec.library.locks import locked
from localspec.library.progress import Progress
from localspec.library.sources import Fetched, Source

_BLOB = re.compile(r"\w[\w-]*", re.ASCII)  # a safe file name in the cache
_SHA256 = re.compile(r"[0-9a-f]{64}")  # the blob name of a large file


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    revision: str
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes, 0 if unknown
    digests: dict[str, str] = field(default_factory=dict)  # large file -> sha256
    blobs: dict[str, str] = field(default_factory=dict)  # file -> its name in the cache


@dataclass(frozen=True, slots=True)
class DownloadSize:
    """How many bytes of a source are still to be downloaded, and how many it has; 0 if unknown."""

    source: Source
    format: str  # openvino, gguf or safetensors
    download: int = 0
    size: int = 0


OnSize = Callable[[DownloadSize], None]  # called before the first byte; may raise to refuse the download


def fetch(
    source: Source,
    progress: Progress,
    digest: str = "",
    on_size: OnSize | None = None,
    retry: RetryPolicy | None = None,
    format: str = "",
) -> Fetched:
    """Download a model into the cache; return its GGUF file or folder.

    `digest` is the sha256 that a GGUF must have. `format` (openvino, gguf or safetensors) chooses among the
    formats that a repository holds. Cached files are not downloaded again, and are used if the hub cannot be
    reached. Raises NetworkError, UnknownModel if the repository does not exist, UsageError if it is ambiguous
    which of several GGUF files is meant, StorageError before the download if it does not fit, DigestMismatch
    for a file whose sha256 is not the hub's or `digest`; such a file is deleted.
    """
    retry = retry or RetryPolicy(progress)
    listing, selection = _select(source, progress, retry, format)
    if on_size:
        on_size(_download_size(source, listing, selection))
    folder, checked = _download(source, listing, selection, progress, retry)
    pinned = source.at(folder.name)
    if selection.format != "gguf":
        return Fetched(selection.format, folder, pinned)
    file = selection.files[0]
    expected = digest or listing.digests.get(file, "")
    actual = checked.get(file) or storage.digest_of(folder / file, progress, f"Checking {Path(file).name}")
    if expected and actual != expected:
        blob = cache.repository(source) / "blobs" / listing.blobs.get(file, file)
        cache.remove_file(folder / file, blob)
        raise resume.mismatch(file, f"sha256 {actual[:12]}…", f"{expected[:12]}…")
    return Fetched("gguf", folder / file, pinned, digest=actual, expected=expected)


def _select(
    source: Source, progress: Progress, retry: RetryPolicy, format: str
) -> tuple[Listing, FileSelection]:
    """List the repository and select files; use the cache if the hub cannot be reached."""
    if cache.offline():
        return _from_cache(source, format, not_cached(source))
    try:
        with hub_errors(source):
            listing = retry.call(f"`{source.name}`", lambda: _list_files(source))
    except NetworkError as error:
        cached = _from_cache(source, format, error)
        progress.say(f"{error.message}; using the cached files")
        return cached
    return listing, choose(source, listing.sizes, format)


def _list_files(source: Source) -> Listing:
    """List a repository's files; raises the errors of huggingface_hub."""
    cache.disable_telemetry()
    from huggingface_hub import HfApi

    info = HfApi(endpoint=cache.endpoint()).model_info(
        source.name, revision=source.version or None, files_metadata=True, timeout=cache.timeout()
    )
    commit = info.sha or ""
    if not _BLOB.fullmatch(commit):
        raise NetworkError(f"`{cache.host()}` gives no commit for `{source.name}`", "Use another hub")
    files: dict[str, Any] = {
        file.rfilename: file for file in info.siblings or [] if _is_inside(file.rfilename)
    }
    large = {name: file.lfs.sha256 for name, file in files.items() if getattr(file, "lfs", None)}
    small = {name: file.blob_id for name, file in files.items() if getattr(file, "blob_id", None)}
    return Listing(commit, {name: file.size or 0 for name, file in files.items()}, large, small | large)


def _is_inside(name: str) -> bool:
    """Return whether a file name from a hub stays inside the folder it is saved to."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _from_cache(source: Source, format: str, otherwise: LocalspecError) -> tuple[Listing, FileSelection]:
    """Select from the cached files of the repository; raise `otherwise` if they are not a complete model."""
    revision = cache.cached_revision(source)
    folder = cache.snapshot(source, revision)
    if not revision or not folder.is_dir():
        raise otherwise
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    try:
        selection = choose(source, files, format)
    except LocalspecError:
        raise otherwise from None
    if not is_complete(folder, selection):
        raise otherwise
    return Listing(revision, {name: path.stat().st_size for name, path in files.items()}), selection


def _download_size(source: Source, listing: Listing, selection: FileSelection) -> DownloadSize:
    """Add up the bytes of the selection, and those that are not in the cache."""
    folder, blobs = cache.snapshot(source, listing.revision), cache.repository(source) / "blobs"
    missing = 0
    for name in _missing(folder, listing, selection):
        blob = blobs / listing.blobs.get(name, name)
        partial = blob.with_name(blob.name + resume.PARTIAL) if name in listing.digests else None
        cached = max(storage.size_of(blob), storage.size_of(partial) if partial else 0, 0)
        missing += max(listing.sizes[name] - cached, 0)
    total = sum(listing.sizes[name] for name in selection.files)
    return DownloadSize(source, selection.format, missing, total)


def _missing(folder: Path, listing: Listing, selection: FileSelection) -> list[str]:
    """List the selected files that are not in the cache or have the wrong size."""
    return [
        name
        for name in selection.files
        if not (folder / name).is_file() or listing.sizes[name] not in (0, storage.size_of(folder / name))
    ]


def _download(
    source: Source, listing: Listing, selection: FileSelection, progress: Progress, retry: RetryPolicy
) -> tuple[Path, dict[str, str]]:
    """Download and check the missing files, then link them into the snapshot, the weights last.

    Returns the snapshot's folder, and the sha256 of each file that was checked.
    """
    folder = cache.snapshot(source, listing.revision)
    if not _missing(folder, listing, selection):
        with suppress(OSError, StorageError):  # a read-only cache will do
            cache.save_revision(source, listing.revision)
        return folder, {}
    needed = _download_size(source, listing, selection).download
    locks = cache.folder() / ".locks" / cache.repository(source).name
    with hub_errors(source, needed), locked(locks, source.name.replace("/", "--"), progress):
        cache.check_free_space(needed)
        progress.step(f"Downloading {source.name}", needed)
        names = reversed(_missing(folder, listing, selection))
        files = [_remote_file(source, listing, name, retry) for name in names]
        # Files with equal content share a blob, which is downloaded once.
        new = {file.blob: file for file in files if storage.size_of(file.blob) != file.size}
        for file in new.values():
            resume.download(file, progress, retry)
        for file in new.values():
            resume.finish(file, progress)
        for file in files:
            cache.link(file.blob, folder / file.name)
        cache.save_revision(source, listing.revision)
    return folder, {file.name: file.digest for file in files if file.blob in new}


def _remote_file(source: Source, listing: Listing, name: str, retry: RetryPolicy) -> resume.RemoteFile:
    """Return the URL, size and digest of a file; request its metadata if the listing lacks them."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.name, name, revision=listing.revision, endpoint=cache.endpoint())
    blob, size = listing.blobs.get(name, ""), listing.sizes[name] or None
    if not blob or size is None:
        metadata = retry.call(
            f"`{name}`",
            lambda: get_hf_file_metadata(url, timeout=cache.timeout(), endpoint=cache.endpoint()),
        )
        blob, size = blob or metadata.etag or "", metadata.size
    if not _BLOB.fullmatch(blob) or size is None:
        raise NetworkError(
            f"`{cache.host()}` gives no size or digest for `{name}`", "Try again, or use another hub"
        )
    path = cache.repository(source) / "blobs" / blob
    return resume.RemoteFile(name, url, size, path, blob if _SHA256.fullmatch(blob) else "")
