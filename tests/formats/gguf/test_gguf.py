from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.errors import BrokenModel, ModelError, StorageError, UnknownModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile

METADATA = {
    "general.architecture": ("s", "llama"),
    "llama.block_count": ("I", 2),
    "llama.rope.freq_base": ("f", 10000.0),
    "a.small": ("b", -3),
    "a.flag": ("?", True),
    "a.long": ("Q", 1 << 60),
    "a.double": ("d", 0.1),
    "a.numbers": ("[i", [1, -2, 3]),
    "a.flags": ("[?", [True, False]),
    "a.texts": ("[s", ["", "é", "日本"]),
    "a.empty": ("[s", []),
}
ROWS = np.arange(12, dtype=np.float32)
Q8 = bytes(range(34)) * 3
TENSORS = (
    ("rows", (4, 3), 0, ROWS.tobytes()),
    ("quantized", (32, 3), 8, Q8),
    ("vector", (5,), 1, np.arange(5, dtype=np.float16).tobytes()),
)


@pytest.fixture
def path(tmp_path: Path, write: Any) -> Path:
    found: Path = write(tmp_path / "tiny.gguf", METADATA, TENSORS)
    return found


def test_values_come_back(path: Path) -> None:
    found = GgufFile.open(path)
    assert {key: kind[1] for key, kind in METADATA.items()} == found.metadata
    assert found.architecture == "llama"
    assert found.value("block_count") == 2
    assert found.value("head_count", 7) == 7


def test_tensors_are_views_with_rows_first(path: Path) -> None:
    found = GgufFile.open(path)
    info = found.tensors["rows"]
    assert (info.shape, info.kind, info.size) == ((3, 4), "F32", 48)
    assert np.array_equal(found.raw("rows").view(np.float32), ROWS.reshape(3, 4))
    assert found.tensors["quantized"].kind == "Q8_0"
    assert found.raw("quantized").shape == (3, 34)
    assert found.raw("quantized").tobytes() == Q8
    assert found.raw("vector").shape == (1, 10)
    assert not found.raw("rows").flags.writeable


def test_it_reads_what_the_gguf_package_reads(smollm2: Path) -> None:
    found = GgufFile.open(smollm2)
    data = np.memmap(smollm2, np.uint8, "r")
    assert len(found.tensors) == 272
    info = found.tensors["blk.3.ffn_down.weight"]
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[info.kind]]
    assert info.shape == (576, 1536)
    assert info.size == 576 * 1536 // block * size
    assert np.array_equal(found.raw(info.name).ravel(), data[info.offset : info.offset + info.size])
    last = max(found.tensors.values(), key=lambda info: info.offset)
    assert last.offset + last.size == smollm2.stat().st_size
    assert len(found.metadata["tokenizer.ggml.tokens"]) == 49152


def test_a_file_cut_anywhere_says_what_is_missing(path: Path, tmp_path: Path) -> None:
    whole = path.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(4, len(whole) - 22):  # the last vector needs 10 of the 32 bytes at the end
        cut.write_bytes(whole[:length])
        with pytest.raises(BrokenModel) as caught:
            GgufFile.open(cut)
        assert f"`{cut}` is truncated: " in caught.value.message
        assert f"and the file has {length:,}" in caught.value.message
    assert "`vector` needs" in caught.value.message


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_file_raises_nothing_else(
    path: Path, tmp_path: Path, damage: list[tuple[int, int]]
) -> None:
    data = bytearray(path.read_bytes())
    for at, byte in damage:
        data[at % len(data)] = byte
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(data)
    try:
        found = GgufFile.open(broken)
        for name in found.tensors:
            found.raw(name)
    except (BrokenModel, UnsupportedModel):
        pass


@pytest.mark.parametrize("kind", ["Q", "s", "?"])
def test_a_damaged_length_asks_for_no_memory(tmp_path: Path, kind: str) -> None:
    number = {"Q": 10, "s": 8, "?": 7}[kind]
    key = struct.pack("<Q", 1) + b"k"
    header = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IIQ", 9, number, 100_000_000)
    path = tmp_path / "huge.gguf"
    with path.open("wb") as file:
        file.write(header)
        file.truncate(1 << 30)  # sparse: as long as a real model, and nothing but zeros
    tracemalloc.start()
    try:
        with pytest.raises(BrokenModel, match="`k` has 100,000,000 items"):
            GgufFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_huge_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge.gguf"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 29))
        file.truncate(1 << 30)
    with pytest.raises(BrokenModel, match="a metadata key has 536,870,912 characters"):
        GgufFile.open(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04 a zip file", "is not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 7_000_000, 0, 0), "is GGUF version 7000000"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 40, 0), "the list of tensors needs"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(BrokenModel, match=message):
        GgufFile.open(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "is GGUF version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), "is GGUF version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    ],
)
def test_other_versions_are_unsupported(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel, match=message):
        GgufFile.open(path)


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"general.alignment": ("I", 0)}, (), "`general.alignment` of .* is `0`"),
        ({"general.alignment": ("s", "32")}, (), "`general.alignment` of .* is `32`"),
        ({}, (("t", (3, 1), 8, b""),), "`t` has rows of 3 values, and Q8_0 has blocks of 32"),
        ({}, (("t", (1,) * 5, 0, bytes(4)),), "`t` has 5 dimensions"),
        ({}, (("t", (1,), 0, bytes(4)), ("t", (1,), 0, bytes(4))), "`t` is listed twice"),
        ({}, (("t", (1 << 62, 1 << 62), 0, b""),), "`t` needs"),
    ],
)
def test_headers_that_contradict_themselves(
    tmp_path: Path, write: Any, metadata: Any, tensors: Any, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        GgufFile.open(write(tmp_path / "x.gguf", metadata, tensors))


def test_unknown_tensor_types_are_unsupported(tmp_path: Path, write: Any) -> None:
    tensors = (("t", (1,), 77, bytes(64)), ("u", (1,), 0, bytes(4)), ("v", (1,), 78, bytes(40)))
    opened = GgufFile.open(write(tmp_path / "x.gguf", {}, tensors))
    assert [(info.kind, info.size) for info in opened.tensors.values()] == [
        ("type 77", 64),
        ("F32", 4),
        ("type 78", 64),
    ]
    with pytest.raises(UnsupportedModel, match=r"`t` in `.*` has the unknown tensor type 77"):
        opened.raw("t")
    with pytest.raises(UnsupportedModel, match="is one of 3 parts") as caught:
        GgufFile.open(write(tmp_path / "y.gguf", {"split.count": ("H", 3)}))
    assert "--merge y.gguf" in str(caught.value.hint)
    with pytest.raises(BrokenModel, match="has no `general.architecture`"):
        _ = GgufFile.open(write(tmp_path / "z.gguf", {})).architecture


def test_paths_that_are_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownModel, match="No such file"):
        GgufFile.open(tmp_path / "none.gguf")
    with pytest.raises(BrokenModel, match="is a folder"):
        GgufFile.open(tmp_path)

    def refuse(*words: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(StorageError, match="cannot be read"):
        GgufFile.open(tmp_path / "x.gguf")
