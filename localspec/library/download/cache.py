"""Where the hub is, and the cache that all Hugging Face tools share.

The layout is the one huggingface_hub documents: `blobs` named by digest, `snapshots` that point to them,
`refs` that say which commit a branch was. huggingface_hub reads the variables once, when it is imported; we
read them when they are needed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from localspec.errors import StorageError
from localspec.library import storage
from localspec.library.sources import Source

SECONDS = 10.0  # without a byte, until a connection is given up


def offline() -> bool:
    """Tell whether nothing may be fetched, by the variables that Hugging Face's tools know."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def endpoint() -> str:
    """Return the address of the hub, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def host() -> str:
    """Return the hub's name and port."""
    return urlsplit(endpoint()).netloc


def patience() -> float:
    """Return the seconds that the hub may be silent: HF_HUB_DOWNLOAD_TIMEOUT."""
    try:
        return float(os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT") or SECONDS)
    except ValueError:
        return SECONDS


def quietly() -> None:
    """Let huggingface_hub, when it is imported next, not ask its hub a question of its own as well."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")


def folder() -> Path:
    """Return the cache's folder; it may not exist."""
    quietly()
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()


def repository(source: Source) -> Path:
    """Return where the cache keeps a repository."""
    return folder() / f"models--{source.name.replace('/', '--')}"


def snapshot(source: Source, revision: str) -> Path:
    """Return where the cache keeps a repository's files at a commit."""
    return repository(source) / "snapshots" / revision


def remembered(source: Source) -> str:
    """Return the commit that the source's revision was when it was last fetched, empty if never."""
    ref = repository(source) / "refs" / (source.version or "main")
    return ref.read_text("utf-8").strip() if ref.is_file() else source.version


def remember(source: Source, revision: str) -> None:
    """Note which commit the source's revision is."""
    ref = repository(source) / "refs" / (source.version or "main")
    if source.version != revision and (not ref.is_file() or ref.read_text("utf-8").strip() != revision):
        ref.parent.mkdir(parents=True, exist_ok=True)
        storage.write_whole(ref, revision)


def link(blob: Path, name: Path) -> None:
    """Let the file `name` of a snapshot be `blob`: a link, else a second name, else a copy."""
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    with suppress(OSError):
        name.symlink_to(os.path.relpath(blob, name.parent))
        return
    with suppress(OSError):
        name.hardlink_to(blob)
        return
    partial = name.with_name(f"{name.name}.{os.getpid()}.incomplete")
    shutil.copyfile(blob, partial)
    partial.replace(name)


def drop(file: Path, blob: Path) -> None:
    """Delete a file of a snapshot and what it is made of, else it would be taken for the file again."""
    for path in (file.resolve(), file, blob):
        path.unlink(missing_ok=True)


def on_disk_of(place: Path) -> bool:
    """Tell whether the cache lies on the disk where `place` is or will be."""
    one, other = (
        next(up for up in (path, *path.absolute().parents) if up.exists()) for path in (folder(), place)
    )
    return one.stat().st_dev == other.stat().st_dev


def check_room(needed: int) -> None:
    """Raise StorageError unless `needed` bytes fit into the cache."""
    with writing(needed):
        storage.check_room(folder(), needed)


@contextmanager
def writing(needed: int = 0) -> Iterator[None]:
    """Turn a full disk or a forbidden folder into StorageError; `needed` bytes is what was asked for."""
    hint = "Make room, or choose another folder for Hugging Face's cache with `HF_HUB_CACHE`"
    try:
        with storage.writing(folder(), needed):
            yield
    except StorageError as error:
        raise StorageError(error.message, hint) from error
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise StorageError(f"The disk of `{folder()}` takes no file so large", hint) from error
