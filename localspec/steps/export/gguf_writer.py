"""Write GGUF files: a copy of another with fewer layers or bits, or the weights of a torch model."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.gguf import libllama
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.rope import ORIGINAL, rope_of, scaling_of
from localspec.formats.graph.weights import HF_NAMES
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.formats.hyperparameters.tensors import DIVIDED, ROPE_FACTORS
from localspec.formats.tokenizer import vocabulary

KEPT_TYPE = "as-is"
TYPES = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_NL")  # of llama.cpp
BY_BITS = {16: "F16", 8: "Q8_0", 4: "Q4_0"}
OWN_KEYS = ("GGUF.", "general.architecture", "general.quant", "general.file_type")  # set by the writer itself
TOLERANCE = 1e-4  # of rotary frequencies, for float32's rounding
State = Mapping[str, NDArray[np.float32]]


def quantize(source: Path, file: Path, kind: str, dropped: Sequence[int] = ()) -> None:
    """Write the GGUF `source` as `file` in another type and without the layers `dropped`, with llama.cpp.

    Quantized weights are dequantized and quantized again. Raises MissingExtra without llama.cpp, and
    UnsupportedModel with llama.cpp's own message if it fails.
    """
    library = libllama.library()
    params = library.llama_model_quantize_default_params()
    params.only_copy = kind == KEPT_TYPE
    if not params.only_copy:
        params.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind}")
    params.allow_requantize = True
    if dropped:
        params.prune_layers = (ctypes.c_int32 * (len(dropped) + 1))(*sorted(dropped), -1)
    libllama.LOG.clear()
    failed = library.llama_model_quantize(os.fsencode(source), os.fsencode(file), ctypes.byref(params))
    if failed or not file.is_file():
        why = libllama.logged_reason()
        raise UnsupportedModel(f"llama.cpp cannot write `{source.name}` as {kind}: {why}")


def write(path: Path, configs: Path, state: State, layers: int, file: Path) -> None:
    """Write the weights `state` of a torch model as the GGUF `file`: matrices in float16, vectors in float32.

    The model was loaded from the GGUF or Hugging Face folder `path` and has `layers` layers, `state` has
    Hugging Face's names, and the folder `configs` holds tokenizer.json and the other configs. Raises
    UnsupportedModel for a family or a tokenizer that localspec cannot write.
    """
    import gguf

    if path.is_dir():
        folder = SafetensorsFolder.open(path)
        shape = architecture.of_folder(folder)
        if shape.family not in architecture.LLAMA_LIKE:
            raise UnsupportedModel(f"`{path}` is a `{shape.family}` model, which cannot be written as GGUF")
        metadata, factors = _metadata(folder, shape, configs)
    else:
        source = GgufFile.open(path)
        shape, metadata = architecture.of_gguf(source), dict(source.metadata)
        factors = (
            source.raw(ROPE_FACTORS).reshape(-1).view(np.float32) if ROPE_FACTORS in source.tensors else None
        )
    family = str(metadata["general.architecture"])
    metadata[f"{family}.block_count"] = layers
    writer = gguf.GGUFWriter(file, family)
    for key, value in metadata.items():
        if not key.startswith(OWN_KEYS):
            _add(writer, key, value)
    writer.add_uint32("general.file_type", 1)
    for name, values in _tensors(state, shape, interleaved=family == "llama"):
        writer.add_tensor(name, values.astype(np.float16 if values.ndim > 1 else np.float32))
    if factors is not None:
        writer.add_tensor(ROPE_FACTORS, factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(
    state: State, shape: architecture.Architecture, *, interleaved: bool
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Yield the tensors by llama.cpp's names, the rows of queries and keys `interleaved` if it needs that."""
    for hf_name, values in state.items():
        name = _gguf_name(hf_name)
        tied = hf_name == "lm_head.weight" and values is state.get("model.embed_tokens.weight")
        if name is None or tied:
            continue
        if interleaved and (".attn_q." in name or ".attn_k." in name):
            halves = values.reshape(-1, 2, shape.head_width // 2, *values.shape[1:])
            values = halves.swapaxes(1, 2).reshape(values.shape)
        yield name, values


def _metadata(
    folder: SafetensorsFolder, shape: architecture.Architecture, configs: Path
) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """Return the GGUF metadata of a Hugging Face folder, and what divides its rotary frequencies, or None."""
    family = "llama" if shape.family == "mistral" else shape.family
    vocab = folder.tensors["model.embed_tokens.weight"].shape[0]
    rope, factors = _rope(folder, shape, family)
    values = {
        "context_length": shape.context,
        "embedding_length": shape.width,
        "feed_forward_length": folder.tensors["model.layers.0.mlp.down_proj.weight"].shape[1],
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.key_heads,
        "attention.key_length": shape.head_width,
        "attention.value_length": shape.head_width,
        "attention.layer_norm_rms_epsilon": shape.epsilon,
        "rope.dimension_count": shape.head_width,
        "vocab_size": vocab,
    }
    return (
        {"general.architecture": family, "general.name": configs.name}
        | {f"{family}.{key}": value for key, value in (values | rope).items()}
        | vocabulary.to_gguf(configs, vocab)
    ), factors


def _rope(
    folder: SafetensorsFolder, shape: architecture.Architecture, family: str
) -> tuple[dict[str, Any], NDArray[Any] | None]:
    """Return the metadata of rotary positions, and what divides their frequencies, if anything.

    Raises UnsupportedModel for positions that a GGUF file of the family cannot express.
    """
    config = scaling_of(folder.config, str(folder.path))
    base = float(config.get("rope_theta") or DEFAULTS[shape.family].base)
    kept = {key: config[key] for key in ("rope_type", "factor", ORIGINAL) if config.get(key) is not None}
    kept["rope_type"] = kept.get("rope_type", config.get("type"))
    same = {"rope_theta": base, "rope_scaling": kept if kept["rope_type"] in ("linear", "yarn") else None}
    rope = rope_of(same, shape.head_width, shape.context, str(folder.path))
    factors = rope.frequencies / shape.frequencies
    plain = bool(np.abs(factors - 1).max() < TOLERANCE)
    if abs(rope.scale - shape.rope_scale) > TOLERANCE or not (plain or family in DIVIDED):
        raise UnsupportedModel(f"`{folder.path}` uses a RoPE scaling that a `{family}` GGUF cannot express")
    values = {"rope.freq_base": base}
    names = {"rope_type": "type", "factor": "factor", ORIGINAL: "original_context_length"}
    if same["rope_scaling"]:
        values |= {f"rope.scaling.{names[key]}": value for key, value in kept.items()}
        values["rope.scaling.factor"] = float(kept["factor"])
    return values, None if plain else factors


def parse_type(text: str) -> str:
    """Return the type of TYPES, whatever the case of its letters; raises BadValue."""
    kind = text.upper()
    if kind not in TYPES:
        raise BadValue(f"Unknown GGUF type `{text}`", f"It takes one of {', '.join(TYPES)}")
    return kind


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        (writer.add_uint32 if 0 <= value < 1 << 32 else writer.add_int64)(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:
        writer.add_array(key, value)


def _gguf_name(name: str) -> str | None:
    """Return llama.cpp's name of a tensor, None for one that llama.cpp computes itself."""
    stem, _, suffix = name.rpartition(".")
    layer = ""
    if stem.startswith("model.layers."):
        number, _, stem = stem.removeprefix("model.layers.").partition(".")
        layer = f"blk.{number}."
    part = next((part for part, hf_name in HF_NAMES.items() if hf_name == stem), None)
    return f"{layer}{part}.{suffix}" if part else None
