"""Hugging Face folders whose matrices GPTQ or AWQ has packed in 4 bits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.gguf.quants import Affine
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.tensors import TensorInfo
from localspec.formats.values import Values, flag, text, whole

BITS, PER_WORD = 4, 8  # codes of a matrix, and how many an int32 holds
IN_ORDER, AWQ_ORDER = np.arange(8), np.array([0, 2, 4, 6, 1, 3, 5, 7])  # columns of a word, lowest bits first
PARTS = ("qweight", "qzeros", "scales", "g_idx")
OTHER = "Use a GGUF file of the model, or its own safetensors"


class PackedFolder(SafetensorsFolder):
    """A folder whose packed matrices look like float16 ones: `weight` in place of what they are packed in.

    A weight is scale * (code - zero), with one scale and one zero for a row of each group of columns.
    """

    def __init__(self, folder: SafetensorsFolder) -> None:
        """Raise UnsupportedModel for another kind of packing, and BrokenModel for parts that do not fit."""
        super().__init__(folder.path, dict(folder.config), {})
        self._plain, self._data, self._stored = folder, folder._data, folder.tensors
        settings = self.config.pop("quantization_config")
        if not isinstance(settings, Mapping):
            raise UnsupportedModel(f"`quantization_config` of `{self.path}` is no object", OTHER)
        source = Values(self.path / "config.json", settings)
        self._awq, self._group, self._added = _read(source)
        self.packed = {name.removesuffix(".qweight") for name in self._stored if name.endswith(".qweight")}
        self.tensors = {
            name: info
            for name, info in self._stored.items()
            if name.rpartition(".")[0] not in self.packed or name.rpartition(".")[2] not in PARTS
        }
        for name in self.packed:
            rows, columns = self._shape(name)
            at = self._stored[f"{name}.qweight"]
            self.tensors[f"{name}.weight"] = TensorInfo(
                f"{name}.weight", (rows, columns), "F16", at.offset, at.size
            )

    def equal(self, one: str, other: str) -> bool:
        """Return whether two tensors hold the same numbers."""
        return bool(np.array_equal(self.array(one), self.array(other)))

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a copy of a tensor in float32."""
        found = self.affine(name)
        return self._plain.array(name) if found is None else found.values()

    def affine(self, name: str) -> Affine | None:
        """Return a matrix as it is packed, None for another tensor."""
        name, _, suffix = name.rpartition(".")
        if suffix != "weight" or name not in self.packed:
            return None
        rows, columns = self._shape(name)
        words = self._words(f"{name}.qweight")
        codes = _unpacked(words, AWQ_ORDER).T if self._awq else _unpacked(words.T, IN_ORDER)
        zeros = _unpacked(self._words(f"{name}.qzeros"), AWQ_ORDER if self._awq else IN_ORDER).T
        if self._added and (zeros == 2**BITS - 1).any():
            what = f"`{name}.qzeros` of `{self.path}` has zeros that programs disagree on"
            raise UnsupportedModel(what, OTHER)
        scale = self._plain.array(f"{name}.scales").T
        if not np.isfinite(scale).all():
            raise BrokenModel(
                f"`{name}.scales` of `{self.path}` has numbers that are not finite", "Download it again"
            )
        groups = np.ascontiguousarray(codes).reshape(rows, -1, self._group or columns)
        offset = (zeros.astype(np.float32) + self._added) * scale
        return Affine(BITS, groups, np.ascontiguousarray(scale), np.ascontiguousarray(offset))

    def _shape(self, name: str) -> tuple[int, int]:
        """Return rows and columns of a packed matrix, whose parts must fit each other."""
        word = self._stored[f"{name}.qweight"].shape
        if len(word) != 2:
            raise self._unfit(name)
        rows, columns = (word[1] * PER_WORD, word[0]) if self._awq else (word[1], word[0] * PER_WORD)
        group = self._group or columns
        groups = columns // group
        wanted = {"qweight": word, "qzeros": (groups, rows // PER_WORD), "scales": (groups, rows)}
        found = {part: self._stored.get(f"{name}.{part}") for part in PARTS}
        kinds = {"qweight": ("I32",), "qzeros": ("I32",), "scales": ("F16", "BF16", "F32")}
        for part, shape in wanted.items():
            info = found[part]
            if info is None or info.shape != shape or info.kind not in kinds[part] or columns % group:
                raise self._unfit(name)
        order = found["g_idx"]
        if order is not None and not self._in_order(order, columns, group):
            raise UnsupportedModel(f"`{self.path}` has its columns in another order (`desc_act`)", OTHER)
        return rows, columns

    def _in_order(self, info: TensorInfo, columns: int, group: int) -> bool:
        """Return whether the group of each column is that of its place."""
        if info.kind != "I32" or info.shape != (columns,):
            return False
        return bool(np.array_equal(self._words(info.name), np.arange(columns) // group))

    def _words(self, name: str) -> NDArray[np.int32]:
        info = self._stored[name]
        count = math.prod(info.shape)
        return np.frombuffer(self._data[name], "<i4", count, info.offset).reshape(info.shape)

    def _unfit(self, name: str) -> BrokenModel:
        return BrokenModel(
            f"The parts of the packed matrix `{printable(name)}` of `{self.path}` do not fit each other",
            "Download it again",
        )


def folder_of(path: Path) -> SafetensorsFolder:
    """Open a folder whose matrices may be packed; raises the errors of SafetensorsFolder and PackedFolder."""
    folder = SafetensorsFolder.open(path)
    return PackedFolder(folder) if folder.value("quantization_config") else folder


def _read(settings: Values) -> tuple[bool, int, int]:
    """Return whether AWQ packed it, columns of a group (0 for whole rows), and what is added to zeros."""
    method = text(settings, "quant_method")
    bits = whole(settings, "bits", BITS)
    if method not in ("gptq", "awq") or bits != BITS:
        raise UnsupportedModel(
            f"`{settings.path}` is packed by `{printable(method)}` in {bits} bits, which is not supported",
            OTHER,
        )
    group = whole(settings, "group_size", 128, least=-1)
    if method == "awq":
        if (version := text(settings, "version", "gemm").lower()) != "gemm":
            raise UnsupportedModel(
                f"`version` of `{settings.path}` is `{printable(version)}`, not `gemm`", OTHER
            )
        return True, max(group, 0), 0
    layout = text(settings, "checkpoint_format", "gptq")
    if layout not in ("gptq", "gptq_v2"):
        raise UnsupportedModel(
            f"`checkpoint_format` of `{settings.path}` is `{printable(layout)}`, not `gptq`", OTHER
        )
    flag(settings, "desc_act")
    return False, max(group, 0), int(layout == "gptq")  # the first format holds zeros less one


def _unpacked(words: NDArray[np.int32], order: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the codes [rows, 8 * words] of int32 words [rows, words], whose columns lie in `order`."""
    shifts = BITS * np.arange(PER_WORD, dtype=np.uint32)
    bits = np.ascontiguousarray(words).view(np.uint32)[..., None] >> shifts
    codes = np.empty(bits.shape, np.uint8)
    codes[..., order] = bits & 15
    return codes.reshape(len(words), -1)
