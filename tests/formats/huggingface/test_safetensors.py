from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from localspec.errors import BrokenModel, UnknownModel, UnsupportedModel
from localspec.formats.huggingface.safetensors import SafetensorsFolder

VALUES = np.array([[1.0, -2.5, 3.0], [0.15625, 1e30, -0.0]], np.float32)
BF16 = (VALUES.view(np.uint32) >> 16).astype(np.uint16)


def write(path: Path, tensors: dict[str, tuple[str, tuple[int, ...], bytes]], **extra: Any) -> Path:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}, **extra}
    data = b""
    for name, (kind, shape, content) in tensors.items():
        place = [len(data), len(data) + len(content)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": place}
        data += content
    words = json.dumps(header).encode()
    path.write_bytes(len(words).to_bytes(8, "little") + words + data)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 3}')
    write(
        tmp_path / "model.safetensors",
        {
            "f32": ("F32", (2, 3), VALUES.tobytes()),
            "f16": ("F16", (2,), np.array([1, 2], np.float16).tobytes()),
            "bf16": ("BF16", (2, 3), BF16.tobytes()),
            "i64": ("I64", (), np.int64(7).tobytes()),
            "f8": ("F8_E4M3", (3,), bytes(3)),
        },
    )
    return tmp_path


def test_arrays_come_back_in_float32(folder: Path) -> None:
    found = SafetensorsFolder.open(folder)
    assert (found.architecture, found.value("hidden_size"), found.value("x", 4)) == ("qwen3", 3, 4)
    assert np.array_equal(found.array("f32"), VALUES)
    assert found.array("f16").tolist() == [1, 2]
    assert found.array("i64") == 7
    assert found.tensors["bf16"].shape == (2, 3)
    # bfloat16 keeps 8 bits of each number's fraction
    assert np.allclose(found.array("bf16"), VALUES, rtol=2**-7)
    assert found.array("bf16")[1, 0] == np.float32(0.15625)
    assert {found.array(name).dtype for name in ("f32", "f16", "bf16", "i64")} == {np.dtype(np.float32)}
    with pytest.raises(UnsupportedModel, match="`f8` in .* has the unsupported tensor type F8_E4M3"):
        found.array("f8")


def test_shards_are_read_by_the_index(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    write(folder / "model-1.safetensors", {"a": ("F32", (6,), VALUES.tobytes())})
    write(folder / "model-2.safetensors", {"b": ("F16", (1,), np.float16(2).tobytes())})
    write(folder / "other.safetensors", {"c": ("F16", (1,), bytes(2))})
    index = folder / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    found = SafetensorsFolder.open(folder)
    assert sorted(found.tensors) == ["a", "b"]
    assert found.array("b") == [2]
    (folder / "model-2.safetensors").unlink()
    with pytest.raises(BrokenModel, match=r"lacks `model-2\.safetensors`, which its index names"):
        SafetensorsFolder.open(folder)
    index.write_text('{"weight_map": {"a": "../model-1.safetensors"}}')
    with pytest.raises(BrokenModel, match="lacks"):
        SafetensorsFolder.open(folder)


def test_a_file_cut_anywhere_is_broken(folder: Path) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(BrokenModel, match="is truncated") as caught:
            SafetensorsFolder.open(folder)
        assert f"the file has {length:,}" in caught.value.message


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), min_size=1, max_size=6))
def test_a_damaged_file_raises_nothing_else(folder: Path, damage: list[tuple[int, int]]) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    data = bytearray(whole)
    for at, byte in damage:
        data[at % len(data)] = byte
    path.write_bytes(data)
    try:
        found = SafetensorsFolder.open(folder)
        for name in found.tensors:
            found.array(name)
    except (BrokenModel, UnsupportedModel):
        pass
    finally:
        path.unlink()  # a mapped file must not be written over
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}, "`t` has 4 bytes, expected 8"),
        (
            {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]},
            "`t` has no type, shape or offsets of numbers",
        ),
        (
            {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
            "`t` has no type, shape or offsets of numbers",
        ),
        ({"dtype": "F32", "shape": [1]}, "`t` has no type, shape or offsets"),
        ([], "`t` has no type, shape or offsets"),
    ],
)
def test_headers_that_contradict_themselves(folder: Path, entry: Any, message: str) -> None:
    write(folder / "model.safetensors", {}, t=entry)
    with pytest.raises(BrokenModel, match=message):
        SafetensorsFolder.open(folder)


def test_folders_that_are_no_models(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(BrokenModel, match=r"lacks `config\.json`"):
        SafetensorsFolder.open(tmp_path_factory.mktemp("empty"))
    (folder / "config.json").write_text("[1]")
    with pytest.raises(BrokenModel, match="holds no JSON object"):
        SafetensorsFolder.open(folder)
    (folder / "config.json").write_text("{}")
    with pytest.raises(UnsupportedModel, match="`model_type`"):
        _ = SafetensorsFolder.open(folder).architecture
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnknownModel, match=r"no \.safetensors files"):
        SafetensorsFolder.open(folder)
