"""Import a Whisper model: its graphs, its settings, and its tokenizer with the merge that some lack."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.ctranslate2.file import WEIGHTS
from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper
from localspec.formats.files import read_json, weight_files
from localspec.formats.values import MAX_LAYERS, MAX_TOKENS, Values, whole
from localspec.formats.whisper import settings
from localspec.formats.whisper.settings import CONFIG, GENERATION, TOKENIZER
from localspec.formats.whisper.tokenizer_repair import repaired
from localspec.formats.whisper.weights import FAMILY, open_whisper
from localspec.library.model import write_json
from localspec.library.progress import Progress

PUBLISHED = "openvino_encoder_model.xml"  # of OpenVINO's own conversions, and of ours
CTRANSLATE2 = "ctranslate2"


def folder_format(path: Path) -> str:
    """Return the format of a folder's weights: ctranslate2, or safetensors for all others.

    Raises UnsupportedModel for a Whisper model that another program has converted to OpenVINO.
    """
    if (path / PUBLISHED).is_file():
        raise UnsupportedModel(
            f"`{path}` holds a Whisper model that another program converted to OpenVINO: its decoder cannot "
            "be set back to an earlier token",
            "Give the folder that it was converted from, or its name, such as `hf:openai/whisper-base`",
        )
    return (
        CTRANSLATE2 if (path / WEIGHTS).is_file() and not any(path.glob("*.safetensors")) else "safetensors"
    )


def files_of(path: Path) -> list[Path]:
    """List the weight files of a folder in either format; raises UnknownModel if it has none."""
    return [path / WEIGHTS] if folder_format(path) == CTRANSLATE2 else weight_files(path)


def is_speech(format: str, path: Path) -> bool:
    """Return whether a source to import is a model of speech."""
    if format == CTRANSLATE2:
        return True
    file = path / CONFIG
    return format == "safetensors" and file.is_file() and read_json(file).get("model_type") == FAMILY


def kind_of(path: Path) -> str | None:
    """Return what the model of a path is one of, text or speech; None if its files do not tell."""
    if path.is_file():
        return "text"
    file = path / CONFIG
    if (path / WEIGHTS).is_file():
        return "speech"
    if not file.is_file():
        return None
    return "speech" if read_json(file).get("model_type") == FAMILY else "text"


def write_configs(path: Path, into: Path, origin: str) -> dict[str, Any]:
    """Write the settings and the tokenizer of a folder into `into`; return the manifest's facts.

    Raises BrokenModel for files that are missing or hold something else, UnsupportedModel for other models.
    """
    tokenizer = read_json(path / TOKENIZER)
    mended = repaired(tokenizer)
    marks = settings.tokenizer_marks(path / TOKENIZER, tokenizer)
    if (path / WEIGHTS).is_file() and folder_format(path) == CTRANSLATE2:
        config, given = settings.model_config(Ctranslate2Whisper.open(path), marks), {}
    else:
        config, given = read_json(path / CONFIG), _optional(path / GENERATION)
    source = Values(path / CONFIG, config)
    context, vocabulary = whole(source, "max_target_positions"), whole(source, "vocab_size", most=MAX_TOKENS)
    layers = whole(source, "decoder_layers", most=MAX_LAYERS)
    generation = settings.generation_config(path, marks, vocabulary, context) | given
    write_json(into / CONFIG, config)
    write_json(into / GENERATION, _with_heads(generation, layers))
    (into / TOKENIZER).write_text(json.dumps(mended or tokenizer, ensure_ascii=False), "utf-8")
    note = ["the first merge of its tokenizer was missing, and added"] if mended else []
    return {
        "history": [f"imported from {origin}", *note],
        "architecture": FAMILY,
        "context": context,
        "precision": "int8",
    }


def write_graph(path: Path, into: Path, name: str, progress: Progress) -> None:
    """Write the OpenVINO graphs of a folder's model, whose settings are in `into` already."""
    from localspec.formats.whisper import graphs as whisper

    whisper.write(open_whisper(path), read_json(into / CONFIG), into, progress, name)


def _optional(path: Path) -> dict[str, Any]:
    """Return a JSON file, empty if it is missing: older folders of Whisper lack generation_config.json."""
    return read_json(path) if path.is_file() else {}


def _with_heads(generation: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Return generation_config.json without heads of layers that the decoder does not have.

    Distilled models name the heads of the model they were made from. Raises BrokenModel for other values.
    """
    heads = generation.get("alignment_heads") or []
    if not isinstance(heads, list) or not all(
        isinstance(head, list) and len(head) == 2 and all(type(part) is int for part in head)
        for head in heads
    ):
        raise BrokenModel(f"`alignment_heads` of `{GENERATION}` are no pairs of numbers", "Download it again")
    kept = [head for head in heads if 0 <= head[0] < layers]
    return {**generation, "alignment_heads": kept} if heads else dict(generation)
