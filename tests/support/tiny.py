"""Tiny random decoders: as a GGUF file, as a Hugging Face folder, and in plain float64 numpy."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from localspec.formats.graph.weights import HF_NAMES

Values = NDArray[np.float64]

WIDTH, HEADS, KEY_HEADS, HEAD_WIDTH, INNER, LAYERS, VOCAB = 256, 4, 2, 64, 512, 2, 96
BASE, EPSILON = 10000.0, 1e-5
SPREAD = 0.06  # of a weight: about 1 / sqrt(WIDTH)
HALVES = {  # where the float16 numbers of a block lie: its scale and, where it has one, its minimum
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
STORED = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL"}  # in safetensors files
K_SIZES = {"Q4_K": (4e-4, 3e-3), "Q5_K": (2e-4, 3e-3), "Q6_K": (5e-5, 0.0)}  # of scale and minimum


@dataclass
class Tiny:
    """A model's tensors by llama.cpp's names: as they are stored, and what they stand for."""

    family: str
    kind: str
    interleaved: bool = False
    stretch: Values | None = None  # divides the rotary frequencies
    head_width: int = HEAD_WIDTH
    layers: int = LAYERS
    stored: dict[str, NDArray[Any]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)

    @property
    def frequencies(self) -> Values:
        found = BASE ** (-np.arange(0, self.head_width, 2) / self.head_width)
        return found if self.stretch is None else found / self.stretch

    def put(self, name: str, kind: str, stored: NDArray[Any]) -> None:
        self.stored[name], self.kinds[name] = stored, kind
        self.values[name] = dequantize(stored, GGMLQuantizationType[kind]).astype(np.float64)


def make(family: str, kind: str = "F32", *, tied: bool = False, seed: int = 0, **options: Any) -> Tiny:
    """Draw a model; its matrices are stored as `kind`."""
    numbers = dice(seed)
    head_width = 32 if family == "qwen3" else HEAD_WIDTH  # qwen3: heads need not fill the width
    tiny = Tiny(family, kind, head_width=head_width, **options)
    inside, shared = HEADS * head_width, KEY_HEADS * head_width
    shapes = {"token_embd": (VOCAB, WIDTH)} | ({} if tied else {"output": (VOCAB, WIDTH)})
    vectors = {"output_norm.weight": WIDTH}
    for layer in range(tiny.layers):
        name = f"blk.{layer}."
        shapes |= {f"{name}attn_q": (inside, WIDTH), f"{name}attn_output": (WIDTH, inside)}
        shapes |= {f"{name}attn_k": (shared, WIDTH), f"{name}attn_v": (shared, WIDTH)}
        shapes |= {f"{name}ffn_gate": (INNER, WIDTH), f"{name}ffn_up": (INNER, WIDTH)}
        shapes |= {f"{name}ffn_down": (WIDTH, INNER)}
        vectors |= {f"{name}attn_norm.weight": WIDTH, f"{name}ffn_norm.weight": WIDTH}
        if family == "qwen2":
            sizes = {"attn_q": inside, "attn_k": shared, "attn_v": shared}
            vectors |= {f"{name}{part}.bias": size for part, size in sizes.items()}
        if family == "qwen3":
            vectors |= {f"{name}attn_{part}_norm.weight": head_width for part in "qk"}
    for name, shape in shapes.items():
        # rows of 128 columns are half a block of the K formats
        own = "Q8_0" if kind in K_SIZES and shape[1] % 256 else kind
        tiny.put(f"{name}.weight", own, matrix(own, shape, numbers))
    for name, size in vectors.items():
        tiny.put(name, "F32", numbers.normal(0 if "bias" in name else 1, 0.2, size).astype(np.float32))
    return tiny


def without(tiny: Tiny, dropped: set[int]) -> Tiny:
    """Return the model without some layers, those behind them renumbered."""
    kept = [layer for layer in range(tiny.layers) if layer not in dropped]
    fewer = replace(tiny, layers=len(kept), stored={}, kinds={}, values={})
    for name, stored in tiny.stored.items():
        place = name.split(".")
        if place[0] == "blk":
            if int(place[1]) not in kept:
                continue
            place[1] = str(kept.index(int(place[1])))
        fewer.put(".".join(place), tiny.kinds[name], stored)
    return fewer


def dice(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def matrix(kind: str, shape: tuple[int, int], numbers: np.random.Generator) -> NDArray[Any]:
    """Draw a matrix in a GGUF format; eight bits with one scale per row hold F32 values exactly."""
    if kind in K_SIZES:
        return random_blocks(kind, *shape, numbers, K_SIZES[kind], positive=True)
    if kind == "F16":
        return numbers.normal(0, SPREAD, shape).astype(np.float16)
    if kind != "F32":
        values = numbers.normal(0, SPREAD, shape).astype(np.float32)
        stored: NDArray[Any] = quantize(values, GGMLQuantizationType[kind])
        return stored
    codes = numbers.integers(-126, 127, shape)
    codes[:, 5::32] = numbers.choice((-127, 127), codes[:, 5::32].shape)
    scale = (numbers.uniform(0.5, 1.5, (shape[0], 1)) * SPREAD / 73).astype(np.float16)
    return (codes * scale.astype(np.float32)).astype(np.float32)


def random_blocks(
    kind: str,
    rows: int,
    columns: int,
    numbers: np.random.Generator,
    sizes: tuple[float, float] = (0.1, 0.1),
    positive: bool = False,
) -> NDArray[np.uint8]:
    """Draw the bytes of rows in a block format, with scales and offsets of about these sizes."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    raw = numbers.integers(0, 256, (rows, columns // block, size), np.uint8)
    for at, most in zip(HALVES[kind], sizes, strict=False):
        halves = numbers.uniform(0.5 if positive else -1, 1, raw.shape[:2]) * most
        raw[..., at : at + 2] = halves.astype(np.float16)[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def add_vocabulary(writer: gguf.GGUFWriter) -> None:
    """Give the model the printable characters as its tokens, and two that end an answer."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*map(chr, range(33, 126)), "ab", "<|endoftext|>", "<|im_end|>"])
    writer.add_token_types([1] * 94 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(95)


def add_letters_backwards(writer: gguf.GGUFWriter) -> None:
    """Give the model the same texts in another order: a vocabulary of its own."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(["<|im_end|>", *map(chr, range(125, 32, -1)), "ab", "<|endoftext|>"])
    writer.add_token_types([3, *[1] * 94, 3])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)


def write_gguf(tiny: Tiny, path: Path, **metadata: Any) -> Path:
    """Write the model as llama.cpp stores it; `metadata` are more values of the architecture."""
    writer = gguf.GGUFWriter(path, tiny.family)
    writer.add_context_length(metadata.pop("context_length", 256))
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_key_length(tiny.head_width)
    writer.add_value_length(tiny.head_width)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(BASE)
    add_vocabulary(writer)
    for key, value in metadata.items():
        add = writer.add_uint32 if isinstance(value, int) else writer.add_string
        add(f"{tiny.family}.{key.replace('__', '.')}", value)
    if tiny.stretch is not None:
        writer.add_tensor("rope_freqs.weight", tiny.stretch.astype(np.float32))
    for name, stored in tiny.stored.items():
        writer.add_tensor(name, stored, raw_dtype=GGMLQuantizationType[tiny.kinds[name]])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors whose types are in STORED."""
    header, data = {}, b""
    for name, values in tensors.items():
        content = np.ascontiguousarray(values).tobytes()
        place = [len(data), len(data) + len(content)]
        header[name] = {
            "dtype": STORED[values.dtype.name],
            "shape": list(values.shape),
            "data_offsets": place,
        }
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def write_folder(tiny: Tiny, folder: Path, **config: Any) -> Path:
    """Write the model as Hugging Face stores it."""
    named = {theirs(name): values.astype(np.float32) for name, values in tiny.values.items()}
    write_safetensors(folder / "model.safetensors", named)
    shape = {
        "model_type": tiny.family,
        "num_hidden_layers": tiny.layers,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_HEADS,
        "head_dim": tiny.head_width,
        "max_position_embeddings": 256,
        "rms_norm_eps": EPSILON,
        "rope_theta": BASE,
        "tie_word_embeddings": "output.weight" not in tiny.values,
    }
    (folder / "config.json").write_text(json.dumps(shape | config))
    return folder


def theirs(name: str) -> str:
    """Return Hugging Face's name of a tensor."""
    *layer, part, suffix = name.split(".")
    return f"model.layers.{layer[1]}.{HF_NAMES[part]}.{suffix}" if layer else f"{HF_NAMES[part]}.{suffix}"


def logits(tiny: Tiny, tokens: list[int]) -> Values:
    """Return the logits [tokens, vocab] of the model in float64: the reference."""
    found = tiny.values
    x = found["token_embd.weight"][tokens]
    for layer in range(tiny.layers):
        name = f"blk.{layer}."
        x = x + attention(tiny, normed(x, found[f"{name}attn_norm.weight"]), name)
        inner = normed(x, found[f"{name}ffn_norm.weight"])
        gate, up = (inner @ found[f"{name}ffn_{part}.weight"].T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ found[f"{name}ffn_down.weight"].T
    head = found.get("output.weight", found["token_embd.weight"])
    result: Values = normed(x, found["output_norm.weight"]) @ head.T
    return result


def attention(tiny: Tiny, x: Values, name: str) -> Values:
    parts = []
    for part, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
        y = x @ tiny.values[f"{name}attn_{part}.weight"].T
        y = y + tiny.values.get(f"{name}attn_{part}.bias", 0.0)
        y = y.reshape(len(x), heads, tiny.head_width)
        norm = tiny.values.get(f"{name}attn_{part}_norm.weight")
        y = y if norm is None else normed(y, norm)
        parts.append(y if part == "v" else rotated(tiny, y))
    queries, keys, values = parts[0], *(np.repeat(part, HEADS // KEY_HEADS, axis=1) for part in parts[1:])
    scores = np.einsum("thd,shd->hts", queries, keys) / np.sqrt(tiny.head_width)
    scores = np.where(np.tril(np.ones(scores.shape[1:], bool)), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hts,shd->thd", weights, values).reshape(len(x), -1)
    result: Values = mixed @ tiny.values[f"{name}attn_output.weight"].T
    return result


def rotated(tiny: Tiny, x: Values) -> Values:
    angles = (np.arange(len(x))[:, None] * tiny.frequencies)[:, None, :]
    cosine, sine = np.cos(angles), np.sin(angles)
    half = tiny.head_width // 2
    places = (slice(0, None, 2), slice(1, None, 2)) if tiny.interleaved else (slice(half), slice(half, None))
    first, second = x[..., places[0]], x[..., places[1]]
    result = np.empty_like(x)
    result[..., places[0]] = first * cosine - second * sine
    result[..., places[1]] = second * cosine + first * sine
    return result


def normed(x: Values, weight: Values) -> Values:
    result: Values = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + EPSILON) * weight
    return result
