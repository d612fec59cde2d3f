"""The keys of a config.json that change a decoder's logits beside those that `architecture` computes.

transformers knows several hundred keys. Those below change the logits of some family there; a config of a
family that localspec builds is refused for any value of them that is not the one which changes nothing. All
other keys pass: they concern training, generation or other programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from localspec.errors import UnsupportedModel, printable
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.formats.values import MAX_CONTEXT, MAX_LAYERS, flag, shown, whole, wrong

FULL, SLIDING = "full_attention", "sliding_attention"
ALL_SLIDE = ("mistral", "phi3")  # all layers have the window, whatever `use_sliding_window` is
SOME_SLIDE = ("qwen2", "qwen3", "smollm3")
FIRST_SLIDING = 28  # Qwen's default of `max_window_layers`
SILU = ("silu", "swish")

NOTHING = (  # only null changes nothing
    *("activation_sparsity_pattern", "attention_chunk_size", "attention_logit_cap", "attention_types"),
    *("attention_window_size", "attn_config", "attn_layer_period", "attn_logit_softcapping", "attn_scale"),
    *("audio_config", "block_types", "clip_qkv", "compression_config", "ffn_config"),
    *("final_logit_softcapping", "floor_scale", "global_rope_theta", "interleaved_sliding_window"),
    *("kv_lora_rank", "layers_block_type", "local_rope_theta", "logits_soft_cap", "mlp_multipliers"),
    *("output_logit_soft_cap", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "quant_config"),
    *("quantization", "quantization_config", "rope_local_base_freq", "scale_depth"),
    *("sliding_window_pattern", "ssm_multipliers", "swiglu_limit", "text_config", "vision_config"),
)
NO = (  # and false or 0
    *("add_cross_attention", "alibi", "apply_residual_connection_post_layernorm"),
    *("attn_temperature_tuning", "is_encoder_decoder", "learned_pos_emb", "lm_head_bias"),
    *("moe_num_experts", "multi_query", "n_routed_experts", "new_decoder_architecture"),
    *("normalize_embedding", "num_experts", "num_kv_shared_layers", "num_local_experts"),
    *("num_nextn_predict_layers", "parallel_attn", "parallel_residual", "post_norm", "prefix_lm"),
    *("qk_layernorm", "qk_ln", "qk_norm", "rms_norm_add_unit_offset", "rope_interleave"),
    *("rope_interleaved", "scale_attn_by_inverse_layer_idx", "scale_embedding", "use_alibi"),
    *("use_attention_sinks", "use_bidirectional_attention", "use_dynamic_ntk", "use_logn_attn"),
    *("use_long_context", "use_mem_rope", "use_parallel_residual", "use_qk_norm"),
)
YES = (  # and true
    *("causal", "do_layer_norm_before", "gated_mlp", "is_causal", "layer_norm_elementwise_affine"),
    *("rms_norm", "scale_attn_weights", "use_rms_norm", "use_rope", "use_rotary_embedding"),
)
ONE = (  # and a factor of 1
    *("attention_in_multiplier", "attention_out_multiplier", "embedding_multiplier", "embedding_scale"),
    *("key_multiplier", "lm_head_multiplier", "logit_scale", "logits_scaling", "mup_embedding_multiplier"),
    *("mup_width_multiplier", "partial_rotary_factor", "residual_multiplier", "residual_scale", "rope_pct"),
    *("rope_ratio", "rotary_pct", "rotary_percent", "scale_emb"),
)
ACTIVATIONS = (
    *("activation", "activation_function", "dense_act_fn", "ff_activation", "hidden_act"),
    *("hidden_activation", "mlp_hidden_act"),
)
NORMS = ("norm_type", "normalization", "layer_norm_type")
OWN = {  # what `architecture` computes for a family
    "granite": (*("attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"),),
    "phi3": ("partial_rotary_factor",),
    "smollm3": ("no_rope_layers", "no_rope_layer_interval"),
}
CAUSAL = {f"{family}forcausallm" for family in DEFAULTS}


def check(folder: SafetensorsFolder, family: str, width: int, head_width: int) -> None:
    """Raise UnsupportedModel for the first key whose value localspec does not compute."""
    _check_head(folder)
    own = OWN.get(family, ())
    for key, allowed in _no_ops(width, head_width).items():
        found = folder.value(key)
        if found is not None and key not in own and not _is_one_of(found, allowed):
            raise refused(folder, key, found)
    if folder.config.get("hidden_act", SILU[0]) is None:
        raise refused(folder, "hidden_act", None)
    if family not in SOME_SLIDE + ALL_SLIDE and flag(folder, "use_sliding_window"):
        raise refused(folder, "use_sliding_window", True)
    rotated = folder.value("no_rope_layers") if "no_rope_layers" not in own else None
    if rotated is not None and not (isinstance(rotated, list) and all(rotated)):
        raise refused(folder, "no_rope_layers", rotated)
    if family == "phi3" and folder.value("mlp_bias") not in (None, False):
        raise refused(folder, "mlp_bias", folder.value("mlp_bias"))


def refused(folder: SafetensorsFolder, key: str, found: Any) -> UnsupportedModel:
    """Return the error of a key with a value that localspec does not compute."""
    return UnsupportedModel(
        f"`{key}` of `{folder.path / 'config.json'}` is `{printable(shown(found))}`, which is not supported"
    )


def _no_ops(width: int, head_width: int) -> Mapping[str, Iterable[Any]]:
    """Return for each key the values that change nothing, beside null."""
    scale = head_width**-0.5
    return {
        **dict.fromkeys(NOTHING, ()),
        **dict.fromkeys(NO, (False, 0)),
        **dict.fromkeys(YES, (True, 1)),
        **dict.fromkeys(ONE, (1,)),
        **dict.fromkeys(ACTIVATIONS, (*SILU, "swiglu")),  # the last is the whole gated network
        "hidden_act": SILU,
        **dict.fromkeys(NORMS, ("rms_norm", "rmsnorm")),
        "position_embedding_type": ("rope", "rotary"),
        "attention_multiplier": (scale,),
        "softmax_scale": (scale,),
        "query_pre_attn_scalar": (head_width,),
        "rotary_dim": (head_width,),
        "v_head_dim": (head_width,),
        "embedding_size": (width,),
        "word_embed_proj_dim": (width,),
        "no_rope_layer_interval": (0,),
    }


def _is_one_of(found: Any, allowed: Iterable[Any]) -> bool:
    if type(found) in (int, float):
        return any(type(each) in (int, float) and abs(found - each) <= 1e-6 * abs(each) for each in allowed)
    return any(type(found) is type(each) and found == each for each in allowed)


def _check_head(folder: SafetensorsFolder) -> None:
    """Raise UnsupportedModel for a model whose head predicts something else than the next token."""
    named = folder.value("architectures")
    if named is None:
        return
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        raise wrong(folder, "architectures", named, "a list of texts")
    if named and not any(name.lower() in CAUSAL for name in named):
        raise refused(folder, "architectures", ", ".join(named))


def check_window(folder: SafetensorsFolder, family: str, layers: int, context: int) -> None:
    """Raise UnsupportedModel if a layer attends to fewer tokens than a text may have."""
    types = folder.value("layer_types")
    if types is not None and (not isinstance(types, list) or len(types) != layers):
        raise wrong(folder, "layer_types", types, f"a list of {layers} kinds")
    other = [kind for kind in types or () if kind not in (FULL, SLIDING)]
    if other:
        raise refused(folder, "layer_types", other[0])
    slides = SLIDING in types if types is not None else _slides(folder, family, layers)
    if not slides:
        return
    window = _window(folder, family)
    if window is None and family in ALL_SLIDE and SLIDING not in (types or ()):
        return
    if window is None:
        raise refused(folder, "layer_types", SLIDING)
    if window < context:
        raise UnsupportedModel(
            f"`{folder.path}` uses a sliding window of {window} (`sliding_window`), which cannot be imported"
        )


def _slides(folder: SafetensorsFolder, family: str, layers: int) -> bool:
    """Return whether a config without `layer_types` gives a layer a window."""
    if family in ALL_SLIDE:
        return True
    if family not in SOME_SLIDE or not flag(folder, "use_sliding_window") or _window(folder, family) is None:
        return False
    first = FIRST_SLIDING if family != "smollm3" else 0
    if family != "smollm3":
        first = whole(folder, "max_window_layers", first, least=0, most=MAX_LAYERS)
    return first < layers


def _window(folder: SafetensorsFolder, family: str) -> int | None:
    """Return the sliding window, None if the config has none; an absent key is the family's default."""
    window = folder.config.get("sliding_window", DEFAULTS[family].window)
    return None if window is None else whole(folder, "sliding_window", window, least=0, most=MAX_CONTEXT)
