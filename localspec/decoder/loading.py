"""Which models a decoder of our own reads: over the weights of transformers' modules, or compressed ones."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from localspec.decoder.card import decoder_of
from localspec.decoder.forward import Decoder
from localspec.decoder.weights import ModuleTensors, Weights, read
from localspec.errors import TooLittleMemory, UnsupportedModel
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.architecture import Architecture, of_folder, of_gguf, of_path
from localspec.formats.graph.weights import FOUR_BITS, GROUPS, WITH_OFFSETS, FolderWeights, GgufWeights
from localspec.formats.graph.weights import Weights as Stored
from localspec.formats.graph_weights.folder import GraphFolder, GraphWeights, is_graph
from localspec.formats.huggingface.packed import PackedFolder, folder_of
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.huggingface.torch_devices import free_memory

SCALED = {"Q4_0": 32, "Q5_0": 32, "Q6_K": 16, "Q8_0": 32}  # columns of a scale that eight bits keep
PACKED = (PackedFolder, GraphFolder)  # folders that tell which matrices they have in 4 bits
_joined: WeakKeyDictionary[Any, Weights] = WeakKeyDictionary()
_joining = threading.Lock()


def of_model(model: Any, path: Path, context: int) -> Decoder:
    """Return a decoder over the weights of a transformers model, which goes on working with them.

    Raises UnsupportedModel for a family that the decoder does not compute, and for texts that it reads only
    up to a part of the model's context.
    """
    shape = of_path(path)
    if shape.context < context:
        raise UnsupportedModel(f"`{path}` changes its positions after {shape.context} tokens")
    return decoder_of(weights_of(model, shape))


def weights_of(model: Any, shape: Architecture, named: Callable[[str], str] = str) -> Weights:
    """Return the weights of a module, which share memory; `named` gives each the name in a language model."""
    import torch

    with _joining, torch.inference_mode(False):
        if model not in _joined:
            _joined[model] = read(shape, ModuleTensors(model, named))
        return _joined[model]


def of_file(path: Path, place: Any, dtype: Any, form: str) -> Decoder:
    """Return a decoder whose matrices are compressed; `form` is int8, or int4 for those in 4 bits as stored.

    Raises UnsupportedModel for a family that the decoder does not compute, and for a file without 4-bit
    matrices that is to have them; TooLittleMemory for a card without room; BrokenModel.
    """
    import torch

    from localspec.decoder.compressed import FileTensors

    if place.type not in ("cpu", "cuda"):
        raise UnsupportedModel(
            f"The torch engine compresses no weights on {place.type}", "Leave `weights` out"
        )
    source, shape = _opened(path, form)
    if place.type == "cuda":
        _check_card(path, place, form)
    with torch.inference_mode(False):
        return decoder_of(read(shape, FileTensors(shape, _stored(source, form), place, dtype, form)))


def table_of(path: Path, place: Any, dtype: Any) -> Any:
    """Return the embedding [vocab, width] of a model file on a device, for a head; raises BrokenModel."""
    import torch

    source, _ = _opened(path, "int8")
    return torch.from_numpy(_stored(source).table("token_embd").values()).to(place, dtype)


def compressed_bytes(path: Path, form: str) -> int:
    """Estimate the bytes of a model's weights in the `form` int8 or int4; raises UnsupportedModel."""
    (source, _), total = _opened(path, form), 0.0
    packed = source.packed if isinstance(source, PACKED) and form == "int4" else set()
    kept = (*FOUR_BITS, *WITH_OFFSETS) if form == "int4" else ()
    for name, info in source.tensors.items():
        count = math.prod(info.shape)
        if len(info.shape) < 2:
            total += 2 * count
        elif name.removesuffix(".weight") in packed or (info.kind in kept and name != "token_embd.weight"):
            total += count * (0.5 + 4 / 32)
        else:
            total += count * (1 + 2 / SCALED.get(info.kind, GROUPS[0]))
    return int(total)


def _opened(path: Path, form: str) -> tuple[GgufFile | SafetensorsFolder, Architecture]:
    """Open a file that is to be compressed; raises UnsupportedModel if it cannot be, and BrokenModel."""
    source = _source(path)
    if isinstance(source, GgufFile):
        shape = of_gguf(source)
    else:
        shape = source.shape if isinstance(source, GraphFolder) else of_folder(source)
    if form == "int4" and not _in_four_bits(source):
        raise UnsupportedModel(
            f"`{path}` has no matrices in 4 bits that the torch engine keeps",
            "Choose `weights=int8`, a GGUF file in Q4_0, Q4_1 or Q4_K, a folder that GPTQ or AWQ packed, "
            "or an OpenVINO graph in INT4",
        )
    return source, shape


def _source(path: Path) -> GgufFile | SafetensorsFolder:
    if not path.is_dir():
        return GgufFile.open(path)
    return GraphFolder(path) if is_graph(path) else folder_of(path)


def _stored(source: GgufFile | SafetensorsFolder, form: str | None = None) -> Stored:
    """Return the tensors of a file for matrices in a `form`, without one for floats."""
    if isinstance(source, GgufFile):
        return GgufWeights(source, offsets=form == "int4", narrow=bool(form), plain=not form)
    return GraphWeights(source) if isinstance(source, GraphFolder) else FolderWeights(source, plain=not form)


def _in_four_bits(source: GgufFile | SafetensorsFolder) -> bool:
    """Return whether a file has matrices in 4 bits as FileTensors keeps them."""
    if isinstance(source, PACKED):
        return bool(source.packed)
    kinds = {info.kind for info in source.tensors.values()}
    return isinstance(source, GgufFile) and bool(kinds & {*FOUR_BITS, *WITH_OFFSETS})


def _check_card(path: Path, place: Any, form: str) -> None:
    """Raise TooLittleMemory for a card without room, UnsupportedModel for one without such products."""
    import torch

    needed, free = compressed_bytes(path, form), free_memory(place)
    if needed > free:
        raise TooLittleMemory(path.name, needed, free)
    if form == "int4" and torch.cuda.get_device_capability(place) < (8, 0):
        raise UnsupportedModel(
            f"{torch.cuda.get_device_name(place)} has no products in 4 bits", "Choose `weights=int8`"
        )
    if find_spec("triton") is None:
        raise UnsupportedModel(
            "Products in 8 bits need Triton, which is not installed", "Type `pip install triton`"
        )
