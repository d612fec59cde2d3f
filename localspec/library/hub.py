"""Fetch a model from a Hugging Face hub into the cache that all Hugging Face tools share."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from localspec.errors import (
    DigestMismatch,
    LocalspecError,
    NetworkError,
    UnknownModel,
    UnsupportedModel,
    UsageError,
)
from localspec.library import disk, resume
from localspec.library.progress import Progress, growth
from localspec.library.sources import Fetched, Source

PREFERRED = "Q4_K_M"
LOCAL_FILE = "or give a model file you have: `localspec chat path/to/model.gguf`"
ONLINE = f"Leave out `--offline` and unset `HF_HUB_OFFLINE`, {LOCAL_FILE}"

# Besides the weights: all that a tokenizer, a chat template and generation defaults may need.
_BESIDE = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "model.safetensors.index.json",
}
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one revision."""

    revision: str
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes, 0 where unknown
    digests: dict[str, str] = field(default_factory=dict)  # large file -> sha256


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a repository make a model."""

    kind: str  # openvino, gguf or safetensors
    files: tuple[str, ...]  # the weights first


def fetch(source: Source, progress: Progress, digest: str = "") -> Fetched:
    """Fetch a model: a GGUF file or a folder in the cache. `digest` is what a GGUF must have.

    What is in the cache is not fetched again, and is enough when the hub cannot be reached. Raises
    NetworkError, UnknownModel for a repository that does not exist, UsageError when it is not clear which of
    several GGUF files is meant.
    """
    listing = _listing(source)
    choice = choose(source, listing.sizes)
    folder = _download(source, listing, choice, progress)
    pinned = source.at(folder.name)
    if choice.kind != "gguf":
        return Fetched(choice.kind, folder, pinned)
    file = choice.files[0]
    return Fetched("gguf", folder / file, pinned, expected=digest or listing.digests.get(file, ""))


@dataclass(frozen=True, slots=True)
class Takes:
    """What fetching a source takes: bytes that are still to come, and bytes in all."""

    download: int
    size: int


def takes(source: Source) -> Takes:
    """Return what `fetch` would fetch; raises what it raises before the first byte."""
    listing = _listing(source)
    choice = choose(source, listing.sizes)
    sizes = {name: listing.sizes[name] for name in choice.files}
    folder = _snapshot(source, listing.revision)
    absent = sum(size for name, size in sizes.items() if not (folder / name).is_file())
    there = sum((folder / name).stat().st_size for name in sizes if (folder / name).is_file())
    return Takes(absent, absent + there)


def choose(source: Source, files: Iterable[str]) -> Choice:
    """Choose what to fetch: OpenVINO files if there are any, else a GGUF, else safetensors."""
    names = sorted(files)
    ggufs = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    beside = [name for name in names if name in _BESIDE]
    if source.file:
        return Choice("gguf", (_asked_for(source, ggufs),))
    if {"openvino_model.xml", "openvino_model.bin"} <= set(names):
        graph = [name for name in names if re.fullmatch(r"openvino_(model|config)\.\w+", name)]
        return Choice("openvino", (*graph, *beside))
    if ggufs:
        return Choice("gguf", (_preferred(source, ggufs),))
    weights = [name for name in names if re.fullmatch(r"(?!consolidated)[^/]+\.safetensors", name)]
    if weights:
        return Choice("safetensors", (*weights, *beside))
    raise UnsupportedModel(
        f"`{source}` holds no OpenVINO, GGUF or safetensors model", "Choose another repository"
    )


def _asked_for(source: Source, ggufs: list[str]) -> str:
    """Find the file by its name, else by the quantization in its name."""
    if source.file in ggufs:
        return source.file
    wanted = re.compile(rf"(^|[-._/]){re.escape(source.file)}([-._]|$)", re.IGNORECASE)
    found = [name for name in ggufs if wanted.search(name)]
    return _single(source, found, ggufs)


def _preferred(source: Source, ggufs: list[str]) -> str:
    wanted = re.compile(rf"(^|[-._/]){PREFERRED}[-._]", re.IGNORECASE)
    found = ggufs if len(ggufs) == 1 else [name for name in ggufs if wanted.search(name)]
    return _single(source, found, ggufs)


def _single(source: Source, found: list[str], ggufs: list[str]) -> str:
    whole = [name for name in found if not _PART.search(name)]
    if len(whole) == 1:
        return whole[0]
    if found and not whole:
        raise UnsupportedModel(
            f"`{found[0]}` of `{source.name}` is one of several parts",
            "Fetch and join them with `llama-gguf-split --merge`, then give the joined file",
        )
    listed = "".join(f"\n  hf:{source.name}:{name}" for name in whole or ggufs) or "\n  none"
    what = f"is no single GGUF file for `{source.file}`" if source.file else "is more than one GGUF file"
    raise UsageError(f"There {what} in `{source.name}`", f"Choose one:{listed}")


def _listing(source: Source) -> Listing:
    """Ask the hub what the repository holds; fall back on the cache when it cannot be asked."""
    from huggingface_hub import HfApi

    if offline():
        return _from_cache(source, NetworkError(_not_cached(source), ONLINE))
    try:
        with _explained(source):
            found = HfApi(endpoint=_endpoint()).model_info(
                source.name, revision=source.version or None, files_metadata=True
            )
    except NetworkError as error:
        return _from_cache(source, error)
    siblings: list[Any] = list(found.siblings or [])
    return Listing(
        found.sha or "",
        {file.rfilename: file.size or 0 for file in siblings},
        {file.rfilename: file.lfs.sha256 for file in siblings if getattr(file, "lfs", None)},
    )


def _from_cache(source: Source, otherwise: LocalspecError) -> Listing:
    """List what the cache has of the repository; raise `otherwise` when that is nothing."""
    ref = _repository(source) / "refs" / (source.version or "main")
    revision = ref.read_text().strip() if ref.is_file() else source.version
    folder = _snapshot(source, revision)
    if not revision or not folder.is_dir():
        raise otherwise
    files = [path for path in folder.rglob("*") if path.is_file()]
    return Listing(revision, {path.relative_to(folder).as_posix(): 0 for path in files})


def _repository(source: Source) -> Path:
    """Where the cache keeps a repository; the layout is the one huggingface_hub documents."""
    return _cache() / f"models--{source.name.replace('/', '--')}"


def _snapshot(source: Source, revision: str) -> Path:
    return _repository(source) / "snapshots" / revision


def _download(source: Source, listing: Listing, choice: Choice, progress: Progress) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    folder = _snapshot(source, listing.revision)
    absent = [name for name in choice.files if not (folder / name).is_file()]
    if not absent:
        return folder
    needed = sum(listing.sizes[name] for name in absent)
    blobs = _repository(source) / "blobs"
    disk.check_room(_cache(), needed)
    progress.step(f"Fetching {source.name}", needed)
    disable_progress_bars()
    with _explained(source, needed), growth(blobs, progress):
        for name in absent:
            if listing.sizes[name] >= resume.LARGE:
                resume.fetch(source.name, name, listing.revision, _endpoint(), blobs, progress)
        fetched = Path(
            snapshot_download(
                source.name,
                revision=source.version or None,  # not the commit: so the cache remembers what `main` was
                cache_dir=_cache(),
                endpoint=_endpoint(),
                allow_patterns=list(choice.files),
            )
        )
    _verify(fetched, {name: listing.digests[name] for name in absent if name in listing.digests}, progress)
    return fetched


def _verify(folder: Path, digests: dict[str, str], progress: Progress) -> None:
    """Compare what was fetched to the hub's digests; drop what is wrong and raise DigestMismatch."""
    for name, expected in digests.items():
        file = folder / name
        found = disk.digest_of(file, progress, f"Checking {name}")
        if found != expected:
            file.resolve().unlink()  # the cache's own copy, else it would be taken for the file again
            file.unlink(missing_ok=True)
            raise DigestMismatch(
                f"`{name}` is not the file that the hub says: sha256 {found[:12]}…, not {expected[:12]}…",
                "Try again; if it stays so, do not use that file",
            )


@contextmanager
def _explained(source: Source, needed: int = 0) -> Iterator[None]:
    """Turn what huggingface_hub, its HTTP library and the disk raise into errors of ours."""
    try:
        yield
    except Exception as error:
        found = _explanation(error, source, needed)
        if found is None:
            raise
        raise found from error


def _explanation(error: Exception, source: Source, needed: int) -> LocalspecError | None:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _no_access(source)
    if isinstance(error, errors.RevisionNotFoundError):
        return UnknownModel(f"`{source.name}` has no revision `{source.version}`", "Leave it out")
    if isinstance(error, errors.RepositoryNotFoundError):
        return UnknownModel(
            f"There is no repository `{source.name}` at `{_host()}`, or it is private",
            "Check the spelling; for a private one type `hf auth login` first",
        )
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return _no_access(source)
    if status is not None:
        return NetworkError(f"`{_host()}` answered {status} for `{source.name}`", f"Try again, {LOCAL_FILE}")
    if isinstance(error, OSError) and (full := disk.storage_error(error, _cache(), needed)):
        return full
    if _is_network(error):
        return NetworkError(f"`{_host()}` cannot be reached", f"Check the connection, {LOCAL_FILE}")
    return None


# Failed connections, by name, whichever HTTP library huggingface_hub uses today.
_NETWORK = {
    "ConnectionError",
    "TimeoutError",
    "SSLError",
    "HTTPError",
    "TransportError",
    "RequestException",
    "LocalEntryNotFoundError",
    "FileMetadataError",
    "XetDownloadError",
}


def _is_network(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & _NETWORK) or type(error) is RuntimeError  # hf_xet raises nothing narrower


def _no_access(source: Source) -> NetworkError:
    page = f"{_endpoint() or 'https://huggingface.co'}/{source.name}"
    token = _token_source()
    if token is None:
        return NetworkError(
            f"`{source.name}` is gated, and there is no token to ask for it with",
            f"Accept its terms at {page}, then type `hf auth login`",
        )
    return NetworkError(
        f"`{source.name}` is gated, and the token of {token} has no access to it",
        f"Accept its terms at {page} with the account of that token",
    )


def _token_source() -> str | None:
    """Say where the token that was used came from; `HF_TOKEN` goes before a login."""
    from huggingface_hub import get_token

    if get_token() is None:
        return None
    return "`HF_TOKEN`" if os.environ.get("HF_TOKEN") else "`hf auth login`"


def _not_cached(source: Source) -> str:
    return f"`{source.name}` is not in the cache `{_cache()}`, and the hub is switched off"


# huggingface_hub reads these once, when it is imported; we read them when they are needed.


def offline() -> bool:
    """Tell whether nothing may be fetched, by the variables that Hugging Face's tools know."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in {"1", "ON", "YES", "TRUE"} for name in names)


def _endpoint() -> str | None:
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def _host() -> str:
    return urlsplit(_endpoint() or "https://huggingface.co").netloc


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(os.environ.get("HF_HUB_CACHE") or constants.HF_HUB_CACHE).expanduser()
