"""The files to transcribe, where their transcripts go, and which of those are there already."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localspec.cli.transcribe.options import STDIN, TranscribeOptions
from localspec.disk import given as paths
from localspec.disk import records
from localspec.errors import BadValue
from localspec.library import storage
from localspec.library.paths import home

RECORDS = "transcripts"  # the folder of what is known of finished transcripts
SPOOLED = "stdin"  # the name of what comes from there


@dataclass(frozen=True, slots=True)
class Job:
    """A file to transcribe, None for stdin, and where its transcript goes, None for stdout."""

    audio: Path | None
    target: Path | None
    shown: str  # as the user named it

    def seconds(self, strict: bool) -> float:
        """Return how long the audio is, 0 if that is unknown.

        If it cannot be read, it is 0 too, unless `strict`: then the error of `audio.duration` is raised.
        """
        from localspec.speech.audio import duration

        with nullcontext() if strict else suppress(BadValue):
            return (duration(self.audio) if self.audio else None) or 0.0
        return 0.0

    def is_done(self, options: Mapping[str, Any]) -> bool:
        """Return whether the transcript is there, newer than its audio and made with the same options.

        A transcript that was changed since, or that another program wrote, is none.
        """
        if self.audio is None or self.target is None:
            return False
        known = records.read(_record(self.target))
        try:
            stamps = {"audio": _stamp(self.audio), "written": _stamp(self.target)}
        except OSError:
            return False
        newer = stamps["written"][1] >= stamps["audio"][1]
        return newer and known == stamps | {"options": dict(options)}

    def remember(self, options: Mapping[str, Any]) -> None:
        """Record that the transcript is done; a record that cannot be written is not kept."""
        if self.audio is None or self.target is None:
            return
        try:
            stamps = {"audio": _stamp(self.audio), "written": _stamp(self.target)}
        except OSError:
            return
        records.write(_record(self.target), stamps | {"options": dict(options)})


def jobs(given: TranscribeOptions) -> list[Job]:
    """Return the files in their order; makes the folder of `--out`.

    Raises BadValue for two files whose transcripts would have one name, StorageError if the folder cannot be
    made.
    """
    from localspec.speech.output.formats import ENDINGS

    found: list[Job] = []
    targets: dict[Path, str] = {}
    for name in given.audio:
        audio = None if name == STDIN else paths.path_of(name)
        stem = SPOOLED if audio is None else audio.stem
        target = given.out / f"{stem}{ENDINGS[given.written_format]}" if given.out else None
        if target is not None and target in targets:
            raise BadValue(
                f"`{targets[target]}` and `{name}` would both become `{target}`",
                "Transcribe them into different folders",
            )
        if target is not None:
            targets[target] = name
        found.append(Job(audio, target, name if audio else SPOOLED))
    if given.out:
        make_folder(given.out)
    return found


def make_folder(folder: Path) -> None:
    """Make a folder for transcripts; raises BadValue for a file of that name, and StorageError."""
    if folder.exists() and not folder.is_dir():
        raise BadValue(f"`{folder}` is a file", "Give a folder, which is made if it is missing")
    with storage.storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def _record(target: Path) -> Path:
    name = storage.digest_of_text(os.fspath(target.absolute()))[:24]
    return home() / RECORDS / f"{name}.json"


def _stamp(path: Path) -> list[int]:
    """Return the size and the time of a file, in bytes and nanoseconds."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns]
