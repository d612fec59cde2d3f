"""The metadata of a GGUF file that change a decoder's logits beside those that `architecture` computes.

llama.cpp knows some two hundred keys. Those below change the logits of some family there, or the shape of its
tensors; a file of a family that localspec builds is refused for any value of them that is not the one which
changes nothing. Keys that llama.cpp does not know pass, as they do there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from localspec.errors import UnsupportedModel, printable
from localspec.formats.gguf.file import GgufFile
from localspec.formats.values import shown

NO = (  # absent, false, 0, or a list of those
    *("adapters.count", "attention.clamp_kqv", "attention.compress_ratios", "attention.decay_lora_rank"),
    *("attention.gate_lora_rank", "attention.group_norm_groups", "attention.iclr_lora_rank"),
    *("attention.indexer.head_count", "attention.key_length_mla", "attention.kv_lora_rank"),
    *("attention.max_alibi_bias", "attention.output_group_count", "attention.output_lora_rank"),
    *("attention.q_lora_rank", "attention.recurrent_layers", "attention.relative_buckets_count"),
    *("attention.shared_kv_layers", "attention.temperature_length", "attention.temperature_scale"),
    *("attention.value_length_mla", "attention.value_residual_mix_lora_rank", "attn_logit_softcapping"),
    *("attn_res.block_size", "block_size", "conv_kernel_size", "convnext.block_count"),
    *("decoder_block_count", "dense_2_feat_in", "dense_3_feat_in", "embedding_length_per_layer_input"),
    *("expert_count", "expert_group_count", "expert_latent_length", "expert_shared_count"),
    *("expert_used_count", "final_logit_softcapping", "full_attention_interval", "hash_layer_count"),
    *("hyper_connection.count", "kda.head_dim", "moe_latent_size", "n_deepstack_layers"),
    *("nextn_predict_layers", "norm_before_fc", "norm_before_residual", "num_loops", "ple.ngram_size"),
    *("pooling_type", "posnet.block_count", "rescale_every_n_layers", "rope.dimension_sections"),
    *("rope.scaling.alpha", "rope.scaling.yarn_log_multiplier", "router_logit_softcapping"),
    *("selector_rank", "shortconv.l_cache", "skip_loop_final_norm", "ssm.conv_kernel", "ssm.inner_size"),
    *("ssm.state_size", "swiglu_clamp_exp", "swiglu_clamp_shexp", "swin_norm", "time_decay_extra_dim"),
    *("time_mix_extra_dim", "token_shift_count", "use_parallel_residual", "wkv.head_size"),
)
ONE = (  # and a factor of 1
    *("attention.output_scale", "attention.value_scale", "embedding_scale", "logit_scale"),
    *("residual_scale",),
)
SILU = ("silu", "swish")
OWN = {"granite": ("embedding_scale", "residual_scale", "attention.scale", "logit_scale")}  # computed
ORIGINAL = "Meta AI original pth"  # the order of rows that llama.cpp's own family of Llama models has


def check(file: GgufFile, family: str, *, width: int, head_width: int, interleaved: bool) -> None:
    """Raise UnsupportedModel for the first key whose value localspec does not compute."""
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"`general.type` of `{file.path}` is `{printable(shown(kind))}`, not a model")
    own = OWN.get(family, ())
    for key, allowed in _no_ops(width, head_width, interleaved).items():
        found = file.value(key)
        if found is not None and key not in own and not _is_one_of(found, allowed):
            raise refused(file, key, found)
    if file.value("classifier.output_labels"):
        raise refused(file, "classifier.output_labels", file.value("classifier.output_labels"))


def refused(file: GgufFile, key: str, found: Any) -> UnsupportedModel:
    """Return the error of a key with a value that localspec does not compute."""
    return UnsupportedModel(
        f"`{file.architecture}.{key}` of `{file.path}` is `{printable(shown(found))}`, which is not supported"
    )


def _no_ops(width: int, head_width: int, interleaved: bool) -> Mapping[str, Iterable[Any]]:
    """Return for each key the values that change nothing."""
    layouts = ("reference", *([ORIGINAL] if interleaved else []))
    return {
        **dict.fromkeys(NO, (0,)),
        **dict.fromkeys(ONE, (0, 1)),
        "activation.situ_beta": (),
        "attention.causal": (1,),
        "attention.key_length_swa": (head_width,),
        "attention.rope_pattern": (1,),
        "attention.scale": (0, head_width**-0.5),
        "attention.value_length": (head_width,),
        "attention.value_length_swa": (head_width,),
        "embedding_length_out": (0, width),
        "hidden_activation": SILU,
        "hrm.h_cycles": (),
        "rope.dimension_count": (head_width,),
        "rope.dimension_count_swa": (head_width,),
        "rope.scaling.yarn_attn_factor": (1,),
        "rope.scaling.yarn_beta_fast": (32,),
        "rope.scaling.yarn_beta_slow": (1,),
        "rope.scaling.yarn_ext_factor": (-1, 1),
        "target_layers": (),
        "tensor_data_layout": layouts,
    }


def _is_one_of(found: Any, allowed: Iterable[Any]) -> bool:
    if isinstance(found, list):
        return all(not isinstance(each, list) and _is_one_of(each, allowed) for each in found)
    if isinstance(found, str):
        return found in allowed
    numbers = [each for each in allowed if not isinstance(each, str)]
    return any(abs(found - each) <= 1e-5 * abs(each) for each in numbers)  # in float32
