"""Fetch a model from a Hugging Face hub into the cache that all Hugging Face tools share."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from localspec.errors import LocalspecError, NetworkError, StorageError, UnsupportedModel, UsageError
from localspec.library import storage
from localspec.library.download import cache, resume
from localspec.library.download.hub_errors import explained, not_cached
from localspec.library.download.retry import Patience
from localspec.library.locks import locked
from localspec.library.progress import Progress
from localspec.library.sources import Fetched, Source

PREFERRED = "Q4_K_M"
INDEX = "model.safetensors.index.json"

# Besides the weights: all that a tokenizer, a chat template and generation defaults may need.
_BESIDE = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
}
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)
_BLOB = re.compile(r"\w[\w-]*", re.ASCII)  # what may name a file of the cache
_SHA256 = re.compile(r"[0-9a-f]{64}")  # by which the hub calls a large file


@dataclass(frozen=True, slots=True)
class Listing:
    """What a repository holds at one commit."""

    revision: str
    sizes: dict[str, int] = field(default_factory=dict)  # file -> bytes, 0 where unknown
    digests: dict[str, str] = field(default_factory=dict)  # large file -> sha256
    blobs: dict[str, str] = field(default_factory=dict)  # file -> its name in the cache


@dataclass(frozen=True, slots=True)
class Choice:
    """Which files of a repository make a model."""

    kind: str  # openvino, gguf or safetensors
    files: tuple[str, ...]  # the weights first


@dataclass(frozen=True, slots=True)
class Takes:
    """What fetching a source takes: bytes that are still to come, and bytes in all; 0 where unknown."""

    source: Source
    kind: str  # openvino, gguf or safetensors
    download: int = 0
    size: int = 0


Ready = Callable[[Takes], None]  # hears what it takes before the first byte, and may raise


def fetch(
    source: Source,
    progress: Progress,
    digest: str = "",
    ready: Ready | None = None,
    patience: Patience | None = None,
    kind: str = "",
) -> Fetched:
    """Fetch a model: a GGUF file or a folder in the cache. `digest` is what a GGUF must have.

    Of a repository that holds several kinds, `kind` is taken: openvino, gguf or safetensors.

    What is in the cache is not fetched again, and is enough when the hub cannot be reached. Raises
    NetworkError, UnknownModel for a repository that does not exist, UsageError when it is not clear which of
    several GGUF files is meant, StorageError before the start when it does not fit, DigestMismatch for a file
    that is not what the hub says, or not `digest`: then nothing of it stays.
    """
    patience = patience or Patience(progress)
    listing, choice = _chosen(source, progress, patience, kind)
    if ready:
        ready(_takes(source, listing, choice))
    folder, checked = _download(source, listing, choice, progress, patience)
    pinned = source.at(folder.name)
    if choice.kind != "gguf":
        return Fetched(choice.kind, folder, pinned)
    file = choice.files[0]
    expected = digest or listing.digests.get(file, "")
    found = checked.get(file) or storage.digest_of(folder / file, progress, f"Checking {Path(file).name}")
    if expected and found != expected:
        cache.drop(folder / file, cache.repository(source) / "blobs" / listing.blobs.get(file, file))
        raise resume.wrong(file, f"sha256 {found[:12]}…", f"{expected[:12]}…")
    return Fetched("gguf", folder / file, pinned, digest=found, expected=expected)


def choose(source: Source, files: Iterable[str], kind: str = "") -> Choice:
    """Choose what to fetch: OpenVINO files if there are any, else a GGUF, else safetensors, or only `kind`.

    Raises UnsupportedModel where there is nothing to choose, UsageError where it is not clear.
    """
    names = sorted(files)
    ggufs = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    beside = [name for name in names if name in _BESIDE]
    if source.file:
        return Choice("gguf", (_asked_for(source, ggufs),))
    if kind in ("", "openvino") and {"openvino_model.xml", "openvino_model.bin"} <= set(names):
        graph = [name for name in names if re.fullmatch(r"openvino_(model|config)\.\w+", name)]
        return Choice("openvino", (*graph, *beside))
    if kind in ("", "gguf") and ggufs:
        return Choice("gguf", (_preferred(source, ggufs),))
    weights = [name for name in names if re.fullmatch(r"(?!consolidated)[^/]+\.safetensors", name)]
    if kind in ("", "safetensors") and weights:
        return Choice("safetensors", (*weights, *beside))
    raise UnsupportedModel(
        f"`{source}` holds no {kind or 'OpenVINO, GGUF or safetensors'} model", "Choose another repository"
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


def _chosen(source: Source, progress: Progress, patience: Patience, kind: str) -> tuple[Listing, Choice]:
    """Ask the hub what the repository holds and choose; take what is cached when it cannot be asked."""
    if cache.offline():
        return _from_cache(source, kind, not_cached(source))
    try:
        with explained(source):
            listing = patience.ask(f"`{source.name}`", lambda: _listing(source))
    except NetworkError as error:
        found = _from_cache(source, kind, error)
        progress.say(f"{error.message}; taking what is cached")
        return found
    return listing, choose(source, listing.sizes, kind)


def _listing(source: Source) -> Listing:
    """Ask the hub; raises what its client raises."""
    cache.quietly()
    from huggingface_hub import HfApi

    found = HfApi(endpoint=cache.endpoint()).model_info(
        source.name, revision=source.version or None, files_metadata=True, timeout=cache.patience()
    )
    commit = found.sha or ""
    if not _BLOB.fullmatch(commit):
        raise NetworkError(f"`{cache.host()}` names no commit of `{source.name}`", "Use another hub")
    files: dict[str, Any] = {file.rfilename: file for file in found.siblings or [] if _inside(file.rfilename)}
    large = {name: file.lfs.sha256 for name, file in files.items() if getattr(file, "lfs", None)}
    small = {name: file.blob_id for name, file in files.items() if getattr(file, "blob_id", None)}
    return Listing(commit, {name: file.size or 0 for name, file in files.items()}, large, small | large)


def _inside(name: str) -> bool:
    """Tell whether a file that a hub names would lie inside the folder it is put into."""
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and "\\" not in name


def _from_cache(source: Source, kind: str, otherwise: LocalspecError) -> tuple[Listing, Choice]:
    """Choose of what the cache has of the repository; raise `otherwise` where that is no whole model."""
    revision = cache.remembered(source)
    folder = cache.snapshot(source, revision)
    if not revision or not folder.is_dir():
        raise otherwise
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    try:
        choice = choose(source, files, kind)
    except LocalspecError:
        raise otherwise from None
    if not _whole(folder, choice):
        raise otherwise
    return Listing(revision, {name: path.stat().st_size for name, path in files.items()}), choice


def _whole(folder: Path, choice: Choice) -> bool:
    """Tell whether no part of the weights is missing, as far as an index or the parts' names say."""
    if choice.kind == "openvino":
        return "tokenizer.json" in choice.files
    if choice.kind == "gguf":
        return True
    there = set(choice.files)
    if INDEX in there:
        try:
            return set(json.loads((folder / INDEX).read_text("utf-8"))["weight_map"].values()) <= there
        except (ValueError, KeyError):
            return False
    counts = {int(found[1]) for name in there if (found := re.search(r"-of-(\d+)\.safetensors$", name))}
    return all(sum(f"-of-{count:05}." in name for name in there) == count for count in counts)


def _takes(source: Source, listing: Listing, choice: Choice) -> Takes:
    """Add up what is there and what is to come."""
    folder, blobs = cache.snapshot(source, listing.revision), cache.repository(source) / "blobs"
    to_come = 0
    for name in _absent(folder, listing, choice):
        blob = blobs / listing.blobs.get(name, name)
        partial = (
            storage.size_of(blob.with_name(blob.name + resume.PARTIAL)) if name in listing.digests else 0
        )
        there = max(storage.size_of(blob), partial, 0)
        to_come += max(listing.sizes[name] - there, 0)
    return Takes(source, choice.kind, to_come, sum(listing.sizes[name] for name in choice.files))


def _absent(folder: Path, listing: Listing, choice: Choice) -> list[str]:
    """List the files that are not in the cache, or not whole."""
    return [
        name
        for name in choice.files
        if not (folder / name).is_file() or listing.sizes[name] not in (0, storage.size_of(folder / name))
    ]


def _download(
    source: Source, listing: Listing, choice: Choice, progress: Progress, patience: Patience
) -> tuple[Path, dict[str, str]]:
    """Fetch what is absent, check it, then let the snapshot have it, the weights last.

    Returns the snapshot's folder, and the sha256 of the files that were checked.
    """
    folder = cache.snapshot(source, listing.revision)
    if not _absent(folder, listing, choice):
        with suppress(OSError, StorageError):  # a cache that only others may write to will do
            cache.remember(source, listing.revision)
        return folder, {}
    needed = _takes(source, listing, choice).download
    locks = cache.folder() / ".locks" / cache.repository(source).name
    with explained(source, needed), locked(locks, source.name.replace("/", "--"), progress):
        cache.check_room(needed)
        progress.step(f"Fetching {source.name}", needed)
        names = reversed(_absent(folder, listing, choice))
        wanted = [_wanted(source, listing, name, patience) for name in names]
        new = {
            one.blob: one for one in wanted if storage.size_of(one.blob) != one.size
        }  # equal files are one
        for one in new.values():
            resume.grow(one, progress, patience)
        for one in new.values():
            resume.settle(one, progress)
        for one in wanted:
            cache.link(one.blob, folder / one.name)
        cache.remember(source, listing.revision)
    return folder, {one.name: one.digest for one in wanted if one.blob in new}


def _wanted(source: Source, listing: Listing, name: str, patience: Patience) -> resume.Wanted:
    """Say what is known of a file; ask for what the listing does not tell."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    url = hf_hub_url(source.name, name, revision=listing.revision, endpoint=cache.endpoint())
    blob, size = listing.blobs.get(name, ""), listing.sizes[name] or None
    if not blob or size is None:
        about = patience.ask(
            f"`{name}`",
            lambda: get_hf_file_metadata(url, timeout=cache.patience(), endpoint=cache.endpoint()),
        )
        blob, size = blob or about.etag or "", about.size
    if not _BLOB.fullmatch(blob) or size is None:
        raise NetworkError(f"`{cache.host()}` does not say what `{name}` is", "Try again, or use another hub")
    path = cache.repository(source) / "blobs" / blob
    return resume.Wanted(name, url, size, path, blob if _SHA256.fullmatch(blob) else "")
