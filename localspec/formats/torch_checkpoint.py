"""Read the tensors of a PyTorch checkpoint without PyTorch, and without running what it says.

A checkpoint is a ZIP file: `data.pkl` is a pickle, a program for Python's unpickler that may call anything,
and `data/0` ... are the bytes of its tensors. Here a small interpreter knows the operations that build
dictionaries, lists, tuples, numbers, texts and tensors. It calls nothing, and refuses the rest.
"""

from __future__ import annotations

import errno
import pickletools
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable

MAX_PICKLE = 1 << 24  # bytes of `data.pkl`: a thousand tensors take 130 kB
DTYPES: dict[str, np.dtype[Any]] = {
    "torch DoubleStorage": np.dtype("<f8"),
    "torch FloatStorage": np.dtype("<f4"),
    "torch HalfStorage": np.dtype("<f2"),
    "torch LongStorage": np.dtype("<i8"),
    "torch IntStorage": np.dtype("<i4"),
    "torch ShortStorage": np.dtype("<i2"),
    "torch CharStorage": np.dtype("i1"),
    "torch ByteStorage": np.dtype("u1"),
    "torch BoolStorage": np.dtype("?"),
}
AGAIN = "Download it again"
DAMAGED = (  # what zipfile, pickletools and the interpreter raise
    *(zipfile.BadZipFile, zlib.error, struct.error, ValueError, LookupError, TypeError, ArithmeticError),
    *(EOFError, NotImplementedError, RuntimeError),
)


class _Name(NamedTuple):
    """A Python class or function that a pickle names; it is never looked up."""

    name: str


class _Storage(NamedTuple):
    """The bytes of one or more tensors."""

    values: NDArray[Any]


class _Refused(Exception):
    """Something in a pickle that builds no tensor, number, text or container."""


def read(path: Path) -> Any:
    """Return what a checkpoint holds: dictionaries, lists, tuples, numbers, texts, and tensors as arrays.

    Raises BrokenModel for a file that is damaged or no such checkpoint, UnsupportedModel for one that holds
    other objects, and OSError.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _Checkpoint(archive, path.stat().st_size).value()
    except _Refused as error:
        raise UnsupportedModel(
            f"`{path}` holds more than tensors: {error}", "Give a file with a plain state dictionary"
        ) from None
    except DAMAGED as error:
        raise _broken(path, error) from None
    except OSError as error:
        if error.errno != errno.EINVAL:  # zipfile jumps to where a damaged file says
            raise
        raise _broken(path, error) from None


def _broken(path: Path, error: Exception) -> BrokenModel:
    return BrokenModel(f"`{path}` is no PyTorch checkpoint, or damaged: {printable(str(error))}", AGAIN)


def state(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a model by name: its `state_dict`, or all it holds. Raises as `read` does."""
    found = read(path)
    if isinstance(found, dict):
        found = found.get("state_dict", found)
    if (
        not isinstance(found, dict)
        or not found
        or not all(isinstance(each, np.ndarray) for each in found.values())
    ):
        raise BrokenModel(f"`{path}` holds no tensors by name", AGAIN)
    return {str(name): tensor for name, tensor in found.items()}


class _Checkpoint:
    """One archive: its pickle, and the storages that this names."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > size:
            raise ValueError("its entries are larger than the file")
        pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
        if len(pickles) != 1 or pickles[0].file_size > MAX_PICKLE:
            raise ValueError("it has no data.pkl")
        self._archive = archive
        self._pickle = pickles[0]
        self._folder = self._pickle.filename.removesuffix("data.pkl")
        self._storages: dict[str, _Storage] = {}

    def value(self) -> Any:
        """Return what the pickle builds."""
        order = f"{self._folder}byteorder"
        if order in self._archive.namelist() and self._archive.read(order) != b"little":
            raise _Refused("numbers of another byte order")
        return _Interpreter(self._storage).run(self._archive.read(self._pickle))

    def _storage(self, reference: Any) -> _Storage:
        """Return the storage that a reference names: ("storage", type, key, device, numbers)."""
        _, kind, key, _, count = reference
        if not isinstance(kind, _Name) or kind.name not in DTYPES or not isinstance(key, str):
            raise _Refused(f"a storage of {_shown(kind)}")
        if key not in self._storages:
            content = self._archive.read(f"{self._folder}data/{key}")
            self._storages[key] = _Storage(np.frombuffer(content, DTYPES[kind.name]))
        found = self._storages[key]
        if found.values.dtype != DTYPES[kind.name] or len(found.values) != count:
            raise ValueError(f"storage {printable(key)} has another size")
        return found


def _shown(value: Any) -> str:
    """Return a value as a message can show it: others than names may have texts without end."""
    return f"`{printable(value.name)}`" if isinstance(value, _Name) else f"a {type(value).__name__}"


def _tensor(storage: Any, offset: Any, sizes: Any, strides: Any, *_: Any) -> NDArray[Any]:
    """Return a tensor of a storage (torch._utils._rebuild_tensor_v2); only contiguous ones are read."""
    if not isinstance(storage, _Storage):
        raise TypeError("a tensor without a storage")
    numbers = [offset, *sizes, *strides]
    if not all(type(number) is int and number >= 0 for number in numbers) or len(sizes) != len(strides):
        raise ValueError("a tensor has no shape")
    expected = [prod(sizes[at + 1 :]) for at in range(len(sizes))]
    if any(size > 1 and there != here for size, there, here in zip(sizes, strides, expected, strict=True)):
        raise _Refused("a tensor that is not contiguous")
    count = prod(sizes)
    if offset + count > len(storage.values):
        raise ValueError("a tensor is larger than its storage")
    return storage.values[offset : offset + count].reshape(sizes)


BUILDERS: dict[str, Callable[..., Any]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    "collections OrderedDict": lambda: {},
}
CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}
LITERALS = {"BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE"}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


@dataclass
class _Interpreter:
    """Runs the operations of a pickle on a stack, as Python's `pickle.py` does, but for calls."""

    storage: Callable[[Any], _Storage]
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)  # the stacks under each MARK
    memo: dict[int, Any] = field(default_factory=dict)

    def run(self, program: bytes) -> Any:
        """Return what a program leaves; raises _Refused, ValueError, LookupError and TypeError."""
        for operation, argument, _ in pickletools.genops(program):
            name = operation.name
            if name == "STOP":
                return self.stack.pop()
            if name in LITERALS:
                self.stack.append(argument)
            elif name in CONSTANTS:
                self.stack.append(CONSTANTS[name]())
            elif name in TUPLES:
                self.stack[-TUPLES[name] :] = [tuple(self._last(TUPLES[name]))]
            elif (method := getattr(self, f"_{name.lower()}", None)) is not None:
                method(argument)
            else:
                raise _Refused(f"the operation {name}")
        raise EOFError("it ends early")

    def _last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise IndexError("its stack is empty")
        return self.stack[-count:]

    def _marked(self) -> list[Any]:
        marked, self.stack = self.stack, self.below.pop()
        return marked

    def _proto(self, _: Any) -> None:
        pass

    _frame = _proto

    def _mark(self, _: Any) -> None:
        self.below.append(self.stack)
        self.stack = []

    def _tuple(self, _: Any) -> None:
        marked = self._marked()
        self.stack.append(tuple(marked))

    def _memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binput(self, at: int) -> None:
        self.memo[at] = self.stack[-1]

    def _binget(self, at: int) -> None:
        self.stack.append(self.memo[at])

    _long_binput, _long_binget = _binput, _binget

    def _global(self, name: str) -> None:
        self.stack.append(_Name(name))

    def _stack_global(self, _: Any) -> None:
        module, name = self._last(2)
        self.stack[-2:] = [_Name(f"{module} {name}")]

    def _binpersid(self, _: Any) -> None:
        self.stack.append(self.storage(self.stack.pop()))

    def _reduce(self, _: Any) -> None:
        """Call one of three known functions."""
        called, arguments = self._last(2)
        if not isinstance(called, _Name) or called.name not in BUILDERS:
            raise _Refused(f"a call of {_shown(called)}")
        self.stack[-2:] = [BUILDERS[called.name](*arguments)]

    def _build(self, _: Any) -> None:
        """Leave out the attributes of a dictionary: PyTorch keeps versions of modules there."""
        built, _state = self._last(2)
        if not isinstance(built, dict):
            raise _Refused("an object with attributes")
        self.stack.pop()

    def _setitems(self, _: Any) -> None:
        values = self._marked()
        self._fill(zip(values[::2], values[1::2], strict=True))

    def _setitem(self, _: Any) -> None:
        key, value = self._last(2)
        del self.stack[-2:]
        self._fill([(key, value)])

    def _fill(self, items: Any) -> None:
        filled = self.stack[-1]
        if not isinstance(filled, dict):
            raise TypeError("items of no dictionary")
        for key, value in items:
            if not isinstance(key, str | int):  # others may take for ever to hash
                raise _Refused("a key that is no text")
            filled[key] = value

    def _appends(self, _: Any) -> None:
        values = self._marked()
        self._extend(values)

    def _append(self, _: Any) -> None:
        self._extend([self.stack.pop()])

    def _extend(self, values: list[Any]) -> None:
        if not isinstance(self.stack[-1], list):
            raise TypeError("items of no list")
        self.stack[-1].extend(values)
