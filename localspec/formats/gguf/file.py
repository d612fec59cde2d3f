"""Read a GGUF file: metadata as Python values, tensors as views on the mapped file."""

from __future__ import annotations

import functools
import math
import mmap
import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.files import mapped, truncated
from localspec.formats.tensors import TensorInfo
from localspec.formats.values import Values, whole, wrong

# The format's value types -> `struct` letters. 8 is a string, 9 an array.
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, LIST = 8, 9

TensorEntry = tuple[str, tuple[int, ...], int, int]  # name, shape, type number, offset in the data

# Far above those of real files: a damaged length must not allocate all memory.
MAX_TEXT = 1 << 24
MAX_LIST = 1 << 22
MAX_LISTED = 1 << 23  # values of all lists together
MAX_VALUES = 1 << 16
MAX_TENSORS = 1 << 17
MAX_HEADER = 1 << 28  # bytes
MAX_DIMENSIONS = 4
VERSIONS = 100  # a version from here on is damage
UNKNOWN = "type "  # starts the kind of a tensor whose type is known by its number only


class GgufFile:
    """A memory-mapped GGUF file: only its header is read before a tensor is used."""

    def __init__(
        self, path: Path, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read the header of `path`.

        A tensor of a type that `gguf` does not know, as newer files have them, is listed with the bytes up to
        the next one. Raises BrokenModel for a file that is no GGUF, is damaged or ends too early, and
        UnsupportedModel for one part of a split file.
        """
        data = mapped(path)
        metadata, tensors = _Header(path, data).read()
        file = cls(path, data, metadata, tensors)
        parts = whole(Values(path, metadata), "split.count", 0, least=0)
        if parts > 1:
            raise UnsupportedModel(
                f"`{path}` is one of {parts} parts of a model",
                f"Join them first: `llama-gguf-split --merge {path.name} joined.gguf`",
            )
        return file

    @property
    def precision(self) -> str:
        """The tensor type of most of the bytes."""
        sizes: Counter[str] = Counter()
        for info in self.tensors.values():
            sizes[info.kind] += info.size
        return sizes.most_common(1)[0][0] if sizes else ""

    @property
    def architecture(self) -> str:
        """The model family by llama.cpp's name, such as `llama` or `qwen2`."""
        name = self.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise BrokenModel(f"`{self.path}` has no `general.architecture`", "Download it again")
        return name

    def value(self, key: str, default: Any = None) -> Any:
        """Return the metadata value `key` of this architecture, such as `block_count`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)

    def check_kind(self, name: str) -> None:
        """Raise UnsupportedModel for a tensor of a type that `gguf` does not know."""
        kind = self.tensors[name].kind
        if kind.startswith(UNKNOWN):
            raise UnsupportedModel(
                f"`{printable(name)}` in `{self.path}` has the unknown tensor {kind}",
                "Update the library with `pip install --upgrade gguf`, or choose another engine or file",
            )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's stored bytes [rows, bytes per row]; a vector has one row.

        Raises UnsupportedModel for a tensor of an unknown type.
        """
        self.check_kind(name)
        info = self.tensors[name]
        rows = math.prod(info.shape[:-1])
        view = np.frombuffer(self._data, np.uint8, count=info.size, offset=info.offset)
        return view.reshape(rows, info.size // rows if rows else 0)


class _Header:
    """Parses the header; `at` is the position after the last value read."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.size = len(data)
        self.at = 0
        self.listed = 0  # values of lists so far

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if self.data[:4] != b"GGUF":
            raise BrokenModel(f"`{self.path}` is not a GGUF file", "Give a file that ends in .gguf")
        self.at = 4
        (version,) = self.numbers("I", "the version")
        if version not in (2, 3):
            what = f"`{self.path}` is GGUF version {version}; only 2 and 3 can be read"
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            if swapped in range(1, VERSIONS):
                raise UnsupportedModel(
                    f"`{self.path}` is a GGUF file of big-endian numbers, which cannot be read"
                )
            raise (
                UnsupportedModel(what)
                if version in range(1, VERSIONS)
                else BrokenModel(what, "Download it again")
            )
        tensor_count, value_count = self.numbers("QQ", "the header")
        metadata: dict[str, Any] = {}
        for _ in self.counted(value_count, 13, MAX_VALUES, "the metadata"):
            key, value = self.entry()
            if key in metadata:
                raise self.damaged(f"`{printable(key)}` is listed twice")
            metadata[key] = value
        counted = self.counted(tensor_count, 24, MAX_TENSORS, "the list of tensors")
        entries = [self.tensor() for _ in counted]
        return metadata, self.placed(entries, self.data_start(metadata))

    def numbers(self, letters: str, what: str) -> tuple[Any, ...]:
        """Read adjacent numbers; `what` names them in the error of a truncated file."""
        end = self.need(struct.calcsize("<" + letters), what)
        values = struct.unpack_from("<" + letters, self.data, self.at)
        self.read_to(end)
        return values

    def need(self, size: int, what: str) -> int:
        """Return the position after the next `size` bytes; raise BrokenModel if the file is shorter."""
        end = self.at + size
        if end > self.size:
            raise truncated(self.path, what, end, self.size)
        return end

    def read_to(self, end: int) -> None:
        """Go on to `end`; raise BrokenModel if no header is that long."""
        if end > MAX_HEADER:
            raise self.damaged(f"its header has more than {MAX_HEADER:,} bytes")
        self.at = end

    def counted(self, count: int, smallest: int, most: int, what: str) -> range:
        """Return range(count), if it is at most `most`, and as many items of `smallest` bytes are left."""
        self.need(count * smallest, what)
        if count > most:
            raise self.damaged(f"{what} has {count:,} items")
        return range(count)

    def text(self, what: str) -> str:
        (length,) = self.numbers("Q", what)
        end = self.need(length, what)
        if length > MAX_TEXT:
            raise self.damaged(f"{what} has {length:,} characters")
        encoded = self.data[self.at : end]
        self.read_to(end)
        return encoded.decode("utf-8", "replace")

    def entry(self) -> tuple[str, Any]:
        key = self.text("a metadata key")
        shown = printable(key)
        (kind,) = self.numbers("I", f"the type of `{shown}`")
        return key, self.value(kind, shown)

    def value(self, kind: int, key: str) -> Any:
        if kind in NUMBERS:
            return self.numbers(NUMBERS[kind], f"`{key}`")[0]
        if kind == TEXT:
            return self.text(f"`{key}`")
        if kind == LIST:
            return self.values(key)
        raise self.damaged(f"`{key}` has the unknown type {kind}")

    def values(self, key: str) -> list[Any]:
        kind, count = self.numbers("IQ", f"`{key}`")
        if kind not in NUMBERS and kind != TEXT:
            raise self.damaged(f"`{key}` is a list of the unknown type {kind}")
        smallest = struct.calcsize("<" + NUMBERS.get(kind, "Q"))
        self.counted(count, smallest, MAX_LIST, f"`{key}`")
        self.listed += count
        if self.listed > MAX_LISTED:
            raise self.damaged(f"its metadata lists more than {MAX_LISTED:,} values")
        if kind == TEXT:
            return self.texts(count, key)
        return list(self.numbers(f"{count}{NUMBERS[kind]}", f"`{key}`"))

    def texts(self, count: int, key: str) -> list[str]:
        """Read many texts: a vocabulary of up to 300,000 is nearly all the cost of a header."""
        data, at, size, length = self.data, self.at, self.size, struct.Struct("<Q").unpack_from
        texts = []
        for _ in range(count):
            start = at + 8
            at = start + length(data, at)[0] if start <= size else start
            if at > size:
                raise truncated(self.path, f"`{key}`", at, size)
            if at - start > MAX_TEXT:
                raise self.damaged(f"`{key}` holds a text of {at - start:,} characters")
            texts.append(data[start:at].decode("utf-8", "replace"))
            if at > MAX_HEADER:
                break
        self.read_to(at)
        return texts

    def tensor(self) -> TensorEntry:
        """Read a tensor's name, shape (rows first), type number and offset in the data."""
        name = self.text("a tensor's name")
        shown = printable(name)
        (dimensions,) = self.numbers("I", f"the shape of `{shown}`")
        if dimensions > MAX_DIMENSIONS:
            raise self.damaged(f"`{shown}` has {dimensions} dimensions")
        shape = self.numbers(f"{dimensions}Q", f"the shape of `{shown}`")
        if 0 in shape:
            raise self.damaged(f"`{shown}` has no values")
        kind, offset = self.numbers("IQ", f"the offset of `{shown}`")
        return name, shape[::-1], kind, offset

    def data_start(self, metadata: dict[str, Any]) -> int:
        source = Values(self.path, metadata)
        alignment = whole(source, "general.alignment", 32)
        if alignment & (alignment - 1):
            raise wrong(source, "general.alignment", alignment, "a power of two")
        return -(-self.at // alignment) * alignment

    def placed(self, entries: Sequence[TensorEntry], start: int) -> dict[str, TensorInfo]:
        tensors: dict[str, TensorInfo] = {}
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise self.damaged(f"`{printable(name)}` is listed twice")
            tensors[name] = self.sized(name, shape, kind, start + offset)
        starts = sorted({info.offset for info in tensors.values()})
        for name, info in tensors.items():
            if info.kind.startswith(UNKNOWN):
                following = starts[bisect_right(starts, info.offset) :]
                tensors[name] = replace(info, size=max((following or [self.size])[0] - info.offset, 0))
        if tensors:
            self.check_end(max(tensors.values(), key=lambda info: info.offset + info.size))
        return tensors

    def sized(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> TensorInfo:
        kinds = _kinds()
        if kind not in kinds:
            return TensorInfo(name, shape or (1,), f"{UNKNOWN}{kind}", offset, 0)
        title, block, block_bytes = kinds[kind]
        width = shape[-1] if shape else 1
        if width % block:
            raise self.damaged(
                f"`{printable(name)}` has rows of {width} values, and {title} has blocks of {block}"
            )
        size = math.prod(shape) // block * block_bytes
        return TensorInfo(name, shape or (1,), title, offset, size)

    def check_end(self, last: TensorInfo) -> None:
        if last.offset + last.size > self.size:
            raise truncated(self.path, f"`{printable(last.name)}`", last.offset + last.size, self.size)

    def damaged(self, what: str) -> BrokenModel:
        return BrokenModel(f"`{self.path}` is damaged: {what}", "Download it again")


@functools.cache
def _kinds() -> dict[int, tuple[str, int, int]]:
    """Return ggml's tensor types by number: name, values per block, bytes per block."""
    from gguf import GGML_QUANT_SIZES

    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
