"""Every key of a config.json: its logits are those of transformers, or it is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from random_models import SIZES, TOKENS, saved

from localspec.engines.openvino.engine import OpenVino
from localspec.errors import BrokenModel, ModelError, UnsupportedModel
from localspec.formats.graph.architecture import of_folder
from localspec.formats.graph.ir import import_weights
from localspec.formats.graph.rope import rope_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters import config_keys
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.library import Silent

pytestmark = pytest.mark.engines

FAMILIES = tuple(DEFAULTS)
OTHER: dict[tuple[str, ...], tuple[Any, ...]] = {  # keys -> values that change the logits of some family
    config_keys.NOTHING: (1, 0.5, 30.0, True, {"a": 1}, [1], "x"),
    config_keys.NO: (True, 1, 4, "yes"),
    config_keys.YES: (False, 0),
    config_keys.ONE: (0.5, 2.0, 12, "x"),
    config_keys.ACTIVATIONS: ("gelu", "relu", "gelu_pytorch_tanh", "silu2", 1),
    config_keys.NORMS: ("layer_norm", "layernorm"),
    ("position_embedding_type",): ("absolute", "nope", "alibi"),
    ("attention_multiplier", "softmax_scale"): (0.5, 1.0),
    ("query_pre_attn_scalar", "rotary_dim", "v_head_dim"): (16, 256),
    ("embedding_size", "word_embed_proj_dim"): (64,),
    ("no_rope_layers",): ([1, 0, 1, 1], "x", [[]]),
    ("no_rope_layer_interval",): (2,),
}
NO_OPS: dict[tuple[str, ...], tuple[Any, ...]] = {
    config_keys.NOTHING: (),
    config_keys.NO: (False, 0),
    config_keys.YES: (True, 1),
    config_keys.ONE: (1, 1.0),
    config_keys.ACTIVATIONS: ("silu", "swish"),
    config_keys.NORMS: ("rms_norm", "rmsnorm"),
    ("position_embedding_type",): ("rope",),
    ("attention_multiplier", "softmax_scale"): (32**-0.5,),
    ("query_pre_attn_scalar", "rotary_dim", "v_head_dim"): (32, 32.0),
    ("embedding_size", "word_embed_proj_dim"): (128,),
    ("no_rope_layers",): ([1, 1, 1, 1],),
    ("no_rope_layer_interval",): (0,),
}
HARMLESS = {
    "torch_dtype": {"": "float16"},
    "dtype": "bfloat16",
    "transformers_version": "9.0",
    "_name_or_path": 7,
    "use_cache": "no",
    "pretraining_tp": 8,
    "attention_dropout": 0.5,
    "resid_pdrop": 0.1,
    "initializer_range": 5,
    "eos_token_id": [1, 2],
    "bos_token_id": None,
    "auto_map": {"AutoConfig": "own.Own"},
    "unsloth_version": "2025",
    "some_key_of_a_trainer": {"a": [1]},
    "max_window_layers": 2,
    "rope_scaling": {},
    "architectures": None,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the folder of a random model of a family, without a sliding window."""

    @cache
    def make(family: str) -> Path:
        path = tmp_path_factory.mktemp(family)
        saved(family, path, sliding_window=None, head_dim=32)
        return path

    return make


def with_config(path: Path, **changed: Any) -> SafetensorsFolder:
    """Open a folder as if its config.json had other values; `...` stands for no value."""
    opened = SafetensorsFolder.open(path)
    opened.config |= changed
    for key in [key for key, value in changed.items() if value is ...]:
        del opened.config[key]
    return opened


def facts(opened: SafetensorsFolder) -> dict[str, Any]:
    found = asdict(of_folder(opened))
    return found | {"frequencies": found["frequencies"].tolist()}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_is_not_computed_is_refused_by_name(family: str, folder: Callable[[str], Path]) -> None:
    for keys, values in OTHER.items():
        for key in keys:
            if key in config_keys.OWN.get(family, ()):
                continue
            for value in values:
                with pytest.raises(UnsupportedModel, match=rf"`{key}` of .*config\.json") as caught:
                    of_folder(with_config(folder(family), **{key: value}))
                assert caught.value.hint is None or "Download" not in caught.value.hint


@pytest.mark.parametrize("family", FAMILIES)
def test_a_value_that_changes_nothing_passes(family: str, folder: Callable[[str], Path]) -> None:
    expected = facts(with_config(folder(family)))
    for keys, values in NO_OPS.items():
        for key in keys:
            own = key in config_keys.OWN.get(family, ())
            for value in () if own else (None, *values):
                if (key, value) != ("hidden_act", None):
                    assert facts(with_config(folder(family), **{key: value})) == expected, (key, value)
    for key, value in HARMLESS.items():
        assert facts(with_config(folder(family), **{key: value})) == expected, key


def theirs(path: Path, **changed: Any) -> Any:
    """Return the logits of transformers for a folder whose config.json has these values."""
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text("utf-8")) | changed
    config = {key: value for key, value in config.items() if value is not ...}
    (path / "config.json").write_text(json.dumps(config), "utf-8")
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].numpy()


def ours(path: Path, into: Path) -> Any:
    into.mkdir()
    import_weights(SafetensorsFolder.open(path), into, Silent(), plain=True)
    return OpenVino(into, precision="f32", kv="f32", group=0).session().forward(TOKENS, len(TOKENS))


def check_equal(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() < 2e-3 * np.abs(expected).max()
    assert expected.std() > 0.05


LONG = {"type": "longrope", "short_factor": [1.0 + at / 8 for at in range(16)], "long_factor": [4.0] * 16}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SAVED: dict[str, tuple[str, dict[str, Any]]] = {  # what the model has from the start
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "granite, biases": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "smollm3, biases": ("smollm3", {"attention_bias": True, "mlp_bias": True}),
    "qwen3, biases": ("qwen3", {"attention_bias": True, "head_dim": 32}),
    "olmo2, biases": ("olmo2", {"attention_bias": True}),
    "llama, wide heads": ("llama", {"head_dim": 64}),
    "mistral, narrow heads": ("mistral", {"head_dim": 16, "sliding_window": None}),
    "qwen3, its own heads": ("qwen3", {}),
    "llama, as many keys as heads": ("llama", {"num_key_value_heads": 4}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "smollm3, tied": ("smollm3", {"tie_word_embeddings": True}),
    "smollm3, listed layers": ("smollm3", {"no_rope_layers": [0, 1, 1, 0]}),
    "olmo2, linear": ("olmo2", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
    "llama, llama3": ("llama", {"rope_scaling": LLAMA3}),
    "llama, yarn": ("llama", {"rope_scaling": YARN | {"beta_fast": 8, "beta_slow": 2.0, "truncate": False}}),
    "llama, yarn and a factor": ("llama", {"rope_scaling": YARN | {"attention_factor": 1.5}}),
    "llama, yarn of DeepSeek": ("llama", {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 1.2}}),
    "llama, longrope": ("llama", {"rope_scaling": LONG | {"factor": 4.0}}),
    "mistral, a wide window": ("mistral", {"sliding_window": 512}),
    "qwen2, a window of no layer": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 4},
    ),
    "qwen2, full layers": ("qwen2", {"layer_types": ["full_attention"] * 4}),
    "phi3, su": (
        "phi3",
        {"rope_scaling": LONG | {"type": "su"}, "original_max_position_embeddings": 64},
    ),
    "phi3, long by default": ("phi3", {"rope_scaling": LONG}),
    "width 72": ("llama", {"hidden_size": 72, "intermediate_size": 100, "head_dim": 18}),
    "width 40": ("qwen2", {"hidden_size": 40, "intermediate_size": 33}),
}


@pytest.mark.parametrize("name", SAVED)
def test_what_a_model_was_made_with_is_computed(name: str, tmp_path: Path) -> None:
    family, options = SAVED[name]
    saved(family, tmp_path / "folder", **options)
    check_equal(ours(tmp_path / "folder", tmp_path / "graph"), theirs(tmp_path / "folder"))


@pytest.mark.parametrize(("width", "inner", "error"), [(72, 100, 0.01), (40, 33, 0.01), (288, 800, 0.1)])
def test_rows_that_groups_of_columns_do_not_divide(
    width: int, inner: int, error: float, tmp_path: Path
) -> None:
    """In eight bits, as an import makes them, with the engine's own options."""
    saved("llama", tmp_path / "folder", hidden_size=width, intermediate_size=inner, head_dim=18)
    expected = theirs(tmp_path / "folder")
    (into := tmp_path / "graph").mkdir()
    import_weights(SafetensorsFolder.open(tmp_path / "folder"), into, Silent())
    found = OpenVino(into).session().forward(TOKENS, len(TOKENS))
    assert np.sqrt(((found - expected) ** 2).mean()) < error * expected.std()


ABSENT = (
    "rope_theta",
    "rms_norm_eps",
    "hidden_act",
    "attention_bias",
    "mlp_bias",
    "rope_scaling",
    "head_dim",
)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_absent_key_has_the_default_of_its_family(family: str, tmp_path: Path) -> None:
    head = {"head_dim": 128} if family == "qwen3" else {}
    saved(family, tmp_path / "folder", **head, sliding_window=None)
    keys = [*ABSENT, "max_position_embeddings", "torch_dtype", "dtype", "architectures", "vocab_size"]
    expected = theirs(tmp_path / "folder", **dict.fromkeys(keys[:-1], ...))
    theirs_too = json.loads((tmp_path / "folder/config.json").read_text("utf-8"))
    (tmp_path / "folder/config.json").write_text(json.dumps({**theirs_too, "vocab_size": 96}), "utf-8")
    check_equal(ours(tmp_path / "folder", tmp_path / "graph"), expected)
    import transformers

    made = transformers.AutoConfig.from_pretrained(tmp_path / "folder")
    assert of_folder(SafetensorsFolder.open(tmp_path / "folder")).context == made.max_position_embeddings


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_keys_have_the_default_of_their_family(family: str, tmp_path: Path) -> None:
    import transformers

    default = transformers.AutoConfig.for_model(family).num_key_value_heads
    heads = max(default if DEFAULTS[family].key_heads else 4, 4)
    saved(family, tmp_path / "folder", num_attention_heads=heads, num_key_value_heads=heads, head_dim=8)
    if DEFAULTS[family].key_heads:
        saved(family, tmp_path / "folder", num_attention_heads=heads, num_key_value_heads=default, head_dim=8)
    path = tmp_path / "folder"
    opened = with_config(path, num_key_value_heads=..., sliding_window=None)
    assert of_folder(opened).key_heads == (default if DEFAULTS[family].key_heads else heads)
    shutil.rmtree(path)
    saved(family, path, num_attention_heads=4, num_key_value_heads=4, head_dim=8)
    assert of_folder(with_config(path, num_key_value_heads=None, sliding_window=None)).key_heads == 4


def test_a_folder_of_transformers_5_is_read(tmp_path: Path) -> None:
    """It keeps the base of rotary positions in an object."""
    path = tmp_path / "folder"
    saved("llama", path, rope_theta=5000.0)
    expected = theirs(path)
    theirs_too = json.loads((path / "config.json").read_text("utf-8"))
    del theirs_too["rope_theta"]
    theirs_too["rope_parameters"] = {"rope_type": "default", "rope_theta": 5000.0}
    (path / "config.json").write_text(json.dumps(theirs_too), "utf-8")
    check_equal(ours(path, tmp_path / "graph"), expected)


SLIDING = {"use_sliding_window": True, "sliding_window": 64, "layer_types": None}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    *((family, {"sliding_window": 64}, "sliding_window") for family in ("mistral", "phi3")),
    ("mistral", {"sliding_window": ..., "max_position_embeddings": 8192}, "sliding window of 4096"),
    ("mistral", {"sliding_window": 64, "use_sliding_window": False}, "sliding_window"),
    ("mistral", {"sliding_window": 0}, "sliding_window"),
    *(
        (family, SLIDING | {"max_window_layers": 1}, "sliding_window")
        for family in ("qwen2", "qwen3", "smollm3")
    ),
    *(
        (family, {"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types")
        for family in FAMILIES
    ),
    *((family, {"layer_types": ["linear_attention"] * 4}, "layer_types") for family in FAMILIES),
    *((family, {"layer_types": ["full_attention"]}, "layer_types") for family in FAMILIES),
    *(
        (family, {"use_sliding_window": True}, "use_sliding_window")
        for family in ("llama", "granite", "olmo2")
    ),
    *((family, {"hidden_act": None}, "hidden_act") for family in FAMILIES),
    *((family, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "`dynamic`") for family in FAMILIES),
    *((family, {"rope_scaling": {"factor": 2.0}}, "`factor` and no `rope_type`") for family in FAMILIES),
    *((family, {"rope_scaling": {"rope_type": "linear"}}, "RoPE scaling|factor") for family in FAMILIES),
    (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
        "`linear` and `yarn`",
    ),
    ("llama", {"rope_scaling": {"type": "mrope", "mrope_section": [1, 2]}}, "`mrope`"),
    ("llama", {"rope_scaling": {"type": "su", "factor": 2.0}}, "`su`"),
    ("llama", {"rope_scaling": "linear"}, "`rope_scaling`"),
    ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "low_freq_factor|original_max"),
    ("llama", {"rope_scaling": LONG}, "`factor`"),
    ("llama", {"rope_scaling": {"rope_theta": 5.0, "rope_type": "default"}}, "`rope_theta`"),
    ("llama", {"rope_scaling": {"full_attention": {"rope_type": "default"}}}, "`full_attention`"),
    ("llama", {"rope_parameters": YARN, "rope_scaling": LLAMA3}, "`rope_parameters`"),
    (
        "llama",
        {"rope_scaling": {"type": "yarn", "factor": 2.0}, "original_max_position_embeddings": 99},
        "`original_max_position_embeddings`",
    ),
    ("phi3", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "`linear`"),
    ("phi3", {"rope_scaling": {"type": "yarn", "factor": 2.0}}, "short_factor"),
    ("phi3", {"mlp_bias": True}, "mlp_bias"),
    ("llama", {"rope_theta": "10000"}, "`rope_theta`"),
    ("llama", {"rms_norm_eps": "1e-6"}, "`rms_norm_eps`"),
    ("llama", {"num_key_value_heads": "2"}, "`num_key_value_heads`"),
    ("llama", {"num_key_value_heads": 3}, "3 heads of keys"),
    ("llama", {"tie_word_embeddings": "yes"}, "`tie_word_embeddings`"),
    ("llama", {"tie_word_embeddings": True}, "`tie_word_embeddings`"),
    ("smollm3", {"tie_word_embeddings": ...}, "`tie_word_embeddings`"),
    ("llama", {"architectures": "LlamaForCausalLM"}, "`architectures`"),
    *(
        ("llama", {"architectures": [name]}, "`architectures`")
        for name in (
            "LlamaForSequenceClassification",
            "LlamaForTokenClassification",
            "LlamaModel",
            "LlamaEagle",
        )
    ),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
    ("llama", {"model_type": "mixtral"}, "`mixtral`"),
]


@pytest.mark.parametrize(("family", "changed", "said"), REFUSED)
def test_other_values_are_refused(
    family: str, changed: dict[str, Any], said: str, folder: Callable[[str], Path]
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        of_folder(with_config(folder(family), **changed))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"attention_bias": True}, r"self_attn\.q_proj\.bias"),
        ({"mlp_bias": True}, r"mlp\.gate_proj\.bias"),
        ({"num_hidden_layers": 5}, r"layers\.4"),
        ({"vocab_size": 97}, "do not fit"),
        ({"intermediate_size": 255}, "do not fit"),
        ({"num_attention_heads": 8}, "do not fit"),
        ({"head_dim": 16}, "do not fit"),
        ({"hidden_size": 120}, "do not fit"),
    ],
)
def test_tensors_that_do_not_fit_are_damage(
    changed: dict[str, Any], said: str, folder: Callable[[str], Path]
) -> None:
    with pytest.raises(BrokenModel, match=said):
        of_folder(with_config(folder("llama"), **changed))


def test_a_head_that_is_not_tied_must_be_there(tmp_path: Path) -> None:
    saved("llama", tmp_path, tie_word_embeddings=True)
    assert of_folder(SafetensorsFolder.open(tmp_path)).tied
    for tied in (False, ..., None):
        with pytest.raises(BrokenModel, match=r"no tensor `lm_head\.weight`"):
            of_folder(with_config(tmp_path, tie_word_embeddings=tied))


def rewritten(path: Path, **tensors: Any) -> Path:
    """Add tensors to a folder's weights; None takes one out."""
    from safetensors.numpy import load_file, save_file

    found = load_file(path / "model.safetensors") | tensors
    save_file(
        {name: values for name, values in found.items() if values is not None}, path / "model.safetensors"
    )
    return path


PUBLISHED: dict[str, dict[str, Any]] = {  # what configs of published models say beside their sizes
    "Falcon3-1B": {"model_type": "llama", "activation": "swiglu", "head_dim": 256, "rope_scaling": None},
    "Llama-3.2-1B": {
        "model_type": "llama",
        "rope_scaling": LLAMA3 | {"factor": 32.0, "original_max_position_embeddings": 8192},
        "max_position_embeddings": 131072,
        "pretraining_tp": 1,
    },
    "SmolLM2-135M": {
        "model_type": "llama",
        "is_llama_config": True,
        "rope_interleaved": False,
        "pretraining_tp": 1,
    },
    "granite-3b-code": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "Yarn-Llama-2-7b": {
        "model_type": "llama",
        "rope_scaling": {
            "type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "finetuned": True,
        },
    },
    "Mistral-7B-v0.3": {"model_type": "mistral", "sliding_window": None, "max_position_embeddings": 32768},
    "Ministral-8B": {"model_type": "mistral", "sliding_window": 32768, "max_position_embeddings": 32768},
    "Qwen2.5-7B": {
        "model_type": "qwen2",
        "sliding_window": 131072,
        "max_window_layers": 28,
        "use_sliding_window": False,
        "use_mrope": False,
    },
    "Qwen3-0.6B": {"model_type": "qwen3", "sliding_window": None, "attention_bias": False, "head_dim": 128},
    "granite-3.3-2b": {
        "model_type": "granite",
        "attention_multiplier": 0.015625,
        "embedding_multiplier": 12.0,
        "logits_scaling": 8.0,
        "residual_multiplier": 0.22,
    },
    "OLMo-2-1B": {"model_type": "olmo2", "attention_bias": False, "rope_theta": 500000},
    "SmolLM3-3B": {
        "model_type": "smollm3",
        "layer_types": ["full_attention"] * 4,
        "no_rope_layers": [1, 1, 1, 0],
        "no_rope_layer_interval": 4,
        "max_window_layers": 28,
        "pretraining_tp": 2,
        "sliding_window": None,
        "use_sliding_window": False,
    },
    "Phi-4-mini": {
        "model_type": "phi3",
        "embd_pdrop": 0.0,
        "full_attn_mod": 1,
        "interpolate_factor": 1,
        "lm_head_bias": False,
        "mlp_bias": False,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": 0.75,
        "rope_scaling": LONG | {"short_factor": [1.0] * 12, "long_factor": [1.0] * 12},
        "sliding_window": 262144,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_pass(name: str, tmp_path: Path) -> None:
    """Their other keys concern training, generation or other programs."""
    config = SIZES | {"num_hidden_layers": 4, "hidden_act": "silu", "auto_map": {"AutoConfig": "x.X"}}
    config |= {"attention_dropout": 0.0, "torch_dtype": "bfloat16", "use_cache": True} | PUBLISHED[name]
    family = config["model_type"]
    title = {"olmo2": "Olmo2", "smollm3": "SmolLM3"}.get(family, family.capitalize())
    config["architectures"] = [f"{title}ForCausalLM"]
    folder = SafetensorsFolder(tmp_path, config, {})
    config_keys.check(folder, family, 128, 32)
    config_keys.check_window(folder, family, 4, config["max_position_embeddings"])
    assert rope_of(config, 32, config["max_position_embeddings"], name, family).frequencies.size in (12, 16)


ONES = np.ones((2, 2), np.float32)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "score.weight",
            "lm_head.bias",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.4.mlp.up_proj.weight",
        ),
        *(
            "model.layers.0.mlp.up_proj.weight_scale",
            "model.layers.0.mlp.up_proj.SCB",
            "visual.patch_embed.weight",
        ),
        *(
            "model.layers.0.mlp.up_proj.qweight",
            "model.layers.0.self_attn.q_norm.weight",
            "layers.0.extra.weight",
        ),
        *("model.layers.0.self_attn.q_proj.lora_A.weight", "model.layers.0.block_sparse_moe.gate.weight"),
    ],
)
def test_a_tensor_that_would_be_ignored_is_refused(name: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    with pytest.raises(UnsupportedModel, match=f"tensor `{name}`"):
        of_folder(SafetensorsFolder.open(rewritten(tmp_path, **{name: ONES})))


def test_tensors_that_change_nothing_pass(tmp_path: Path) -> None:
    saved("llama", tmp_path, tie_word_embeddings=True)
    from safetensors.numpy import load_file

    embedding = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": ONES[0], "lm_head.weight": embedding}
    assert of_folder(SafetensorsFolder.open(rewritten(tmp_path, **extra))).tied
    wide = {"lm_head.weight": embedding.astype(np.float64)}
    assert of_folder(SafetensorsFolder.open(rewritten(tmp_path, **wide))).tied
    for other in (embedding + 1, embedding[:-1], (embedding + 1).astype(np.float64)):
        with pytest.raises(ModelError, match="`tie_word_embeddings`|do not fit"):
            of_folder(SafetensorsFolder.open(rewritten(tmp_path, **{"lm_head.weight": other})))


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32])
def test_weights_of_whole_numbers_are_refused(kind: type, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    saved("llama", tmp_path)
    with pytest.raises(UnsupportedModel, match=f"`{name}` .* tensor type"):
        of_folder(SafetensorsFolder.open(rewritten(tmp_path, **{name: np.ones((256, 128), kind)})))


def test_an_adapter_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}", "utf-8")
    with pytest.raises(UnsupportedModel, match=r"adapter_config\.json"):
        SafetensorsFolder.open(tmp_path)
    saved("llama", tmp_path)
    with pytest.raises(UnsupportedModel, match=r"adapter_config\.json"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_config_without_its_sizes_is_named(key: str, folder: Callable[[str], Path]) -> None:
    assert key in SIZES
    with pytest.raises(ModelError, match=f"no `{key}`"):
        of_folder(with_config(folder("llama"), **{key: ...}))
