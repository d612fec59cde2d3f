"""Write PyTorch checkpoints without PyTorch: its pickles, operation by operation."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

STORAGES = {
    "float32": "FloatStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "bool": "BoolStorage",
}
SMALL: dict[str, NDArray[Any]] = {
    "layer.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "layer.count": np.array(7, np.int64),
    "half": np.ones(3, np.float16),
}
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"
ORDERED = b"ccollections\nOrderedDict\n)R"


def text(value: str) -> bytes:
    """Return the operation that pushes a text."""
    content = value.encode()
    return b"X" + struct.pack("<I", len(content)) + content


def number(value: int) -> bytes:
    """Return the operation that pushes a whole number."""
    return b"J" + struct.pack("<i", value)


def numbers(values: tuple[int, ...]) -> bytes:
    """Return the operations that push a tuple of whole numbers."""
    return b"(" + b"".join(map(number, values)) + b"t"


def storage(key: str, kind: str, count: int) -> bytes:
    """Return the operations that push a storage of `count` numbers."""
    reference = text("storage") + f"ctorch\n{kind}\n".encode() + text(key) + text("cpu") + number(count)
    return b"(" + reference + b"tQ"


def tensor(key: str, value: NDArray[Any]) -> bytes:
    """Return the operations that push a tensor; its bytes are storage `key`."""
    strides = tuple(stride // value.itemsize for stride in value.strides)
    shape = numbers(value.shape) + numbers(strides)
    own = storage(key, STORAGES[value.dtype.name], value.size)
    return REBUILD + b"(" + own + number(0) + shape + b"\x89" + ORDERED + b"tR"


def program(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the pickle of a dictionary of tensors."""
    items = [text(name) + tensor(str(at), value) for at, (name, value) in enumerate(tensors.items())]
    return b"\x80\x02" + ORDERED + b"q\x00(" + b"".join(items) + b"u" + pickle.STOP


def archive(pickled: bytes, storages: Mapping[str, bytes]) -> bytes:
    """Return a checkpoint with a pickle and its storages."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as made:
        made.writestr("archive/data.pkl", pickled)
        made.writestr("archive/byteorder", "little")
        for key, content in storages.items():
            made.writestr(f"archive/data/{key}", content)
        made.writestr("archive/version", "3\n")
    return file.getvalue()


def checkpoint(tensors: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the checkpoint of a dictionary of tensors."""
    return archive(program(tensors), {str(at): value.tobytes() for at, value in enumerate(tensors.values())})
