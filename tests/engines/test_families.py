"""Families that become graphs, against transformers and llama.cpp: every logit of a tiny random model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import TOKENS, saved, written
from said import Said

from localspec.engines.llamacpp import LlamaCpp
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.ir import import_weights
from localspec.formats.huggingface import loading
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.library import Silent

pytestmark = pytest.mark.engines

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LONG = {
    "type": "longrope",
    "short_factor": [1.0 + 0.1 * at for at in range(12)],
    "long_factor": [4.0] * 12,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.1,
            "logits_scaling": 4.0,
        },
    ),
    "olmo2": ("olmo2", {}),
    "phi3": ("phi3", {"sliding_window": None}),
    "phi3, long texts": (
        "phi3",
        {
            "sliding_window": None,
            "partial_rotary_factor": 0.75,
            "rope_scaling": LONG,
            "original_max_position_embeddings": 64,
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "qwen2, yarn": ("qwen2", {"rope_scaling": YARN}),
    "llama, linear": ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_logit_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    import torch

    family, options = FAMILIES[name]
    model = saved(family, tmp_path / "folder", **options)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    into = tmp_path / "graph"
    into.mkdir()
    import_weights(SafetensorsFolder.open(tmp_path / "folder"), into, Silent(), plain=True)
    session = OpenVino(into, precision="f32", kv="f32", group=0).session()
    found = np.concatenate(
        [session.forward(TOKENS[at:end], end - at).copy() for at, end in ((0, 11), (11, 12), (12, 40))]
    )
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert expected.std() > 0.1


@pytest.mark.parametrize("name", ["granite", "olmo2", "smollm3", "qwen2, yarn", "llama, linear"])
def test_a_gguf_gives_the_logits_of_transformers_and_of_llama_cpp(name: str, tmp_path: Path) -> None:
    import torch

    family, options = FAMILIES[name]
    if family == "smollm3":
        options = {}  # llama.cpp knows no other layers without positions than every fourth
    model = saved(family, tmp_path / "folder", **options)
    path = written(model, family, tmp_path / "model.gguf")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    into = tmp_path / "graph"
    into.mkdir()
    import_weights(GgufFile.open(path), into, Silent(), plain=True)
    found = OpenVino(into, precision="f32", kv="f32", group=0).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    theirs = LlamaCpp(path, kv="f32", flash="off", threads=2).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - theirs).max() < 2e-2 * np.abs(expected).max()


def test_torch_refuses_a_gguf_whose_scales_it_would_not_read(tmp_path: Path) -> None:
    import torch

    path = written(saved("granite", tmp_path / "folder"), "granite", tmp_path / "model.gguf")
    with pytest.raises(UnsupportedModel, match="`granite` model, which torch cannot read as GGUF"):
        loading.load(path, torch.device("cpu"), torch.float32)


def test_granites_own_defaults_are_not_those_of_others(tmp_path: Path) -> None:
    saved("granite", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["attention_multiplier"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert architecture.of_folder(SafetensorsFolder.open(tmp_path)).attention_scale == 1.0


def test_longrope_is_kept_to_its_original_context(tmp_path: Path) -> None:
    """In the graph, in the config beside it, on the engine, and in words."""
    folder, into, said = tmp_path / "folder", tmp_path / "graph", Said()
    saved("phi3", folder, **FAMILIES["phi3, long texts"][1])
    assert architecture.of_folder(SafetensorsFolder.open(folder)).context == 64
    into.mkdir()
    shutil.copyfile(folder / "config.json", into / "config.json")
    assert import_weights(SafetensorsFolder.open(folder), into, said, plain=True)["context"] == 64
    assert OpenVino(into).context == 64
    assert json.loads((into / "config.json").read_text())["rope_scaling"] == LONG
    (line,) = said.lines
    assert "texts of up to 64 tokens, not 512" in line


@pytest.mark.parametrize(
    ("family", "changed", "error", "said"),
    [
        ("phi3", {"sliding_window": 64}, UnsupportedModel, "sliding window of 64"),
        ("granite", {"model_type": "granitemoe"}, UnsupportedModel, "`granitemoe` model"),
        ("llama", {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, UnsupportedModel, "`dynamic`"),
        ("llama", {"rope_scaling": {"rope_type": "yarn"}}, UnsupportedModel, "has no `factor`"),
    ],
)
def test_what_cannot_be_imported_is_refused_with_a_reason(
    family: str, changed: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    saved(family, tmp_path, **({"sliding_window": None} if family == "phi3" else {}))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(error, match=said):
        architecture.of_folder(SafetensorsFolder.open(tmp_path))
