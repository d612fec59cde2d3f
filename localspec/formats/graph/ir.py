"""Convert a GGUF file or a Hugging Face folder to OpenVINO IR, without torch."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil
from numpy.typing import NDArray

from localspec.errors import BrokenModel, MissingExtra, UnsupportedModel
from localspec.formats.files import read_json
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.paged import first_line
from localspec.formats.graph.weights import FolderWeights, GgufWeights, StateWeights, Weights
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.model_file import open_weights


class Steps(Protocol):
    """Receives the progress of a conversion."""

    def step(self, title: str, total: int | None = None, unit: str = "") -> AbstractContextManager[None]:
        """Return a step that lasts as long as its `with` block: `total` of a `unit`, if they are known."""

    def advance(self, count: int = 1) -> None:
        """Report that `count` more of the step are done."""

    def say(self, line: str) -> None:
        """Show a line that belongs to no step."""


SHARE = 0.5  # of the main memory that weights in eight bits may take


def import_weights(
    source: GgufFile | SafetensorsFolder,
    into: Path,
    progress: Steps,
    offsets: bool | None = None,
    plain: bool = False,
) -> dict[str, Any]:
    """Write openvino_model.xml, .bin and config.json into the folder `into`; return the manifest's facts.

    Q4_0 keeps its values, other formats are quantized to 8 bits with one scale for up to 256 columns. With
    `offsets` Q4_1 and Q4_K stay in 4 bits, with their offsets in a second product (see linear.py): a quarter
    fewer bytes, slower passes. None chooses that if eight bits would take more than SHARE of the memory. With
    `plain` all weights are dequantized to float16, for a later quantization.
    Raises UnsupportedModel, BrokenModel and, if the disk is full, OSError.
    """
    shape, weights = tensors_of(source, offsets, plain=plain)
    precision = source.precision if isinstance(source, GgufFile) else "INT8"
    _write(shape, weights, into, progress, source.path)
    return {"precision": "FP16" if plain else precision, "context": shape.context}


def tensors_of(
    source: GgufFile | SafetensorsFolder, offsets: bool | None = None, *, plain: bool = False
) -> tuple[Architecture, Weights]:
    """Return the shape of a model and its tensors as `import_weights` writes them; raises as it does."""
    if not isinstance(source, GgufFile):
        return architecture.of_folder(source), FolderWeights(source, plain=plain)
    shape = architecture.of_gguf(source)
    if offsets is None:
        offsets = shape.layers * 12 * shape.width**2 > SHARE * psutil.virtual_memory().total
    return shape, GgufWeights(source, offsets=offsets, plain=plain)


def import_plain(path: Path, into: Path, progress: Steps) -> dict[str, Any]:
    """Write the graph of a GGUF file or a Hugging Face folder in float16; return the manifest's facts.

    optimum-intel converts folders of families that localspec does not support. Raises the errors of
    `import_weights`, and MissingExtra without optimum-intel.
    """
    try:
        return import_weights(open_weights(path), into, progress, plain=True)
    except UnsupportedModel:
        if path.is_file() or SafetensorsFolder.open(path).architecture in architecture.FROM_FOLDERS:
            raise  # optimum-intel would ignore what was refused
    try:
        from optimum.exporters.openvino import main_export
    except ImportError:
        raise MissingExtra("optimum-intel", "export") from None
    main_export(str(path), str(into), task="text-generation-with-past", trust_remote_code=False)
    return {"precision": "FP16"}


def import_state(
    path: Path,
    state: Mapping[str, NDArray[np.float32]],
    layers: int,
    into: Path,
    progress: Steps,
) -> dict[str, str]:
    """Write the graph of a torch model that was loaded from `path` and then changed.

    `state` holds its tensors in float32 by Hugging Face's names, `layers` is its number of layers.
    """
    shape = architecture.of_path(path)
    shape = replace(shape, layers=layers, interleaved=False)  # as transformers orders them
    _write(shape, StateWeights(state), into, progress, path)
    return {"precision": "FP16"}


def _write(shape: Architecture, weights: Weights, into: Path, progress: Steps, path: Path) -> None:
    graph = Graph(shape, weights)
    try:
        with progress.step(f"Converting {path.name} to OpenVINO", shape.layers, "layer"):
            model = graph.model(progress.advance)
    except (ValueError, RuntimeError) as error:
        what = f"The tensors of `{path}` do not fit its own configuration: {first_line(error)}"
        raise BrokenModel(what, "Download it again") from error
    with progress.step("Writing the OpenVINO model"):
        save(model, into)
    _write_config(into / "config.json", config(shape, graph.vocab), progress, path)


def _write_config(file: Path, own: dict[str, Any], progress: Steps, path: Path) -> None:
    """Write the config, or limit the context of one that was copied to that of the graph, and say so."""
    key = "max_position_embeddings"
    found = read_json(file) if file.exists() else {}
    longer = found.get(key)
    if isinstance(longer, int) and longer > own[key]:
        progress.say(
            f"`{path.name}` is used for texts of up to {own[key]:,} tokens, not {longer:,}: "
            "longer ones need other factors for positions, which its graph lacks"
        )
        found[key] = own[key]
    elif found:
        return
    file.write_text(json.dumps(found or own, ensure_ascii=False, indent=2) + "\n", "utf-8")


def save(model: Any, into: Path, name: str = "openvino_model") -> None:
    """Write an openvino.Model as `name`.xml and .bin; raise OSError if the disk is full.

    Nodes are renamed by their position, so that equal graphs give equal files: OpenVINO's default names count
    all nodes that the process ever created.
    """
    import openvino as ov

    graph = into / f"{name}.xml"
    for position, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() != "Parameter":
            node.set_friendly_name(f"{node.get_type_name()}_{position}")
    try:
        ov.save_model(model, graph, compress_to_fp16=False)
    except RuntimeError as error:
        if "iostream error" not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(into)) from error


def config(shape: Architecture, vocab: int) -> dict[str, Any]:
    """Return the config.json of a model, which other OpenVINO tools expect beside it."""
    return {
        "model_type": shape.family,
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.width,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.key_heads,
        "head_dim": shape.head_width,
        "max_position_embeddings": shape.context,
        "vocab_size": vocab,
    }
