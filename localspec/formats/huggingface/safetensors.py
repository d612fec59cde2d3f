"""The weights of a Hugging Face folder: one or several .safetensors files and config.json."""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.files import mapped, read_json, truncated, weight_files
from localspec.formats.tensors import TensorInfo

ADAPTER = "adapter_config.json"
MAX_HEADER = 100_000_000  # bytes; the limit of the reference implementation
MAX_DIMENSIONS = 8
MAX_VALUES = 1 << 48  # of a tensor

# Bytes per value, and the numpy type to read it as. bfloat16 is the upper half of a float32.
KINDS = {
    "F64": (8, "<f8"),
    "F32": (4, "<f4"),
    "F16": (2, "<f2"),
    "BF16": (2, "<u2"),
    "I64": (8, "<i8"),
    "I32": (4, "<i4"),
    "I16": (2, "<i2"),
    "I8": (1, "<i1"),
    "U8": (1, "<u1"),
    "BOOL": (1, "?"),
}


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Entry(msgspec.Struct):
    """A tensor in a header."""

    dtype: str
    shape: list[_Count]
    data_offsets: tuple[_Count, _Count]


class SafetensorsFolder:
    """The memory-mapped weights of a folder: only headers are read before a tensor is used."""

    def __init__(
        self, path: Path, config: dict[str, Any], shards: dict[Path, tuple[mmap.mmap, dict[str, TensorInfo]]]
    ) -> None:
        self.path = path
        self.config = config
        self.tensors = {name: info for _, tensors in shards.values() for name, info in tensors.items()}
        self._data = {name: data for data, tensors in shards.values() for name in tensors}

    @classmethod
    def open(cls, path: Path) -> SafetensorsFolder:
        """Read config.json and the header of every weight file of the folder `path`.

        Raises BrokenModel for files that are damaged, missing or end too early, and UnsupportedModel for an
        adapter: other libraries would look for its model elsewhere, and add it to that.
        """
        if (path / ADAPTER).is_file():
            raise UnsupportedModel(
                f"`{path}` has `{ADAPTER}`: it changes another model",
                "Merge the adapter into its model first, with peft's `merge_and_unload`",
            )
        config = read_json(path / "config.json")
        files = weight_files(path)
        return cls(path, config, {file: _read_shard(file) for file in files})

    @property
    def architecture(self) -> str:
        """The model family by Hugging Face's name, such as `llama` or `qwen2`."""
        name = self.config.get("model_type")
        if not isinstance(name, str) or not name:
            raise UnsupportedModel(f"`{self.path / 'config.json'}` has no `model_type`, and names no family")
        return name

    def part(self, config: dict[str, Any], names: Mapping[str, str]) -> SafetensorsFolder:
        """Return a model within this one: its `config`, and its tensors, whose own names are here `names`."""
        found = SafetensorsFolder(self.path, config, {})
        found.tensors = {name: self.tensors[own] for name, own in names.items()}
        found._data = {name: self._data[own] for name, own in names.items()}
        return found

    def value(self, key: str, default: Any = None) -> Any:
        """Return a value of config.json."""
        return self.config.get(key, default)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a tensor, as the file has them."""
        info = self.tensors[name]
        return np.frombuffer(self._data[name], np.uint8, info.size, info.offset)

    def equal(self, one: str, other: str) -> bool:
        """Return whether two tensors hold the same numbers; those of one type are compared byte for byte."""
        left, right = self.tensors[one], self.tensors[other]
        if left.shape != right.shape:
            return False
        if left.kind != right.kind:
            return bool(np.array_equal(self.array(one), self.array(other)))
        return bool(np.array_equal(self.raw(one), self.raw(other)))

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a copy of a tensor in float32."""
        info = self.tensors[name]
        if info.kind not in KINDS:
            raise UnsupportedModel(
                f"`{printable(name)}` in `{self.path}` has the unsupported tensor type {printable(info.kind)}"
            )
        values = np.frombuffer(
            self._data[name], KINDS[info.kind][1], count=math.prod(info.shape), offset=info.offset
        )
        if info.kind == "BF16":
            values = (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32).reshape(info.shape)


def read_raw(path: Path) -> dict[str, tuple[TensorInfo, bytes]]:
    """Return the tensors of one .safetensors file and their bytes; raises BrokenModel."""
    data, tensors = _read_shard(path)
    return {name: (info, data[info.offset : info.offset + info.size]) for name, info in tensors.items()}


def write_file(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors, of types that are in KINDS, as one .safetensors file; raises OSError."""
    with path.open("wb") as out:
        write_to(out, tensors)


def write_to(out: BinaryIO, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors, of types that are in KINDS, as a .safetensors file that is open; raises OSError."""
    kinds = {np.dtype(form): kind for kind, (_, form) in KINDS.items() if kind != "BF16"}
    described = {name: (kinds[values.dtype], values.shape) for name, values in tensors.items()}
    _write(out, described, tensors)


def copy_tensors(folder: SafetensorsFolder, names: Iterable[str], path: Path) -> None:
    """Write some tensors of a folder, byte for byte, as one .safetensors file; raises OSError."""
    infos = {name: folder.tensors[name] for name in names}
    described = {name: (info.kind, info.shape) for name, info in infos.items()}
    with path.open("wb") as out:
        _write(out, described, {name: folder.raw(name) for name in infos})


def _write(
    out: BinaryIO, described: Mapping[str, tuple[str, Sequence[int]]], tensors: Mapping[str, NDArray[Any]]
) -> None:
    """Write tensors of the types and shapes that are `described`."""
    header, at = {}, 0
    for name, values in tensors.items():
        place = [at, at := at + values.nbytes]
        kind, shape = described[name]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": place}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of eight
    out.write(len(text).to_bytes(8, "little") + text)
    for values in tensors.values():
        out.write(np.ascontiguousarray(values).data)


def _read_shard(path: Path) -> tuple[mmap.mmap, dict[str, TensorInfo]]:
    data = mapped(path)
    header, start = _header(path, data)
    header.pop("__metadata__", None)
    tensors = {name: _info(path, name, entry, start) for name, entry in header.items()}
    if tensors:
        last = max(tensors.values(), key=lambda info: info.offset + info.size)
        if last.offset + last.size > len(data):
            raise truncated(path, f"`{printable(last.name)}`", last.offset + last.size, len(data))
    return data, tensors


def _header(path: Path, data: mmap.mmap) -> tuple[dict[str, msgspec.Raw], int]:
    """Return the header, its entries still as JSON, and the position where the data start."""
    if len(data) < 8:
        raise truncated(path, "the header", 8, len(data))
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER:
        raise BrokenModel(f"`{path}` is not a safetensors file", "Download it again")
    if 8 + length > len(data):
        raise truncated(path, "the header", 8 + length, len(data))
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise BrokenModel(
            f"`{path}` is damaged: its header is not a JSON object", "Download it again"
        ) from None
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BrokenModel(f"`{path}` is damaged: its header is not JSON", "Download it again") from None
    return header, 8 + length


def _info(path: Path, name: str, raw: msgspec.Raw, start: int) -> TensorInfo:
    try:
        entry = msgspec.json.decode(raw, type=_Entry)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise _damaged(path, name, "has no type, shape or offsets of numbers") from None
    kind, shape, (first, end) = entry.dtype, tuple(entry.shape), entry.data_offsets
    if len(shape) > MAX_DIMENSIONS or math.prod(max(size, 1) for size in shape) > MAX_VALUES:
        raise _damaged(path, name, f"has a shape of {len(shape)} dimensions that no file can hold")
    needed = math.prod(shape) * KINDS[kind][0] if kind in KINDS else end - first
    if end - first != needed or needed < 0:
        raise _damaged(path, name, f"has {end - first:,} bytes, expected {needed:,}")
    return TensorInfo(name, shape, kind, start + first, needed)


def _damaged(path: Path, name: str, reason: str) -> BrokenModel:
    return BrokenModel(f"`{path}` is damaged: `{printable(name)}` {reason}", "Download it again")
