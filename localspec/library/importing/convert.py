"""Convert a GGUF file or a Hugging Face folder to the files that engines read."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localspec.formats.files import read_json
from localspec.formats.tokenizer import conversion, folder, vocabulary
from localspec.formats.tokenizer.gguf.tokens import GgufTokens
from localspec.library.model import write_json
from localspec.library.progress import Progress

# Copied from a Hugging Face folder; the other files beside its weights are not needed.
COPIED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)

TEMPLATE = "tokenizer.chat_template"
TOOLS_TEMPLATE = f"{TEMPLATE}.tool_use"

# Sampling defaults: GGUF key -> generation_config.json key.
_SAMPLING = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}

Facts = dict[str, Any]  # fields of a Manifest


def from_gguf(path: Path, into: Path) -> Facts:
    """Write all files but the graph into `into` from a GGUF file; return the manifest's facts."""
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
    """Write all files but the graph into `into` from a Hugging Face folder; return the manifest's facts."""
    from localspec.formats.huggingface.safetensors import SafetensorsFolder

    source = SafetensorsFolder.open(path)
    if not (path / "tokenizer.json").is_file():
        conversion.write_fast(path, into)
    for name in COPIED:
        if (path / name).is_file():
            shutil.copyfile(path / name, into / name)
    folder.write_complete(into)
    context = source.value("max_position_embeddings", 0)
    return _facts(path, source.architecture, context, "")


def write_graph(path: Path, into: Path, progress: Progress) -> Facts:
    """Write the OpenVINO graph of a GGUF file or a Hugging Face folder into `into`; return its facts.

    That of a model with eyes is the graph of its text part, and its eyes are written beside it.
    """
    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.graph.ir import import_weights
    from localspec.formats.huggingface.safetensors import SafetensorsFolder
    from localspec.formats.vision import config, stored

    source = SafetensorsFolder.open(path) if path.is_dir() else GgufFile.open(path)
    if not isinstance(source, SafetensorsFolder) or not config.sees(source.architecture):
        return dict(import_weights(source, into, progress))
    text = config.language_model(source)
    facts = dict(import_weights(text, into, progress))
    stored.write(source, text, facts["context"], into)
    return facts


def openvino_facts(path: Path) -> Facts:
    """Return the manifest's facts of an OpenVINO folder that is used in place."""
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
    """Return a tokenizer_config.json with a GGUF's special tokens and chat templates."""
    tokens = GgufTokens.read(metadata)
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    config: dict[str, Any] = {
        # With a model-specific class transformers 5 would ignore the pre-tokenizer of tokenizer.json.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "add_bos_token": bool(tokens.first),
        "add_eos_token": bool(tokens.last),
    }
    for role, name in roles.items():
        token = tokens.role(name)
        if token is not None:
            config[role] = tokens.texts[token]
    if TOOLS_TEMPLATE in metadata:  # chat_template.jinja holds one template only
        named = {"default": metadata.get(TEMPLATE, ""), "tool_use": metadata[TOOLS_TEMPLATE]}
        config["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    return config


def generation_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a generation_config.json with a GGUF's stop tokens and sampling defaults."""
    config: dict[str, Any] = {"eos_token_id": GgufTokens.read(metadata).stops}
    for key, name in _SAMPLING.items():
        if isinstance(metadata.get(key), (int, float)):
            config[name] = metadata[key]
    if config.get("temperature"):
        config["do_sample"] = True
    return config
