"""The weights of a diffusion language model by the names of Hugging Face, checked by name and shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.diffusion.config import OTHER, DiffusionShape
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.tensors import another_head, head_is_embedding

ROTARY = "inv_freq"  # rotary frequencies, which are computed
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
LLADA_PARTS = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}
LLADA_WHOLE = {
    EMBEDDING: "model.transformer.wte.weight",
    NORM: "model.transformer.ln_f.weight",
    HEAD: "model.transformer.ff_out.weight",
}


def shapes(shape: DiffusionShape) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors of a model, by Hugging Face's names."""
    width, inner = shape.width, shape.inner
    queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (shape.vocab, width), NORM: (width,)}
    if not shape.tied:
        found[HEAD] = (shape.vocab, width)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        attention = {"q": (queries, width), "k": (keys, width), "v": (keys, width)}
        for part, size in attention.items():
            found[f"{at}self_attn.{part}_proj.weight"] = size
            if shape.bias:
                found[f"{at}self_attn.{part}_proj.bias"] = size[:1]
        found[f"{at}self_attn.o_proj.weight"] = (width, queries)
        if shape.query_norm:
            found |= {f"{at}self_attn.{part}_norm.weight": (shape.head_width,) for part in "qk"}
        for part in ("gate", "up"):
            found[f"{at}mlp.{part}_proj.weight"] = (inner, width)
        found[f"{at}mlp.down_proj.weight"] = (width, inner)
        found |= {f"{at}{part}.weight": (width,) for part in ("input_layernorm", "post_attention_layernorm")}
    return found


def stored_name(family: str, name: str) -> str:
    """Return the name that a family's files have for a tensor."""
    if family != "llada":
        return name
    if name in LLADA_WHOLE:
        return LLADA_WHOLE[name]
    layer, part = name.removeprefix("model.layers.").removesuffix(".weight").split(".", 1)
    return f"model.transformer.blocks.{layer}.{LLADA_PARTS[part]}.weight"


def check(path: Path, shape: DiffusionShape) -> None:
    """Raise an error unless a folder holds the tensors of `shape` and no others.

    BrokenModel for a missing tensor or one of another shape, UnsupportedModel for one that would be ignored.
    """
    folder = SafetensorsFolder.open(path)
    needed = {stored_name(shape.family, name): size for name, size in shapes(shape).items()}
    ignored = {HEAD} if shape.tied else set()
    for name, info in folder.tensors.items():
        if name in needed and info.shape != needed[name]:
            raise BrokenModel(
                f"`{printable(name)}` of `{path}` has the shape {info.shape}, expected {needed[name]}",
                "Download it again",
            )
        if name not in needed and name not in ignored and not name.endswith(ROTARY):
            raise UnsupportedModel(
                f"`{path}` has the tensor `{printable(name)}`, which its family does not have", OTHER
            )
    if missing := sorted(needed.keys() - folder.tensors.keys()):
        raise BrokenModel(f"`{path}` has no tensor `{missing[0]}`", "Download it again")
    if shape.tied and HEAD in folder.tensors and not head_is_embedding(folder):
        raise another_head(folder)


def tensors(path: Path, shape: DiffusionShape, device: Any, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a checked folder on a torch `device` in `dtype`, by Hugging Face's names."""
    import torch

    folder = SafetensorsFolder.open(path)
    for name in shapes(shape):
        values = folder.array(stored_name(shape.family, name))
        yield name, torch.from_numpy(values).to(device, dtype)
