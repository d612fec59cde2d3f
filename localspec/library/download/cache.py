"""The hub's address, and the download cache that all Hugging Face tools share.

The layout is the one huggingface_hub documents: `blobs` named by digest, `snapshots` that link to them, and
`refs` with the commit of each branch. huggingface_hub reads its environment variables once, on import; this
module reads them on each call.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from localspec.disk import atomic
from localspec.errors import BadValue, StorageError, printable
from localspec.library import storage
from localspec.library.download.names import MAX_PART, BlobName, Commit
from localspec.library.progress import Silent
from localspec.library.sources import Source

HUB = "https://huggingface.co"
TIMEOUT = 10.0  # seconds

_LIMITS = {errno.EFBIG: "that large", errno.ENAMETOOLONG: "with a name that long"}


def offline() -> bool:
    """Return whether HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE forbids network access."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def endpoint() -> str:
    """Return the hub's URL, without a trailing slash; raises BadValue for an HF_ENDPOINT that is none."""
    url = (os.environ.get("HF_ENDPOINT") or HUB).strip().rstrip("/")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        usable = False
    if not usable or not url.isascii() or not url.isprintable():
        raise BadValue(f"`HF_ENDPOINT` is `{printable(url)}`, which is no hub's address", f"Such as {HUB}")
    return url


def host() -> str:
    """Return the hub's host and port."""
    return urlsplit(endpoint()).netloc


def timeout() -> float:
    """Return the read timeout in seconds: HF_HUB_DOWNLOAD_TIMEOUT, else TIMEOUT."""
    try:
        return float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or TIMEOUT)
    except ValueError:
        return TIMEOUT


def prepare_client() -> None:
    """Import huggingface_hub, without telemetry unless the user set that; call before other imports of it.

    Raises BadValue for a time that is no number. Fractions are hidden from it: it reads whole seconds only.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    hidden = {}
    for name in ("HF_HUB_DOWNLOAD_TIMEOUT", "HF_HUB_ETAG_TIMEOUT"):
        value = os.environ.get(name, "")
        if not re.fullmatch(r"\s*(\d+(\.\d*)?)?\s*", value, re.ASCII):
            raise BadValue(f"`{name}` is `{printable(value)}`", "It takes a number of seconds")
        if "." in value:
            hidden[name] = os.environ.pop(name)
    try:
        import huggingface_hub.constants  # noqa: F401
    finally:
        os.environ.update(hidden)


def folder() -> Path:
    """Return the cache's folder; it may not exist."""
    prepare_client()
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def repository(source: Source) -> Path:
    """Return the cache folder of a repository."""
    return folder() / f"models--{source.name.replace('/', '--')}"


def snapshot(source: Source, revision: Commit) -> Path:
    """Return the cache folder of a repository's files at a commit."""
    return repository(source) / "snapshots" / revision


def blob(source: Source, name: BlobName) -> Path:
    """Return the place of a file's content in the cache."""
    return repository(source) / "blobs" / name


def cached_revision(source: Source) -> Commit | None:
    """Return the commit of the source's revision when it was last downloaded, None if it never was."""
    revision = _saved_revision(source) if _ref(source).is_file() else source.version
    return Commit(revision) if Commit.is_safe(revision) else None


def save_revision(source: Source, revision: Commit) -> None:
    """Save the commit that the source's revision points to."""
    ref = _ref(source)
    if source.version != revision and _saved_revision(source) != revision:
        ref.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(ref, revision)


def _ref(source: Source) -> Path:
    return repository(source) / "refs" / (source.version or "main")


def _saved_revision(source: Source) -> str:
    """Return the content of a ref, which any program may have written; empty if it cannot be read."""
    try:
        with _ref(source).open("rb") as file:
            return file.read(MAX_PART).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def link(blob: Path, name: Path) -> None:
    """Make the snapshot file `name` a symbolic link to `blob`, else a hard link, else a copy."""
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    with suppress(OSError):
        name.symlink_to(os.path.relpath(blob, name.parent))
        return
    with suppress(OSError):
        name.hardlink_to(blob)
        return
    with blob.open("rb") as content, atomic.file(name) as copy:
        shutil.copyfileobj(content, copy, storage.CHUNK_BYTES)


def remove_file(source: Source, file: Path, name: BlobName | None, digest: str) -> None:
    """Delete a file of a snapshot and its blob, so that neither is used again.

    A link that leads out of the repository's blobs is deleted, and the file that it leads to stays. So does
    the blob `name`, as the hub calls it, unless it has the `digest` of the file: then it is a copy.
    """
    content = file.resolve()
    if content.parent == (repository(source) / "blobs").resolve():
        content.unlink(missing_ok=True)
    file.unlink(missing_ok=True)
    copy = blob(source, name) if name else file
    if copy.is_file() and storage.digest_of(copy, Silent()) == digest:
        copy.unlink()


def drop_file(source: Source, file: Path) -> int:
    """Delete a file of a snapshot, and its blob unless another snapshot needs it; return the bytes freed.

    A file outside the repository's cache folder stays.
    """
    snapshots, blobs = (repository(source) / name for name in ("snapshots", "blobs"))
    if snapshots not in file.parents or repository(source).resolve() not in file.resolve().parents:
        return 0
    size = file.stat().st_size
    others = (other for other in snapshots.rglob("*") if other != file and other.is_file())
    shared = any(other.samefile(file) for other in others)
    contents = [] if shared else [blob for blob in blobs.glob("*") if blob.samefile(file)]
    for path in (file, *contents):
        path.unlink()
    return 0 if shared else size


def shares_disk_with(path: Path) -> bool:
    """Return whether the cache lies on the disk where `path` is or will be."""
    devices = {
        next(parent for parent in (place, *place.absolute().parents) if parent.exists()).stat().st_dev
        for place in (folder(), path)
    }
    return len(devices) == 1


def check_free_space(needed: int) -> None:
    """Raise StorageError unless `needed` bytes fit into the cache."""
    with storage_errors(needed):
        storage.check_free_space(folder(), needed)


@contextmanager
def storage_errors(needed: int = 0) -> Iterator[None]:
    """Turn errors of the cache's disk into StorageError; `needed` is the bytes to be written."""
    hint = "Free some space, or choose another folder for Hugging Face's cache with `HF_HUB_CACHE`"
    try:
        with storage.storage_errors(folder(), needed):
            yield
    except StorageError as error:
        raise StorageError(error.message, hint) from error
    except OSError as error:
        reason = _LIMITS.get(error.errno or 0)
        if reason is None:
            raise
        raise StorageError(f"The disk of `{folder()}` cannot hold a file {reason}", hint) from error
