"""Weights of a GGUF file or a Hugging Face folder become an OpenVINO IR, without torch."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, MissingExtra, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import architecture
from localspec.formats.graph.architecture import Architecture
from localspec.formats.graph.builder import Graph
from localspec.formats.graph.paged import first_line
from localspec.formats.graph.weights import FolderWeights, GgufWeights, StateWeights, Weights
from localspec.formats.huggingface.safetensors import SafetensorsFolder


class Progress(Protocol):
    """What a conversion reports to."""

    def step(self, title: str, total: int | None = None) -> None:
        """Begin a step."""


SMALL = 300_000_000  # weights below which a pass spends more on calls than on bytes
FEW_CORES = 2  # with which it spends more on arithmetic


def import_weights(
    source: GgufFile | SafetensorsFolder,
    into: Path,
    progress: Progress,
    minima: bool | None = None,
    plain: bool = False,
) -> dict[str, str]:
    """Write openvino_model.xml, .bin and config.json into the folder `into` and return facts about them.

    Q4_0, Q5_0 and Q8_0 keep their values, other formats are rounded to eight bits. With `minima` Q4_1 and
    Q4_K stay in four bits, their minima in a second product (see linear.py): fewer bytes, more calls and a
    slower start. None chooses that for large models on more than two cores (docs/performance.md).
    `plain` weights are kept in float16, to be quantized anew.
    Raises UnsupportedModel, BrokenModel and, when the disk is full, OSError.
    """
    progress.step(f"Converting {source.path.name} to OpenVINO")
    if isinstance(source, GgufFile):
        shape, precision = architecture.of_gguf(source), source.precision
        if minima is None:
            minima = shape.layers * 12 * shape.width**2 >= SMALL and (os.cpu_count() or 1) > FEW_CORES
        weights: Weights = GgufWeights(source, minima=minima, plain=plain)
    else:
        shape, precision = architecture.of_folder(source), "INT8"
        weights = FolderWeights(source, plain=plain)
    _write(shape, weights, into, progress, source.path)
    return {"precision": "FP16" if plain else precision}


def plain(path: Path, into: Path, progress: Progress) -> dict[str, str]:
    """Write the graph of a GGUF file or a Hugging Face folder with weights in float16; return facts about it.

    Folders of families that localspec does not know are left to optimum-intel. Raises what `import_weights`
    raises, and MissingExtra without optimum-intel.
    """
    opened = SafetensorsFolder.open(path) if path.is_dir() else GgufFile.open(path)
    try:
        return import_weights(opened, into, progress, plain=True)
    except UnsupportedModel:
        if path.is_file():
            raise
    try:
        from optimum.exporters.openvino import main_export
    except ImportError:
        raise MissingExtra("optimum-intel", "export") from None
    main_export(str(path), str(into), task="text-generation-with-past", trust_remote_code=False)
    return {"precision": "FP16"}


def import_state(
    path: Path, state: Mapping[str, NDArray[np.float32]], layers: int, into: Path, progress: Progress
) -> dict[str, str]:
    """Write the graph of a torch model that was made of the file or folder `path` and changed since.

    `state` are its tensors in float32 by Hugging Face's names, `layers` the number that is left.
    """
    if path.is_dir():
        folder = SafetensorsFolder.open(path)
        shape, tied = architecture.of_folder(folder), bool(folder.config.get("tie_word_embeddings"))
    else:
        file = GgufFile.open(path)
        shape, tied = architecture.of_gguf(file), "output.weight" not in file.tensors
    shape = replace(shape, layers=layers, interleaved=False)  # as torch has it
    _write(shape, StateWeights(state, tied=tied), into, progress, path)
    return {"precision": "FP16"}


def _write(shape: Architecture, weights: Weights, into: Path, progress: Progress, path: Path) -> None:
    graph = Graph(shape, weights)
    try:
        model = graph.model()
    except (ValueError, RuntimeError) as error:
        what = f"`{path}` says one shape and its tensors have another: {first_line(error)}"
        raise BrokenModel(what, "Download it again") from error
    progress.step("Writing the OpenVINO model")
    save(model, into)
    if not (into / "config.json").exists():
        (into / "config.json").write_text(json.dumps(config(shape, graph.vocab), indent=2) + "\n", "utf-8")


def save(model: Any, into: Path) -> None:
    """Write an openvino.Model, or raise the OSError that kept it from being written.

    Nodes are named by their place: their own names count all nodes that the process has made so far, and the
    same graph is to be the same file.
    """
    import openvino as ov

    graph = into / "openvino_model.xml"
    for place, node in enumerate(model.get_ordered_ops()):
        if node.get_type_name() != "Parameter":
            node.set_friendly_name(f"{node.get_type_name()}_{place}")
    try:
        ov.save_model(model, graph, compress_to_fp16=False)
    except RuntimeError as error:
        if "iostream error" not in str(error):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(into)) from error


def config(shape: Architecture, vocab: int) -> dict[str, Any]:
    """Say the shape in Hugging Face's words, as other OpenVINO tools expect it beside a model."""
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
