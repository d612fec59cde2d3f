"""The files of the small LLaVA, as Hugging Face lays them out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scenes
from random_models import word_tokenizer

from localspec.formats.huggingface.safetensors import write_file

EPSILON, BASE = 1e-5, 10000.0
TEMPLATE = (
    "{% for message in messages %}{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}{% if part['type'] == 'image' %}<image>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "{% if message['role'] == 'assistant' %}</s>{% endif %}{% endfor %}"
)
MEAN = 0.5  # and spread of the pixels that it reads


class Size(NamedTuple):
    """The numbers of a model: layers, width, heads and inner width of its text part and of its eyes."""

    layers: int = 12
    width: int = 128
    heads: int = 4
    inner: int = 256
    eye_layers: int = 4
    eye_inner: int = 320
    grid: scenes.Grid = scenes.LARGE

    @property
    def head_width(self) -> int:
        return self.width // self.heads


SIZES = {
    "large": Size(),
    "small": Size(layers=4, width=96, eye_layers=2, grid=scenes.SMALL),
}


def write(into: Path, tensors: dict[str, Any], size: Size) -> None:
    """Write a model by its tensors, those of `SmallLlava` in float16, with its tokenizer."""
    into.mkdir(parents=True, exist_ok=True)
    write_file(into / "model.safetensors", dict(_published(tensors, size)))
    _write_json(into / "config.json", _config(size))
    _write_json(into / "preprocessor_config.json", _pixels(size.grid.side))
    word_tokenizer.write(into, scenes.WORDS, scenes.SPECIAL, TEMPLATE)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")


def _pixels(side: int) -> dict[str, Any]:
    """Return what is done to a picture before the model sees it."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side},
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": [MEAN] * 3,
        "image_std": [MEAN] * 3,
        "do_convert_rgb": True,
    }


def _published(p: dict[str, Any], size: Size) -> Any:
    """Yield the weights under the names of LLaVA's published models."""
    eyes, text = "vision_tower.vision_model", "language_model.model"
    grid = p["eyes.patch"].reshape(size.width, 3, size.grid.patch, size.grid.patch)
    yield f"{eyes}.embeddings.class_embedding", p["eyes.class"]
    yield f"{eyes}.embeddings.patch_embedding.weight", np.ascontiguousarray(grid)
    yield f"{eyes}.embeddings.position_embedding.weight", p["eyes.position"]
    unread = {"weight": np.ones(size.width, np.float16), "bias": np.zeros(size.width, np.float16)}
    for kind in ("weight", "bias"):
        yield f"{eyes}.pre_layrnorm.{kind}", p[f"eyes.before.{kind}"]
        yield f"{eyes}.post_layernorm.{kind}", unread[kind]
        for at in (1, 2):
            yield f"multi_modal_projector.linear_{at}.{kind}", p[f"joint.{at}.{kind}"]
        for at in range(size.eye_layers):
            yield from _eye_layer(p, at, kind)
    for at in range(size.layers):
        own, name = f"{text}.layers.{at}", f"text.{at}"
        for part, values in zip("qkv", np.split(p[f"{name}.qkv"], 3), strict=True):
            yield f"{own}.self_attn.{part}_proj.weight", np.ascontiguousarray(values)
        for part, values in zip(("gate", "up"), np.split(p[f"{name}.gates"], 2), strict=True):
            yield f"{own}.mlp.{part}_proj.weight", np.ascontiguousarray(values)
        yield f"{own}.self_attn.o_proj.weight", p[f"{name}.out"]
        yield f"{own}.mlp.down_proj.weight", p[f"{name}.down"]
        yield f"{own}.input_layernorm.weight", p[f"{name}.norm1"]
        yield f"{own}.post_attention_layernorm.weight", p[f"{name}.norm2"]
    yield f"{text}.embed_tokens.weight", p["table"]
    yield f"{text}.norm.weight", p["norm"]
    yield "language_model.lm_head.weight", p["head"]


def _eye_layer(p: dict[str, Any], at: int, kind: str) -> Any:
    """Yield the weights, or the biases, of a layer of the eyes."""
    own, name = f"vision_tower.vision_model.encoder.layers.{at}", f"eyes.{at}"
    for part, values in zip("qkv", np.split(p[f"{name}.qkv.{kind}"], 3), strict=True):
        yield f"{own}.self_attn.{part}_proj.{kind}", np.ascontiguousarray(values)
    yield f"{own}.self_attn.out_proj.{kind}", p[f"{name}.out.{kind}"]
    for part in ("fc1", "fc2"):
        yield f"{own}.mlp.{part}.{kind}", p[f"{name}.{part}.{kind}"]
    for norm in (1, 2):
        yield f"{own}.layer_norm{norm}.{kind}", p[f"{name}.norm{norm}.{kind}"]


def _config(size: Size) -> dict[str, Any]:
    text = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": size.width,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.head_width,
        "max_position_embeddings": 2048,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "vocab_size": len(scenes.WORDS),
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": scenes.END,
        "pad_token_id": scenes.PAD,
    }
    eyes = {
        "model_type": "clip_vision_model",
        "hidden_size": size.width,
        "intermediate_size": size.eye_inner,
        "num_hidden_layers": size.eye_layers,
        "num_attention_heads": size.heads,
        "image_size": size.grid.side,
        "patch_size": size.grid.patch,
        "hidden_act": "gelu",
        "layer_norm_eps": EPSILON,
        "projection_dim": size.width,
    }
    return {
        "architectures": ["LlavaForConditionalGeneration"],
        "model_type": "llava",
        "image_token_index": scenes.IMAGE,
        "image_seq_length": size.grid.patches,
        "projector_hidden_act": "gelu",
        "multimodal_projector_bias": True,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "text_config": text,
        "vision_config": eyes,
    }
