"""Results of probes on this machine, kept until the model or the engine changes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from localspec.devices import processor
from localspec.disk import records
from localspec.disk.samples import sampled_digest
from localspec.library import storage
from localspec.library.paths import home


def key(*parts: Any) -> str:
    """Return a name for all that a result depends on, the processor included: machines may share a folder."""
    return storage.digest_of_text(repr((processor(), *parts)))[:24]


def stamp(path: Path) -> tuple[str, int, int, str]:
    """Return the path, size, time and sampled digest of a file, or of a folder's largest file."""
    files = [file for file in path.iterdir() if file.is_file()] if path.is_dir() else [path]
    largest = max(files, key=lambda file: file.stat().st_size, default=path)
    stat = largest.stat()
    return str(largest.resolve()), stat.st_size, stat.st_mtime_ns, sampled_digest(largest)


def read(name: str) -> dict[str, Any]:
    """Return the results under `name`, empty if there are none or the file is damaged."""
    return records.read(_file(name))


def add(name: str, **results: Any) -> None:
    """Add `results` to those under `name`; if they cannot be written, they are not kept."""
    from filelock import FileLock, Timeout

    file = _file(name)
    with suppress(OSError, Timeout):
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_name(LOCK), timeout=PATIENCE):
            records.write(file, records.read(file) | results)


LOCK = ".lock"  # one for all files, each of which is written in milliseconds
PATIENCE = 5.0  # seconds to wait for another process that writes the same results


def _file(name: str) -> Path:
    return home() / "probes" / f"{name}.json"
