"""What was found out about a model on this machine, kept until the model or the engine changes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.devices import processor
from localspec.errors import StorageError
from localspec.library import storage
from localspec.library.paths import home


def key(*parts: Any) -> str:
    """Name a verdict by all that it depends on, the processor among it: several may share a folder."""
    return storage.digest_of_text(repr((processor(), *parts)))[:24]


def stamp(path: Path) -> tuple[str, int, int]:
    """Describe a file, or the largest file of a folder, so that another one is told from it."""
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    largest = max(files, key=lambda file: file.stat().st_size, default=path)
    found = largest.stat()
    return str(largest.resolve()), found.st_size, found.st_mtime_ns


def read(name: str) -> dict[str, Any]:
    """Return what is known under `name`; empty when nothing is, or the file is damaged."""
    try:
        found = json.loads(_file(name).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def add(name: str, **facts: Any) -> None:
    """Keep `facts` under `name` beside what is known; where nothing can be written, nothing is kept."""
    file = _file(name)
    with suppress(OSError, StorageError):
        file.parent.mkdir(parents=True, exist_ok=True)
        storage.write_atomically(file, json.dumps(read(name) | facts, indent=2) + "\n")


def _file(name: str) -> Path:
    return home() / "probes" / f"{name}.json"
