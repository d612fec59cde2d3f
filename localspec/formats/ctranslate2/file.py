"""Read a CTranslate2 model.bin: names and shapes from its headers, tensors as views on the mapped file."""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.files import mapped, truncated
from localspec.formats.tensors import TensorInfo

# The format's number of a type -> its name here, its bytes, and the numpy type to read it as.
KINDS = {
    0: ("F32", 4, "<f4"),
    1: ("I8", 1, "i1"),
    2: ("I16", 2, "<i2"),
    3: ("I32", 4, "<i4"),
    4: ("F16", 2, "<f2"),
    5: ("BF16", 2, "<u2"),
}
READ_AS = {name: letters for name, _, letters in KINDS.values()}

WEIGHTS = "model.bin"
HEAD_BYTES = 64  # of a file, from which `is_ctranslate2` knows it

VERSIONS = (5, 6)  # earlier ones have other type numbers
NEXT_VERSIONS = 100  # a version from here on is damage
MAX_TENSORS = 1 << 16
MAX_DIMENSIONS = 8


def is_ctranslate2(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a CTranslate2 model, in any version."""
    length = int.from_bytes(head[4:6], "little")
    return head[1:4] == bytes(3) and 4 < length < 40 and head[6 : 6 + length].endswith(b"Spec\0")


class Ctranslate2File:
    """A memory-mapped CTranslate2 model: only headers are read before a tensor is used.

    `spec` is the kind of model, such as `WhisperSpec`. A tensor that has a second name is listed under both.
    """

    def __init__(self, path: Path, spec: str, data: mmap.mmap, tensors: dict[str, TensorInfo]) -> None:
        self.path = path
        self.spec = spec
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> Ctranslate2File:
        """Read the headers of `path`.

        Raises BrokenModel for a file that is of another format, is damaged or ends too early, and
        UnsupportedModel for a version that is not in VERSIONS.
        """
        data = mapped(path)
        spec, tensors = _Reader(path, data).read()
        return cls(path, spec, data, tensors)

    def array(self, name: str) -> NDArray[Any]:
        """Return a view of a tensor, in the type it is stored in; bfloat16 as a copy in float32."""
        info = self.tensors[name]
        count = math.prod(info.shape)
        values = np.frombuffer(self._data, READ_AS[info.kind], count=count, offset=info.offset)
        if info.kind == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.reshape(info.shape)


class _Reader:
    """Reads the headers; `at` is the position after the last value read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.at = 0

    def read(self) -> tuple[str, dict[str, TensorInfo]]:
        self.check_version(self.number("I", "the version"))
        spec = self.text("the kind of model")
        self.number("I", "the revision")
        tensors: dict[str, TensorInfo] = {}
        for _ in range(self.counted("the list of tensors")):
            info = self.tensor()
            if info.name in tensors:
                raise self.damaged(f"`{printable(info.name)}` is listed twice")
            tensors[info.name] = info
        for _ in range(self.counted("the list of second names")):
            alias, name = self.text("a second name"), self.text("the name it stands for")
            if name not in tensors or alias in tensors:
                raise self.damaged(f"`{printable(alias)}` stands for `{printable(name)}`")
            tensors[alias] = tensors[name]
        return spec, tensors

    def check_version(self, version: int) -> None:
        if version in VERSIONS:
            return
        if 0 < version < NEXT_VERSIONS:
            versions = " and ".join(str(version) for version in VERSIONS)
            raise UnsupportedModel(
                f"`{self.path}` has CTranslate2's format {version}, only {versions} can be read",
                "Convert the model again, with CTranslate2 4",
            )
        raise BrokenModel(f"`{self.path}` is not a CTranslate2 model", "Download it again")

    def tensor(self) -> TensorInfo:
        name = self.text("a tensor's name")
        shown = printable(name)
        dimensions = self.number("B", f"the shape of `{shown}`")
        if dimensions > MAX_DIMENSIONS:
            raise self.damaged(f"`{shown}` has {dimensions} dimensions")
        shape = tuple(self.number("I", f"the shape of `{shown}`") for _ in range(dimensions))
        kind, size = self.number("B", f"the type of `{shown}`"), self.number("I", f"the size of `{shown}`")
        if kind not in KINDS:
            raise self.damaged(f"`{shown}` has the unknown type {kind}")
        title, width, _ = KINDS[kind]
        # The file counts bytes in 32 bits: those of a larger tensor follow from its shape alone.
        needed = math.prod(shape) * width
        if needed % (1 << 32) != size:
            raise self.damaged(f"`{shown}` has {size:,} bytes, and its shape needs {needed:,}")
        start = self.at
        self.skip(needed, f"`{shown}`")
        return TensorInfo(name, shape, title, start, needed)

    def counted(self, what: str) -> int:
        count = self.number("I", what)
        if count > MAX_TENSORS:
            raise self.damaged(f"{what} has {count:,} items")
        return count

    def number(self, letter: str, what: str) -> int:
        start = self.at
        self.skip(struct.calcsize("<" + letter), what)
        (value,) = struct.unpack_from("<" + letter, self.data, start)
        return int(value)

    def text(self, what: str) -> str:
        length = self.number("H", what)
        start = self.at
        self.skip(length, what)
        return self.data[start : self.at].rstrip(b"\0").decode("utf-8", "replace")

    def skip(self, size: int, what: str) -> None:
        """Go on by `size` bytes; raise BrokenModel if the file is shorter."""
        end = self.at + size
        if end > len(self.data):
            raise truncated(self.path, what, end, len(self.data))
        self.at = end

    def damaged(self, what: str) -> BrokenModel:
        return BrokenModel(f"`{self.path}` is damaged: {what}", "Download it again")
