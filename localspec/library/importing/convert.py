"""Turn a GGUF file or a Hugging Face folder into a folder that the engines read."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.errors import BrokenModel
from localspec.formats.files import read_json
from localspec.formats.tokenizer import vocabulary
from localspec.library.model import write_json
from localspec.library.progress import Progress

# What a Hugging Face folder has beside its weights and we keep as it is.
KEPT = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)

TEMPLATE = "tokenizer.chat_template"
TOOLS_TEMPLATE = f"{TEMPLATE}.tool_use"

# Sampling defaults: a GGUF file's words for them, and generation_config.json's.
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

Facts = dict[str, Any]  # fields of a Manifest


def from_gguf(path: Path, into: Path) -> Facts:
    """Fill `into` with all but the graph from a GGUF file; say what the manifest should."""
    from localspec.formats.gguf.file import GgufFile

    source = GgufFile.open(path)
    vocabulary.from_gguf(source.metadata).save(str(into / "tokenizer.json"))
    write_json(into / "tokenizer_config.json", tokenizer_config(source.metadata))
    write_json(into / "generation_config.json", generation_config(source.metadata))
    template = source.metadata.get(TEMPLATE)
    if isinstance(template, str) and TOOLS_TEMPLATE not in source.metadata:
        (into / "chat_template.jinja").write_text(template, "utf-8")
    context = source.value("context_length", 0)
    return _facts(path, source.architecture, context, source.precision)


def from_folder(path: Path, into: Path) -> Facts:
    """Fill `into` with all but the graph from a Hugging Face folder; say what the manifest should."""
    from localspec.formats.huggingface.safetensors import SafetensorsFolder

    source = SafetensorsFolder.open(path)
    if not (path / "tokenizer.json").is_file():
        raise BrokenModel(f"`{path}` lacks `tokenizer.json`", "Fetch the whole folder")
    for name in KEPT:
        if (path / name).is_file():
            shutil.copyfile(path / name, into / name)
    context = source.value("max_position_embeddings", 0)
    return _facts(path, source.architecture, context, "")


def graph(path: Path, into: Path, progress: Progress) -> Facts:
    """Write the OpenVINO graph of a GGUF file or a Hugging Face folder into the folder `into`."""
    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.graph.ir import import_weights
    from localspec.formats.huggingface.safetensors import SafetensorsFolder

    source = SafetensorsFolder.open(path) if path.is_dir() else GgufFile.open(path)
    return dict(import_weights(source, into, progress))


def described(path: Path) -> Facts:
    """Say what config.json tells of an OpenVINO folder that is used where it is."""
    config = read_json(path / "config.json") if (path / "config.json").is_file() else {}
    architecture, context = config.get("model_type"), config.get("max_position_embeddings")
    return {
        "history": [f"used from {path}"],
        "architecture": architecture if isinstance(architecture, str) else "",
        "context": context if type(context) is int else 0,
    }


def _facts(path: Path, architecture: str, context: Any, precision: str) -> Facts:
    return {
        "history": [f"imported from {path.name}"],
        "architecture": architecture,
        "context": context if type(context) is int else 0,
        "precision": precision,
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Say in Hugging Face's words which tokens are special and whether a text starts with one."""
    texts = metadata["tokenizer.ggml.tokens"]
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    found: dict[str, Any] = {
        # A named class would make transformers 5 cut words in its own way, not as tokenizer.json says.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(vocabulary.first_tokens(metadata)),
    }
    for role, name in roles.items():
        token = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(token) is int and 0 <= token < len(texts):
            found[role] = texts[token]
    if TOOLS_TEMPLATE in metadata:  # two templates have no file of their own to go to
        named = {"default": metadata.get(TEMPLATE, ""), "tool_use": metadata[TOOLS_TEMPLATE]}
        found["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    return found


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Say in Hugging Face's words which tokens end an answer and how to sample."""
    found: dict[str, Any] = {"eos_token_id": vocabulary.stop_tokens(metadata)}
    for key, name in _SAMPLING.items():
        if isinstance(metadata.get(key), (int, float)):
            found[name] = metadata[key]
    if found.get("temperature"):
        found["do_sample"] = True
    return found
