"""A transformers causal model with its weights in memory, from a Hugging Face folder or from a GGUF file.

Nothing is fetched and no code of a model is run. The weights of a GGUF file are the values it stands for.
"""

from __future__ import annotations

import json
import math
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import psutil

from localspec.errors import (
    BrokenModel,
    MissingExtra,
    TooLittleMemory,
    UnknownDevice,
    UnsupportedModel,
    no_such_layer,
)
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.architecture import Architecture, of_gguf
from localspec.formats.graph.layer_split import Parts
from localspec.formats.graph.weights import THEIRS, GgufWeights
from localspec.formats.huggingface.safetensors import SafetensorsFolder

ROTARY = "inv_freq"  # the only buffers of the families that GGUF is read for

HEALED = "healed.safetensors"
LAYERS = ".layers."

T = TypeVar("T")
R = TypeVar("R")

_loaded: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_loading = threading.Lock()


def find_device(name: str) -> tuple[str, Any]:
    """Return the name and the torch device that `name` means; raises UnknownDevice."""
    there = _devices()
    whole = {"auto": next(iter(there)), "cuda": "cuda:0", "hpu": "hpu:0"}
    wanted = whole.get(name.lower(), name.lower())
    if wanted not in there:
        raise UnknownDevice(name, ["auto", *there])
    return wanted, there[wanted]


def _devices() -> dict[str, Any]:
    """Return the devices of this machine by name, best first."""
    import torch

    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    there = {f"cuda:{card}": torch.device("cuda", card) for card in range(cards)}
    there |= {f"hpu:{card}": torch.device("hpu", card) for card in range(_gaudis())}
    if torch.backends.mps.is_available():
        there["mps"] = torch.device("mps")
    return there | {"cpu": torch.device("cpu")}


def _gaudis() -> int:
    """Count the Gaudi cards; importing their library is what makes torch know them."""
    try:
        import habana_frameworks.torch.hpu as hpu
    except ImportError:
        return 0
    return int(hpu.device_count()) if hpu.is_available() else 0


def natural(place: Any) -> Any:
    """Return the dtype that a device computes in best."""
    import torch

    if place.type == "cpu":
        return torch.float32
    old = place.type == "cuda" and torch.cuda.get_device_capability(place) < (8, 0)
    return torch.float16 if old or place.type == "mps" else torch.bfloat16


@contextmanager
def out_of_memory(place: Any, what: str) -> Iterator[None]:
    """Turn torch's report of a full device into TooLittleMemory for `what`."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = re.search(r"allocate ([\d.]+) (\w)iB", str(error))
        free = free_memory(place)
        needed = float(asked[1]) * 1024 ** (1 + "KMGT".index(asked[2])) if asked else free
        raise TooLittleMemory(what, int(needed), free) from None


def out_of_memory_halves(items: list[T], run: Callable[[list[T]], list[R]]) -> list[R]:
    """Return what `run` makes of all `items`, of half of them at a time where a card is too full for more."""
    import torch

    try:
        return run(items)
    except torch.OutOfMemoryError:
        if len(items) < 2:
            raise
    torch.cuda.empty_cache()
    half = len(items) // 2
    return out_of_memory_halves(items[:half], run) + out_of_memory_halves(items[half:], run)


def cut(model: Any, layer: int) -> Parts | None:
    """Return the parts of `model`, cut after `layer` layers; None for a family that has no list of layers.

    Their weights are those of the model itself. The first two end without the last norm; the second and third
    take what the one before left as `inputs_embeds`. Whether a family reads it so must be tried. Raises
    BadValue when there is no such layer.
    """
    import torch

    layers, norm = getattr(model.base_model, "layers", None), getattr(model.base_model, "norm", None)
    if not isinstance(layers, torch.nn.ModuleList) or norm is None:
        return None
    if layer >= len(layers):
        raise no_such_layer(layer, len(layers))
    nothing = torch.nn.Identity()
    return Parts(
        _with(model, layers=layers[:layer], norm=nothing),
        _with(model, layers=layers[layer:], norm=nothing),
        _with(model, layers=layers[:0]),
    )


def _with(model: Any, **modules: Any) -> Any:
    """Return a model that has other `modules` in its body and shares all else with `model`."""
    body = _shallow(model.base_model)
    body._modules |= modules
    whole = _shallow(model)
    whole._modules[model.base_model_prefix] = body
    return whole


def _shallow(module: Any) -> Any:
    copied = copy(module)
    copied._modules = dict(module._modules)
    return copied


def values(path: Path) -> int:
    """Count the numbers of a model's tensors, from the headers of its files."""
    found = SafetensorsFolder.open(path) if path.is_dir() else GgufFile.open(path)
    return sum(math.prod(info.shape) for info in found.tensors.values())


def load(path: Path, place: Any, kind: Any) -> Any:
    """Return the model of `path` on the torch device `place` in the torch dtype `kind`.

    One that somebody holds already is returned again, so that all users of a file share its weights. Raises
    BrokenModel, UnsupportedModel and TooLittleMemory.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    state = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists())
    key = (path.resolve(), state, str(place), str(kind))
    with _loading, _silent():
        model = _loaded.get(key)
        if model is None:
            model = _of_folder(path, kind) if path.is_dir() else _of_gguf(path, kind)
            _check_memory(path, model, place)
            model = model.to(place).eval().requires_grad_(False)
            _loaded[key] = model
    return model


@contextmanager
def _silent() -> Iterator[None]:
    """Keep transformers and torch from writing on stderr."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def own(path: Path, place: Any, kept: Sequence[int] | None = None) -> Any:
    """Return the model of `path` in float32, to be changed: it shares nothing with those of `load`.

    `kept` are the layers that it keeps, None for all. Raises what `load` raises, and UnsupportedModel for a
    family whose layers are in no list.
    """
    import torch

    with _silent():
        model = _of_folder(path, torch.float32) if path.is_dir() else _of_gguf(path, torch.float32)
    if kept is not None:
        layers = getattr(model.base_model, "layers", None)
        if not isinstance(layers, torch.nn.ModuleList):
            raise UnsupportedModel(f"`{path}` keeps its layers where they cannot be taken out")
        model.base_model.layers = torch.nn.ModuleList(layers[layer] for layer in kept)
        for number, layer in enumerate(model.base_model.layers):
            for module in layer.modules():
                if hasattr(module, "layer_idx"):  # its place in the cache
                    module.layer_idx = number
        model.config.num_hidden_layers = len(kept)
        types = getattr(model.config, "layer_types", None)
        if types:
            model.config.layer_types = [types[layer] for layer in kept]
    _check_memory(path, model, place)
    return model.to(place)


def save_healed(model: Any, layers: Sequence[int] | None, folder: Path) -> None:
    """Write what is in the layers of `model` in float16 into `folder`, for who makes other files of it.

    `layers` are the numbers that they have in the model they are from, None for all.
    """
    from safetensors.torch import save_file

    values = {
        name: value.half().cpu().contiguous() for name, value in model.state_dict().items() if LAYERS in name
    }
    save_file(values, folder / HEALED, {"layers": json.dumps(layers)})


def load_healed(model: Any, layers: Sequence[int] | None, file: Path) -> None:
    """Put what `save_healed` wrote into `model`; raises BrokenModel unless it is of the same `layers`."""
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    wanted = None if layers is None else list(layers)
    try:
        with safe_open(file, "pt") as opened:
            found = json.loads((opened.metadata() or {}).get("layers", "0"))
        if found != wanted:
            raise BrokenModel(f"`{file}` is of the layers {found}, and kept are {wanted}")
        wrong = model.load_state_dict(load_file(file), strict=False)
    except (OSError, SafetensorError, RuntimeError) as error:
        raise BrokenModel(f"`{file}` cannot be read: {_line(error)}") from None
    missing = [name for name in wrong.missing_keys if LAYERS in name]
    if missing or wrong.unexpected_keys:
        raise BrokenModel(f"`{file}` is of another model")


def check_extra() -> None:
    """Raise MissingExtra unless torch and transformers are there."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "torch", "export") from None


def _check_memory(path: Path, model: Any, place: Any) -> None:
    if place.type != "cuda":
        return
    needed = sum(found.numel() * found.element_size() for found in model.parameters())
    if needed > free_memory(place):
        raise TooLittleMemory(path.name, needed, free_memory(place))


def free_memory(place: Any) -> int:
    """Return the bytes that are free on a device, those included that torch holds ready."""
    import torch

    if place.type != "cuda":
        return int(psutil.virtual_memory().available)
    ready = torch.cuda.memory_reserved(place) - torch.cuda.memory_allocated(place)
    return int(torch.cuda.mem_get_info(place)[0] + ready)


def _of_folder(path: Path, kind: Any) -> Any:
    folder = SafetensorsFolder.open(path)
    import transformers
    from safetensors import SafetensorError

    release = [int(part) for part in transformers.__version__.split(".")[:2]]
    options = {"dtype" if release >= [4, 56] else "torch_dtype": kind}
    try:
        model, found = transformers.AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, trust_remote_code=False, output_loading_info=True, **options
        )
    except (SafetensorError, OSError, RuntimeError) as error:
        raise BrokenModel(f"`{path}` cannot be loaded: {_line(error)}", "Download it again") from None
    except (ValueError, KeyError, AttributeError, TypeError, ImportError) as error:
        raise UnsupportedModel(
            f"`{path}` is a `{folder.architecture}` model, which transformers {transformers.__version__} "
            f"cannot load: {_line(error)}",
            "Code that comes with a model is never run; a newer transformers may know the family",
        ) from None
    missing = sorted(found["missing_keys"])
    if missing:
        raise BrokenModel(f"`{path}` has no tensor `{missing[0]}`", "Download it again")
    return model


def _line(error: BaseException) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")


def _of_gguf(path: Path, kind: Any) -> Any:
    import torch

    file = GgufFile.open(path)
    shape, weights = of_gguf(file), GgufWeights(file, minima=True)
    with torch.device("meta"):
        model = _empty(file, shape, weights)
    names = [name for name in file.tensors if name != "rope_freqs.weight"]  # they are in `shape`
    with ThreadPoolExecutor(2) as pool:
        read = pool.map(lambda name: _tensor(file, shape, weights, name).to(kind), names)
        state = {_theirs(name): found for name, found in zip(names, read, strict=True)}
    try:
        wrong = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        raise BrokenModel(f"`{path}` does not fit its own shape: {_line(error)}", "Download it again") from None
    missing = [name for name in wrong.missing_keys if name != "lm_head.weight" or "output.weight" in names]
    if missing or wrong.unexpected_keys:
        _refuse(path, missing, wrong.unexpected_keys)
    model.tie_weights()
    _set_rotary(model, torch.from_numpy(shape.frequencies))
    return model


def _empty(file: GgufFile, shape: Architecture, weights: GgufWeights) -> Any:
    """Return a model of that shape without weights."""
    import transformers

    for name in ("token_embd.weight", "blk.0.ffn_up.weight"):
        if not weights.has(name):
            raise BrokenModel(f"`{file.path}` has no tensor `{name}`", "Download it again")
    config = transformers.AutoConfig.for_model(
        shape.family,
        vocab_size=file.tensors["token_embd.weight"].shape[0],
        hidden_size=shape.width,
        intermediate_size=file.tensors["blk.0.ffn_up.weight"].shape[0],
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head_width,
        max_position_embeddings=shape.context,
        rms_norm_eps=shape.epsilon,
        rope_theta=float(file.value("rope.freq_base", 10000.0)),
        tie_word_embeddings=not weights.has("output.weight"),
        attention_bias=shape.family != "qwen2" and weights.has("blk.0.attn_q.bias"),
        sliding_window=None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def _tensor(file: GgufFile, shape: Architecture, weights: GgufWeights, name: str) -> Any:
    """Return a tensor in float32, its heads' rows half against half."""
    import torch

    found = weights.vector(name).reshape(file.tensors[name].shape)
    if shape.interleaved and (".attn_q." in name or ".attn_k." in name):
        pairs = found.reshape(-1, shape.head_width // 2, 2, *found.shape[1:])
        found = pairs.swapaxes(1, 2).reshape(found.shape)
    return torch.from_numpy(np.require(found, requirements=["C", "W"]))


def _set_rotary(model: Any, frequencies: Any) -> None:
    """Put the file's own frequencies where transformers computes some from the config."""
    for module in model.modules():
        for name in [name for name, _ in module.named_buffers(recurse=False)]:
            assert name.endswith(ROTARY), name
            module.register_buffer(name, frequencies.clone(), persistent=False)
        if hasattr(module, f"original_{ROTARY}"):
            setattr(module, f"original_{ROTARY}", frequencies.clone())


def _theirs(name: str) -> str:
    """Return Hugging Face's name of a tensor, or the name itself where there is none."""
    *layer, part, suffix = name.split(".")
    if part not in THEIRS:
        return name
    return f"model.layers.{layer[1]}.{THEIRS[part]}.{suffix}" if layer else f"{THEIRS[part]}.{suffix}"


def _refuse(path: Path, missing: list[str], unknown: list[str]) -> None:
    if missing:
        raise BrokenModel(f"`{path}` has no tensor for `{missing[0]}`", "Download it again")
    raise UnsupportedModel(
        f"`{path}` has a tensor `{unknown[0]}`, which this family does not have",
        "Run it with another engine: `localspec parts engines`",
    )
