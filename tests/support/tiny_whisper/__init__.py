"""Tiny random Whisper models: CTranslate2 folders and Hugging Face folders, with a small tokenizer."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tiny import write_safetensors

Array = NDArray[Any]

WIDTH, HEADS, LAYERS, INNER, MELS, FRAMES, CONTEXT = 16, 2, 2, 32, 80, 1500, 448
KINDS = {"float32": 0, "int8": 1, "int16": 2, "int32": 3, "float16": 4}
LANGUAGES = ("en", "zh", "de")
MARKS = ("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES))
TASKS = ("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
LAST = "<|notimestamps|>"
TIMES = 1501
MERGES = ("Ġ t", "Ġ a", "h e", "i n")


def byte_letters() -> list[str]:
    """Return the letter of each byte in byte-level BPE, printable characters first, as in GPT-2."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + position) for position in range(len(others))]


def tokenizer(vocabulary: int, *, broken: bool = False) -> dict[str, Any]:
    """Return a tokenizer.json whose marks lie at the vocabulary's end, without its first merge if broken."""
    pieces = [*byte_letters(), *(merge.replace(" ", "") for merge in MERGES)]
    marks = [*MARKS, *TASKS, LAST]
    first = vocabulary - TIMES - len(marks)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": first + position,
                "content": mark,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for position, mark in enumerate(marks)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
        "model": {
            "type": "BPE",
            "vocab": {piece: number for number, piece in enumerate(pieces)}
            | {f"<filler {number}>": number for number in range(len(pieces), first)},
            "merges": list(MERGES[1:] if broken else MERGES),
        },
    }


def weights(
    vocabulary: int, seed: int = 0, *, frames: int = FRAMES, context: int = CONTEXT
) -> dict[str, Array]:
    """Return the tensors by CTranslate2's names, in float16."""
    dice = np.random.default_rng(seed)

    def drawn(*shape: int) -> Array:
        return (dice.standard_normal(shape) * 0.2).astype(np.float16)

    found = {
        "decoder/embeddings/weight": drawn(vocabulary, WIDTH),
        "decoder/position_encodings/encodings": drawn(context, WIDTH),
        "encoder/position_encodings/encodings": drawn(frames, WIDTH),
        "encoder/conv1/weight": drawn(WIDTH, MELS, 3),
        "encoder/conv2/weight": drawn(WIDTH, WIDTH, 3),
        "encoder/conv1/bias": drawn(WIDTH),
        "encoder/conv2/bias": drawn(WIDTH),
    }
    for name, rows, columns in _linears():
        if columns:
            found[f"{name}/weight"] = drawn(rows, columns)
            found[f"{name}/bias"] = drawn(rows)
        else:
            found[f"{name}/gamma"] = drawn(rows)
            found[f"{name}/beta"] = drawn(rows)
    for name in found:
        if name.endswith("self_attention/linear_0/bias"):
            found[name][WIDTH : 2 * WIDTH] = 0  # keys have none
        elif name.endswith("/attention/linear_1/bias"):
            found[name][:WIDTH] = 0
    return found


def _linears() -> Iterator[tuple[str, int, int]]:
    """Yield the name, the rows and the columns of each module; a norm has no columns."""
    for side in ("encoder", "decoder"):
        yield f"{side}/layer_norm", WIDTH, 0
        for layer in range(LAYERS):
            start = f"{side}/layer_{layer}"
            yield f"{start}/ffn/layer_norm", WIDTH, 0
            yield f"{start}/ffn/linear_0", INNER, WIDTH
            yield f"{start}/ffn/linear_1", WIDTH, INNER
            yield f"{start}/self_attention/layer_norm", WIDTH, 0
            yield f"{start}/self_attention/linear_0", 3 * WIDTH, WIDTH
            yield f"{start}/self_attention/linear_1", WIDTH, WIDTH
            if side == "decoder":
                yield f"{start}/attention/layer_norm", WIDTH, 0
                yield f"{start}/attention/linear_0", WIDTH, WIDTH
                yield f"{start}/attention/linear_1", 2 * WIDTH, WIDTH
                yield f"{start}/attention/linear_2", WIDTH, WIDTH


def model_bin(tensors: Mapping[str, Array], *, spec: str = "WhisperSpec", version: int = 6) -> bytes:
    """Write CTranslate2's file, with the output layer as a second name of the embedding."""
    numbers = {f"{side}/num_heads": np.array(HEADS, np.int16) for side in ("encoder", "decoder")}
    listed = {**tensors, **numbers}
    data = struct.pack("<I", version) + _text(spec) + struct.pack("<II", 3, len(listed))
    for name, values in listed.items():
        data += _text(name) + struct.pack(f"<B{values.ndim}I", values.ndim, *values.shape)
        data += struct.pack("<BI", KINDS[values.dtype.name], values.nbytes) + values.tobytes()
    aliases = {"decoder/projection/weight": "decoder/embeddings/weight"}
    data += struct.pack("<I", len(aliases))
    return data + b"".join(_text(alias) + _text(name) for alias, name in aliases.items())


def _text(text: str) -> bytes:
    data = text.encode() + b"\0"
    return struct.pack("<H", len(data)) + data


def ctranslate2_folder(
    folder: Path, vocabulary: int = 51_865, *, broken: bool = False, seed: int = 0
) -> Path:
    """Write a CTranslate2 folder; its tokenizer lacks the first merge if it is `broken`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(model_bin(weights(vocabulary, seed)))
    config = {"alignment_heads": [[0, 1], [1, 0]], "suppress_ids": [1, 2, 7], "suppress_ids_begin": [220]}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(vocabulary, broken=broken)))
    (folder / "vocabulary.txt").write_text("a\nb\n")
    return folder


def huggingface_folder(source: Path, into: Path) -> Path:
    """Write the Hugging Face folder of the same model, as an import of localspec describes it."""
    from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper
    from localspec.formats.whisper import settings

    into.mkdir(parents=True, exist_ok=True)
    opened = Ctranslate2Whisper.open(source)
    tokens = json.loads((source / "tokenizer.json").read_text())
    marks = settings.tokenizer_marks(source / "tokenizer.json", tokens)
    config = settings.model_config(opened, marks)
    generation = settings.generation_config(source, marks, config["vocab_size"], CONTEXT)
    stored = {name: opened.stored(name) for name in opened.names}
    write_safetensors(into / "model.safetensors", stored)
    for name, values in (
        ("config.json", config),
        ("generation_config.json", generation),
        ("tokenizer.json", tokens),
    ):
        (into / name).write_text(json.dumps(values))
    return into
