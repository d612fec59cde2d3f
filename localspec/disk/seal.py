"""Seals of folders that other libraries fill with caches: damaged files are found before they are used."""

from __future__ import annotations

from contextlib import suppress
from hashlib import file_digest
from pathlib import Path

from localspec.disk import records

FILE = "seal.json"


def drop_unsealed(folder: Path) -> None:
    """Delete the files of a folder that are damaged, or that no seal vouches for."""
    known = records.read(folder / FILE)
    for file in _files(folder):
        with suppress(OSError):
            if known.get(file.name) != digest_of(file):
                file.unlink()


def seal(folder: Path) -> None:
    """Record the digests of a folder's files; a folder that cannot be written stays unsealed."""
    with suppress(OSError):
        records.write(folder / FILE, {file.name: digest_of(file) for file in _files(folder)})


def digest_of(file: Path) -> str:
    """Return the sha256 of a file in hex."""
    with file.open("rb") as content:
        return file_digest(content, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.is_file() and path.name != FILE]
