"""Tensors as they travel: their bytes, shape and type, in files and in requests; no torch is needed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.disk import atomic
from localspec.errors import BadValue, BrokenModel, StorageError, printable
from localspec.formats.huggingface.safetensors import KINDS, read_raw, write_to

TYPES = {"F16": "float16", "F32": "float32", "BF16": "bfloat16", "U8": "uint8"}  # safetensors', torch's
SIZES = {"float16": 2, "float32": 4, "bfloat16": 2, "uint8": 1}
SUFFIXES = (".safetensors", ".npy")
NAMES = ("latents", "latent", "samples")  # of the tensor, where a file has several
MAX_BYTES = 256_000_000


class Tensor(NamedTuple):
    """A tensor's bytes in row-major order, its shape, and its type by torch's name."""

    data: bytes
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, values: NDArray[Any]) -> Tensor:
        """Return numbers in float16, float32 or uint8 as a tensor."""
        return cls(np.ascontiguousarray(values).tobytes(), values.shape, str(values.dtype))

    def check(self, what: str) -> Tensor:
        """Return the tensor; raises BadValue for an unknown type, and bytes that are not its shape's."""
        if self.dtype not in SIZES:
            raise BadValue(
                f"{what} has the type `{printable(self.dtype)}`", f"Choose from {', '.join(SIZES)}"
            )
        if not 3 <= len(self.shape) <= 4 or min(self.shape) < 1:
            raise BadValue(
                f"{what} has the shape {list(self.shape)}", "Latents have 4 dimensions, packed ones 3"
            )
        needed = math.prod(self.shape) * SIZES[self.dtype]
        if needed != len(self.data):
            raise BadValue(
                f"{what} has {len(self.data):,} bytes, but {list(self.shape)} in {self.dtype} has {needed:,}",
                "Send the whole tensor, and its own shape and type",
            )
        return self

    def numpy(self) -> NDArray[Any]:
        """Return the numbers, those in bfloat16 as float32."""
        if self.dtype == "bfloat16":
            upper = np.frombuffer(self.data, np.uint16).astype(np.uint32) << 16
            return upper.view(np.float32).reshape(self.shape)
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)

    def parts(self) -> list[Tensor]:
        """Return each of the pictures of the first dimension as a tensor of one."""
        size = len(self.data) // self.shape[0]
        return [
            Tensor(self.data[at * size : (at + 1) * size], (1, *self.shape[1:]), self.dtype)
            for at in range(self.shape[0])
        ]


def read(path: Path) -> Tensor:
    """Return the latents of a file; raises BadValue, BrokenModel or StorageError for what holds none."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadValue(f"`{path}` has more than {MAX_BYTES:,} bytes", "Give latents, not a model")
        if path.suffix == ".safetensors":
            return _of_safetensors(path)
        if path.suffix == ".npy":
            return _of_numpy(path)
    except FileNotFoundError:
        raise BadValue(f"No such file: `{path}`", "Check the path") from None
    except OSError as error:
        raise StorageError(f"`{path}` cannot be read: {error.strerror}", "Check the path") from None
    hint = "Save them with safetensors: `save_file({'latents': latents}, 'latents.safetensors')`"
    raise BadValue(f"`{path}` is no file of latents: it ends neither in .safetensors nor in .npy", hint)


def write(path: Path, tensor: Tensor) -> None:
    """Write a tensor as a .safetensors or .npy file, whole or not at all."""
    values = tensor.numpy()
    with atomic.file(path) as file:
        if path.suffix == ".npy":
            np.save(file, values)
        else:
            write_to(file, {"latents": values})


def _of_safetensors(path: Path) -> Tensor:
    found = read_raw(path)
    name = next((name for name in NAMES if name in found), next(iter(found), None))
    if name is None or (len(found) > 1 and name not in NAMES):
        names = ", ".join(printable(each) for each in list(found)[:5]) or "none"
        raise BadValue(
            f"`{path}` has no tensor `latents` (it has {names})", "Save the latents under that name"
        )
    info, data = found[name]
    if info.kind not in TYPES or info.kind not in KINDS:
        raise BadValue(f"`{path}` has latents in {printable(info.kind)}", "Save them in float16 or float32")
    return Tensor(data, info.shape, TYPES[info.kind]).check(f"`{path}`")


def _of_numpy(path: Path) -> Tensor:
    try:
        values = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, SyntaxError) as error:
        why = printable(str(error)).rstrip(".")
        raise BrokenModel(f"`{path}` is damaged, or no array of numbers: {why}", "Save it again") from None
    if values.dtype == np.float64:
        values = values.astype(np.float32)
    return Tensor.of(values).check(f"`{path}`")
