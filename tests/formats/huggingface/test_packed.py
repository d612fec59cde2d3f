"""Matrices that GPTQ and AWQ packed: read as their own programs read them, in any damage refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from numpy.typing import NDArray

from localspec.decoder.compressed import EightBits, FourBits
from localspec.engines.torch.engine import Torch
from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.quants import Affine
from localspec.formats.huggingface.packed import PackedFolder, folder_of

GROUP = 64
SETTINGS: dict[str, dict[str, Any]] = {
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False},
    "gptq_v2": {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "checkpoint_format": "gptq_v2"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "GEMM"},
    "rows": {"quant_method": "gptq", "bits": 4, "group_size": -1},
}
TEXT = [int(token) for token in np.random.default_rng(0).integers(0, tiny.VOCAB, 50)]


def words(codes: NDArray[Any], order: list[int]) -> NDArray[np.int32]:
    """Pack codes [rows, columns] to int32 words [rows, columns / 8], the first of `order` lowest."""
    found = np.zeros((codes.shape[0], codes.shape[1] // 8), np.uint32)
    for place, column in enumerate(order):
        found |= codes[:, column::8].astype(np.uint32) << np.uint32(4 * place)
    return found.view(np.int32)


def packed(name: str, kind: str, numbers: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return the tensors of a random packed matrix, and the values [rows, columns] they stand for."""
    rows, columns = shape
    group = columns if kind == "rows" else GROUP
    codes = numbers.integers(0, 16, (columns, rows))
    zeros = numbers.integers(1, 15, (columns // group, rows))
    scales = numbers.uniform(0.5, 1.5, zeros.shape).astype(np.float16) * np.float16(tiny.SPREAD / 4.6)
    at = np.arange(columns) // group
    values = (codes - zeros[at]) * scales[at].astype(np.float64)
    if kind == "awq":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        parts = {"qweight": words(codes, order), "qzeros": words(zeros, order)}
    else:
        less = zeros if kind == "gptq_v2" else zeros - 1
        plain = list(range(8))
        parts = {
            "qweight": words(codes.T, plain).T,
            "qzeros": words(less, plain),
            "g_idx": at.astype(np.int32),
        }
    parts["scales"] = scales
    return {f"{name}.{part}": np.ascontiguousarray(found) for part, found in parts.items()}, values.T


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what writes a folder with packed matrices, and what model it stands for."""
    monkeypatch.setitem(tiny.STORED, "int32", "I32")

    def write(kind: str, family: str = "qwen2", **changed: Any) -> tuple[Path, tiny.Tiny]:
        model, numbers = tiny.make(family), np.random.default_rng(0)
        tiny.write_folder(
            model, tmp_path, quantization_config=SETTINGS[kind] | changed, vocab_size=tiny.VOCAB
        )
        tensors: dict[str, Any] = {}
        for name, values in model.values.items():
            theirs = tiny.theirs(name)
            if name.startswith("blk") and values.ndim == 2:
                parts, model.values[name] = packed(
                    theirs.removesuffix(".weight"), kind, numbers, values.shape
                )
                tensors |= parts
            else:
                tensors[theirs] = values.astype(np.float16 if values.ndim > 1 else np.float32)
                model.values[name] = tensors[theirs].astype(np.float64)
        tiny.write_safetensors(tmp_path / "model.safetensors", tensors)
        return tmp_path, model

    return write


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_packed_matrix_has_its_values(written: Any, kind: str) -> None:
    folder, model = written(kind)
    found = folder_of(folder)
    assert isinstance(found, PackedFolder)
    assert len(found.packed) == 7 * tiny.LAYERS
    assert not [name for name in found.tensors if name.endswith(("qweight", "qzeros", "scales", "g_idx"))]
    for name, values in model.values.items():
        assert np.abs(found.array(tiny.theirs(name)) - values).max() < 1e-6, name
    matrix = found.affine("model.layers.0.mlp.down_proj.weight")
    assert isinstance(matrix, Affine)
    assert matrix.codes.shape[-1] == (tiny.INNER if kind == "rows" else GROUP)
    assert found.affine("model.embed_tokens.weight") is None


@pytest.mark.engines
@pytest.mark.parametrize("kind", SETTINGS)
def test_the_torch_engine_computes_with_them(written: Any, kind: str) -> None:
    folder, model = written(kind)
    expected = tiny.logits(model, TEXT)
    for form in ("int4", "int8"):
        engine = Torch(folder, device="cpu", weights=form)
        assert engine.own is not None
        layer = engine.own.decoder.weights.layers[1]
        assert isinstance(layer.down, FourBits if form == "int4" and kind != "rows" else EightBits)
        found = engine.session().forward(TEXT, 50)
        assert np.abs(found - expected).mean() < 0.03 * expected.std()  # the table has 8 bits, as `rows` do
    eight, four = (Torch.weighs(folder, weights=form) for form in ("int8", "int4"))
    assert four < 0.7 * eight


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"quant_method": "aqlm"}, "`aqlm` in 4 bits"),
        ({"bits": 8}, "in 8 bits"),
        ({"checkpoint_format": "marlin"}, "`marlin`, not `gptq`"),
    ],
)
def test_another_packing_is_refused(written: Any, changed: dict[str, Any], said: str) -> None:
    folder, _ = written("gptq", **changed)
    with pytest.raises(UnsupportedModel, match=said):
        folder_of(folder)


def test_columns_in_another_order_and_damage_are_refused(written: Any) -> None:
    folder, _ = written("gptq", group_size=32)
    with pytest.raises(BrokenModel, match="do not fit each other"):
        folder_of(folder)
    folder, _ = written("gptq")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": "gptq"}))
    with pytest.raises(UnsupportedModel, match="is no object"):
        folder_of(folder)
    (folder / "config.json").write_text(json.dumps(config))
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    order = (np.arange(tiny.WIDTH) // GROUP).astype(np.int32).tobytes()
    at = data.index(order)
    data[at : at + 4] = (3).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UnsupportedModel, match="another order"):
        folder_of(folder)
