"""The decoder of our own: every family that becomes a graph, against transformers, logit by logit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from passes import read
from random_models import TOKENS, saved, written

from localspec.engines.torch.engine import Torch
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.graph.architecture import FROM_FOLDERS

pytestmark = pytest.mark.engines

SCALES = {"embedding_multiplier": 3.0, "residual_multiplier": 0.5}
STRETCHED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
BIASED = {"attention_bias": True, "mlp_bias": True}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0} | STRETCHED} | BIASED),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, yarn": ("qwen2", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
    "qwen3": ("qwen3", {"head_dim": 64}),
    "granite": ("granite", SCALES | {"attention_multiplier": 0.1, "logits_scaling": 4.0}),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 2}),
    "phi3": ("phi3", {"sliding_window": None, "partial_rotary_factor": 0.5}),
}


def test_every_family_is_here() -> None:
    assert {family for family, _ in FAMILIES.values()} == set(FROM_FOLDERS)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_logit_is_that_of_transformers(name: str, tmp_path: Path) -> None:
    family, options = FAMILIES[name]
    model = saved(family, tmp_path, **options)
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    engine = Torch(tmp_path, device="cpu", decoder="own")
    assert engine.vocab == expected.shape[1]
    near = 1e-4 * expected.std()
    assert expected.std() > 0.1
    for widths in ((40,), (1, 2, 3, 5, 7, 9, 13), (17, 1, 22), (20, 20)):
        found = read(engine.session(), TOKENS, *widths)
        assert np.abs(found - expected).max() < near, widths
    theirs = Torch(tmp_path, device="cpu")  # its modules go on with the joined weights
    assert theirs.model is engine.model
    assert np.abs(read(theirs.session(), TOKENS, 40) - expected).max() < near


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_same(family: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path / "folder")
    path = written(model, family, tmp_path / "a.gguf")
    with torch.no_grad():
        expected = model(torch.tensor([TOKENS])).logits[0].numpy()
    found = read(Torch(path, device="cpu", decoder="own").session(), TOKENS, 20, 1, 3)
    assert np.abs(found - expected).max() < 2e-3 * expected.std()  # its weights are float16


def test_weights_are_in_memory_once(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    first, second = (Torch(tmp_path, device="cpu", decoder="own") for _ in range(2))
    assert first.own is not None
    assert second.own is not None
    assert second.own.decoder.weights is first.own.decoder.weights
    layer, module = first.own.decoder.weights.layers[1], first.model.model.layers[1]
    joined: Any = layer.qkv
    parts = [getattr(module.self_attn, f"{part}_proj").weight for part in "qkv"]
    assert parts[0].data_ptr() == joined.values.data_ptr()
    assert torch.equal(torch.cat(parts), joined.values)
    assert parts[2].untyped_storage().data_ptr() == joined.values.untyped_storage().data_ptr()


def test_what_it_does_not_know_stays_with_transformers(tmp_path: Path) -> None:
    saved("gpt2", tmp_path / "gpt2")
    saved("mistral", tmp_path / "window", sliding_window=8)
    saved("llama", tmp_path / "llama")
    for name in ("gpt2", "window"):
        assert Torch(tmp_path / name, device="cpu").own is None
        with pytest.raises(UnsupportedModel):
            Torch(tmp_path / name, device="cpu", decoder="own")
    assert Torch(tmp_path / "llama", device="cpu").own is None  # no faster on a CPU
    with pytest.raises(BadValue, match="exclude each other"):
        Torch(tmp_path / "llama", device="cpu", decoder="own", skip=True)


def test_what_a_card_pays_for_other_modules_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.engines.torch.engine.has_nvidia_driver", lambda: True)
    assert "run transformers' modules" in str(Torch.warning(device="cuda:0", hints="folder"))
    assert Torch.warning(device="auto", skip=True) is not None
    assert Torch.warning(device="cpu", skip=True) is None
    assert Torch.warning(device="cuda", taps="2-4") is None
    monkeypatch.setattr("localspec.engines.torch.engine.has_nvidia_driver", lambda: False)
    assert Torch.warning(device="auto", pairs="folder") is None
