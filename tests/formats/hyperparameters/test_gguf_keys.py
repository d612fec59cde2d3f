"""Every key of a GGUF file's metadata: its logits are those of llama.cpp, or it is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import TOKENS, saved, written

from localspec.engines.llamacpp import LlamaCpp
from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.architecture import FROM_GGUF, of_gguf
from localspec.formats.graph.ir import import_weights
from localspec.formats.hyperparameters import gguf_keys
from localspec.library import Silent

pytestmark = pytest.mark.engines

FAMILIES = tuple(family for family in FROM_GGUF if family != "mistral")  # which llama.cpp calls `llama`
OTHER: dict[tuple[str, ...], tuple[Any, ...]] = {  # keys -> values that change the logits of some family
    gguf_keys.NO: (1, 4, True, [0, 1], 0.5, "x"),
    gguf_keys.ONE: (0.5, 2.0, [1.0, 2.0]),
    ("attention.causal",): (False,),
    ("attention.scale",): (0.5,),
    ("attention.value_length", "rope.dimension_count", "attention.key_length_swa"): (16, 64),
    ("attention.value_length_swa", "rope.dimension_count_swa"): (16,),
    ("classifier.output_labels",): (["a", "b"],),
    ("embedding_length_out",): (64,),
    ("hidden_activation",): ("gelu",),
    ("rope.scaling.yarn_attn_factor", "rope.scaling.yarn_beta_fast"): (2.0,),
    ("rope.scaling.yarn_beta_slow", "rope.scaling.yarn_ext_factor"): (0.5,),
    ("tensor_data_layout",): ("something else",),
    ("rope.scaling.type",): ("longrope", "dynamic", "x"),
    ("attention.sliding_window",): (16,),
    ("attention.head_count",): ([4, 4, 4, 2], [4, 4]),
    ("attention.head_count_kv",): ([2, 2, 2, 1],),
    ("feed_forward_length",): ([256, 256, 256, 128],),
}
NO_OPS: dict[tuple[str, ...], tuple[Any, ...]] = {
    gguf_keys.NO: (0, False, 0.0, [0, 0]),
    gguf_keys.ONE: (0, 1.0),
    ("attention.causal",): (True,),
    ("attention.scale",): (0.0, 32**-0.5),
    ("attention.value_length", "rope.dimension_count", "attention.key_length_swa"): (32,),
    ("attention.key_length", "attention.value_length_swa", "rope.dimension_count_swa"): (32,),
    ("embedding_length_out",): (128, 0),
    ("hidden_activation",): ("silu",),
    ("rope.scaling.yarn_attn_factor",): (1.0,),
    ("rope.scaling.yarn_beta_fast",): (32.0,),
    ("rope.scaling.yarn_ext_factor",): (-1.0, 1.0),
    ("tensor_data_layout",): ("reference",),
    ("rope.scaling.type",): ("none", "linear"),
    ("rope.scaling.factor", "rope.scale_linear"): (0.0, 1.0),
    ("attention.sliding_window",): (0, 512),
    ("attention.head_count",): ([4, 4, 4, 4],),
    ("attention.head_count_kv",): ([2, 2, 2, 2],),
    ("feed_forward_length",): ([256] * 4,),
    ("attention.layer_norm_epsilon",): (0.5,),
    ("expert_weights_scale", "expert_feed_forward_length", "leading_dense_block_count"): (2,),
    ("some_key_of_a_tool",): ("x", 7, [1]),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], GgufFile]:
    """Return the file of a random model of a family."""

    @cache
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        return written(saved(family, folder, head_dim=32), family, folder / "model.gguf")

    return lambda family: GgufFile.open(make(family))


def with_values(opened: GgufFile, **values: Any) -> GgufFile:
    """Return a file as if it had other values."""
    own = f"{opened.architecture}."
    for key, value in values.items():
        opened.metadata[key if key.startswith("general.") else own + key] = value
    return opened


def facts(opened: GgufFile) -> dict[str, Any]:
    found = asdict(of_gguf(opened))
    return found | {"frequencies": found["frequencies"].tolist()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_is_not_computed_is_refused_by_name(
    family: str, file: Callable[[str], GgufFile]
) -> None:
    for keys, values in OTHER.items():
        for key in keys:
            for value in () if key in gguf_keys.OWN.get(family, ()) else values:
                said = "sliding window of 16" if "sliding" in key else f"{key}` of "
                with pytest.raises(UnsupportedModel, match=said) as caught:
                    of_gguf(with_values(file(family), **{key: value}))
                assert caught.value.hint is None or "Download" not in caught.value.hint


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_changes_nothing_passes(family: str, file: Callable[[str], GgufFile]) -> None:
    expected = facts(file(family))
    for keys, values in NO_OPS.items():
        for key in keys:
            for value in () if key in gguf_keys.OWN.get(family, ()) else values:
                assert facts(with_values(file(family), **{key: value})) == expected, (key, value)


@pytest.mark.parametrize("kind", ["adapter", "mmproj", "imatrix", 7])
def test_a_file_that_is_no_model_is_refused(kind: Any, file: Callable[[str], GgufFile]) -> None:
    with pytest.raises(UnsupportedModel, match=r"`general\.type` of "):
        of_gguf(with_values(file("llama"), **{"general.type": kind}))


def test_a_layout_of_rows_is_that_of_the_family(file: Callable[[str], GgufFile]) -> None:
    original = {"tensor_data_layout": gguf_keys.ORIGINAL}
    assert facts(with_values(file("llama"), **original)) == facts(file("llama"))
    with pytest.raises(UnsupportedModel, match="tensor_data_layout"):
        of_gguf(with_values(file("qwen2"), **original))


def test_norms_of_another_kind_are_refused(file: Callable[[str], GgufFile]) -> None:
    values = {"attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-5}
    with pytest.raises(UnsupportedModel, match="layer_norm_epsilon"):
        of_gguf(with_values(file("llama"), **values))
    with pytest.raises(BrokenModel, match="layer_norm_rms_epsilon"):
        of_gguf(with_values(file("llama"), **{"attention.layer_norm_rms_epsilon": None}))


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 128}
SCALES = {"embedding_scale": 3.0, "residual_scale": 0.5, "attention.scale": 0.1, "logit_scale": 4.0}
COMPUTED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # family, of the model, of the file
    **{f"a factor without a kind: {name}": (name, {}, {"rope.scaling.factor": 4.0}) for name in FAMILIES},
    **{f"an old factor: {name}": (name, {}, {"rope.scale_linear": 3.0}) for name in FAMILIES},
    **{f"yarn: {name}": (name, {}, YARN) for name in FAMILIES},
    "both factors": ("llama", {}, {"rope.scaling.factor": 4.0, "rope.scale_linear": 3.0}),
    "a factor of no kind": ("llama", {}, {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}),
    "yarn without a factor": ("qwen2", {}, {"rope.scaling.type": "yarn"}),
    "yarn without its context": ("qwen2", {}, {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}),
    "a factor of positions": ("llama", {}, {"rope.scaling.attn_factor": 1.3}),
    "yarn and a factor": ("qwen2", {}, YARN | {"rope.scaling.attn_factor": 1.3}),
    "another base": ("llama", {}, {"rope.freq_base": 500.0}),
    "no base": ("llama", {}, {"rope.freq_base": None}),
    "heads by layer": ("llama", {}, {"attention.head_count": [4] * 4, "attention.head_count_kv": [2] * 4}),
    "inner widths by layer": ("llama", {}, {"feed_forward_length": [256] * 4}),
    "a window that nothing uses": ("llama", {}, {"attention.sliding_window": 512}),
    "wide heads": ("llama", {"head_dim": 64}, {}),
    "its own heads": ("qwen3", {"head_dim": 64}, {}),
    "as many keys as heads": ("llama", {"num_key_value_heads": 4}, {"attention.head_count_kv": None}),
    "a tied head": ("llama", {"tie_word_embeddings": True}, {}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
    "biases of SmolLM3": ("smollm3", {"attention_bias": True}, {}),
    "biases of Qwen3": ("qwen3", {"attention_bias": True, "head_dim": 32}, {}),
    "biases of Granite": ("granite", {"attention_bias": True, "mlp_bias": True}, SCALES),
    "scales": ("granite", {}, SCALES),
    **{f"no {key}": ("granite", {}, SCALES | {key: 0.0}) for key in list(SCALES)[:3]},
    **{f"without {key}": ("granite", {}, SCALES | {key: None}) for key in list(SCALES)[:3]},
    "no positions": ("granite", {}, SCALES | {"rope.scaling.finetuned": False}),
    "positions": ("granite", {}, SCALES | {"rope.scaling.finetuned": True}),
    "narrow rows": ("llama", {"hidden_size": 72, "intermediate_size": 100, "head_dim": 18}, {}),
}


@pytest.mark.parametrize("name", COMPUTED)
def test_every_logit_is_that_of_llama_cpp(name: str, tmp_path: Path) -> None:
    family, options, values = COMPUTED[name]
    unread = {f"blk.{layer}.attn_output.bias": None for layer in range(4)} if " of " in name else {}
    path = written(
        saved(family, tmp_path / "folder", **options),
        family,
        tmp_path / "model.gguf",
        values,
        unread if family in ("qwen3", "smollm3") else {},
    )
    into = tmp_path / "graph"
    into.mkdir()
    import_weights(GgufFile.open(path), into, Silent(), plain=True)
    found = OpenVino(into, precision="f32", kv="f32", group=0).session().forward(TOKENS, len(TOKENS))
    theirs = LlamaCpp(path, kv="f32", flash="off", threads=2).session().forward(TOKENS, len(TOKENS))
    assert np.abs(found - theirs).max() < 2e-2 * np.abs(theirs).max()
    assert theirs.std() > 0.05


EXTRA = np.ones((128, 128), np.float32)


@pytest.mark.parametrize(
    "name",
    [
        *("blk.4.ffn_up.weight", "blk.0.attn_q.scale", "blk.0.ffn_gate_inp.weight", "blk.0.attn_qkv.weight"),
        *(
            "output.bias",
            "cls.weight",
            "v.patch_embd.weight",
            "blk.0.attn_q.weight.lora_a",
            "token_embd_norm.weight",
        ),
        *(
            "rope_factors_long.weight",
            "blk.0.attn_q_norm.weight",
            "blk.0.attn_norm.bias",
            "blk.0.post_ffw_norm.weight",
        ),
    ],
)
def test_a_tensor_that_would_be_ignored_is_refused(name: str, tmp_path: Path) -> None:
    model = saved("llama", tmp_path / "folder")
    path = written(model, "llama", tmp_path / "model.gguf", tensors={name: EXTRA})
    with pytest.raises(UnsupportedModel, match=f"tensor `{name}`"):
        of_gguf(GgufFile.open(path))


@pytest.mark.parametrize(("family", "name"), [("qwen2", "rope_freqs.weight"), ("olmo2", "blk.0.attn_q.bias")])
def test_a_tensor_of_another_family_is_refused(family: str, name: str, tmp_path: Path) -> None:
    model = saved(family, tmp_path / "folder")
    path = written(model, family, tmp_path / "model.gguf", tensors={name: EXTRA[0]})
    with pytest.raises(UnsupportedModel, match=f"tensor `{name}`"):
        of_gguf(GgufFile.open(path))


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("qwen2", "blk.0.attn_q.bias"),
        ("qwen3", "blk.3.attn_k_norm.weight"),
        ("olmo2", "blk.0.post_ffw_norm.weight"),
    ],
)
def test_a_tensor_that_a_family_needs_is_missed(family: str, name: str, tmp_path: Path) -> None:
    path = written(saved(family, tmp_path / "folder"), family, tmp_path / "m.gguf", tensors={name: None})
    with pytest.raises(BrokenModel, match=f"no tensor `{name}`"):
        of_gguf(GgufFile.open(path))
