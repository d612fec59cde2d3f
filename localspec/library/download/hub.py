"""Download a model from a Hugging Face hub into the cache that all Hugging Face tools share."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import msgspec

from localspec.errors import LocalspecError, NetworkError, StorageError, printable
from localspec.library import storage
from localspec.library.download import cache, resume
from localspec.library.download.hub_errors import hub_errors, not_cached
from localspec.library.download.names import BlobName, Commit, RepoFile, Sha256
from localspec.library.download.retry import RetryPolicy
from localspec.library.download.selection import FileSelection, choose, is_complete
from localspec.library.download.transfer import Pace, answered, at_most, requested
from localspec.library.locks import locked
from localspec.library.progress import BYTES, Progress
from localspec.library.sources import Fetched, Source

LISTING_BYTES = 32 << 20  # of a listing at most; a repository of 100,000 files takes 25 MB
FILE_BYTES = 1 << 44  # of a file at most, 16 TB


@dataclass(frozen=True, slots=True)
class Listing:
    """The files of a repository at one commit."""

    revision: Commit
    sizes: dict[RepoFile, int] = field(default_factory=dict)  # file -> bytes, 0 if unknown
    digests: dict[RepoFile, Sha256] = field(default_factory=dict)  # of large files
    blobs: dict[RepoFile, BlobName] = field(default_factory=dict)  # file -> its name in the cache


class _LargeFile(msgspec.Struct):
    sha256: str


class _ListedFile(msgspec.Struct, rename={"name": "rfilename", "blob": "blobId"}):
    name: str
    size: int | None = None
    blob: str | None = None
    lfs: _LargeFile | None = None


class _Answer(msgspec.Struct):
    sha: str
    siblings: list[_ListedFile] | None = None


@dataclass(frozen=True, slots=True)
class DownloadSize:
    """How many bytes of a source are still to be downloaded, and how many it has; 0 if unknown.

    `disk` is about what the model takes at most: the download, its graph, and what engines compile from that.
    """

    source: Source
    format: str  # openvino, gguf or safetensors
    download: int = 0
    size: int = 0
    disk: int = 0


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
    expected = digest or str(listing.digests.get(file, ""))
    actual = checked.get(file) or storage.digest_of(folder / file, progress, f"Checking {Path(file).name}")
    if expected and actual != expected:
        cache.remove_file(source, folder / file, listing.blobs.get(file), actual)
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
            listing = retry.call(f"`{source.name}`", lambda: _list_files(source, progress))
    except NetworkError as error:
        cached = _from_cache(source, format, error)
        progress.say(f"{error.message}; using the cached files")
        return cached
    return listing, choose(source, listing.sizes, format)


def _list_files(source: Source, progress: Progress) -> Listing:
    """List a repository's files; raises NetworkError and the errors of the hub client."""
    cache.prepare_client()
    pace = Pace(progress)
    at = f"/revision/{quote(source.version, safe='')}" if source.version else ""
    with requested(f"{cache.endpoint()}/api/models/{source.name}{at}?blobs=true") as (_, chunks):
        pace.begin()
        answer = b"".join(at_most(chunks, LISTING_BYTES, f"the files of {source.name}", pace))
    return parse_listing(answer, source.name)


def parse_listing(answer: bytes, repository: str) -> Listing:
    """Read a hub's answer; files whose names cannot be saved are left out, for no model needs them.

    Raises NetworkError for an answer of another form, for a digest, a size or a commit that cannot be one,
    and for a name that is listed twice.
    """
    try:
        return _listing(msgspec.json.decode(answer, type=_Answer))
    except (NetworkError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        reason = error.message if isinstance(error, NetworkError) else printable(str(error))
        raise NetworkError(
            f"`{cache.host()}` lists the files of `{repository}` wrongly: {reason}",
            "Try again, or use another hub: `HF_ENDPOINT`",
        ) from None


def _listing(answer: _Answer) -> Listing:
    listing = Listing(Commit(answer.sha))
    for file in answer.siblings or []:
        if not RepoFile.is_safe(file.name):
            continue
        name = RepoFile(file.name)
        if name in listing.sizes:
            raise NetworkError(f"`{printable(name)}` is listed twice")
        listing.sizes[name] = _checked_size(name, file.size or 0)
        if file.lfs:
            listing.digests[name] = listing.blobs[name] = Sha256(file.lfs.sha256)
        elif file.blob:
            listing.blobs[name] = BlobName(file.blob)
    return listing


def _checked_size(name: str, size: int) -> int:
    if not 0 <= size <= FILE_BYTES:
        raise NetworkError(f"`{printable(name)}` has {size:,} bytes", "Try again, or use another hub")
    return size


def _from_cache(source: Source, format: str, otherwise: LocalspecError) -> tuple[Listing, FileSelection]:
    """Select from the cached files of the repository; raise `otherwise` if they are not a complete model."""
    revision = cache.cached_revision(source)
    if revision is None or not (folder := cache.snapshot(source, revision)).is_dir():
        raise otherwise
    paths = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    files = {RepoFile(name): path for name, path in paths.items() if RepoFile.is_safe(name)}
    try:
        selection = choose(source, files, format)
    except LocalspecError:
        raise otherwise from None
    if not is_complete(folder, selection):
        raise otherwise
    return Listing(revision, {name: path.stat().st_size for name, path in files.items()}), selection


def _download_size(source: Source, listing: Listing, selection: FileSelection) -> DownloadSize:
    """Add up the bytes of the selection, and those that are not in the cache."""
    missing = 0
    for name in _missing(cache.snapshot(source, listing.revision), listing, selection):
        missing += max(listing.sizes[name] - _cached_bytes(source, listing, name), 0)
    total = sum(listing.sizes[name] for name in selection.files)
    return DownloadSize(source, selection.format, missing, total)


def _cached_bytes(source: Source, listing: Listing, name: RepoFile) -> int:
    """Return the bytes of a file that are in the cache, those of an interrupted download included."""
    if name not in listing.blobs:
        return 0
    blob = cache.blob(source, listing.blobs[name])
    partial = blob.with_name(blob.name + resume.PARTIAL) if name in listing.digests else None
    return max(storage.size_of(blob), storage.size_of(partial) if partial else 0, 0)


def _missing(folder: Path, listing: Listing, selection: FileSelection) -> list[RepoFile]:
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
    with hub_errors(source, needed), locked(_locks(source), source.name.replace("/", "--"), progress):
        cache.check_free_space(needed)
        names = reversed(_missing(folder, listing, selection))
        files = [_remote_file(source, listing, name, retry) for name in names]
        cache.check_free_space(needed + sum(file.size for file in files if not listing.sizes[file.name]))
        # Files with equal content share a blob, which is downloaded once.
        new = {file.blob: file for file in files if storage.size_of(file.blob) != file.size}
        with progress.step(f"Downloading {source.name}", needed, BYTES):
            for file in new.values():
                resume.download(file, progress, retry)
        for file in new.values():
            resume.finish(file, progress)
        for file in files:
            cache.link(file.blob, folder / file.name)
        cache.save_revision(source, listing.revision)
    return folder, {file.name: str(file.digest or "") for file in files if file.blob in new}


def _locks(source: Source) -> Path:
    """Return the folder of a repository's locks, with the permissions that other tools give it."""
    folder = cache.folder() / ".locks" / cache.repository(source).name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remote_file(source: Source, listing: Listing, name: RepoFile, retry: RetryPolicy) -> resume.RemoteFile:
    """Return the URL, size and digest of a file; request its metadata if the listing lacks them."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.name, name, revision=listing.revision, endpoint=cache.endpoint())
    blob, size = listing.blobs.get(name), listing.sizes[name] or None
    if blob is None or size is None:
        metadata = retry.call(
            f"`{name}`",
            lambda: answered(
                lambda: get_hf_file_metadata(url, timeout=cache.timeout(), endpoint=cache.endpoint())
            ),
        )
        if blob is None and metadata.etag and BlobName.is_safe(metadata.etag):
            blob = BlobName(metadata.etag)
        size = metadata.size
    if blob is None or size is None:
        raise NetworkError(
            f"`{cache.host()}` gives no size or digest for `{name}`", "Try again, or use another hub"
        )
    digest = Sha256(blob) if Sha256.is_safe(blob) else None
    return resume.RemoteFile(name, url, _checked_size(name, size), cache.blob(source, blob), digest)
