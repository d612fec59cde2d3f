"""Load a transformers causal model from a Hugging Face folder or from a GGUF file.

Nothing is downloaded and no code of a model is run. The weights of a GGUF file are dequantized.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from localspec.errors import BrokenModel, LocalspecError, MissingExtra, UnsupportedModel, printable
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph.architecture import LLAMA_LIKE, Architecture, of_gguf
from localspec.formats.graph.weights import GGUF_NAME, HF_NAMES, GgufWeights, hf_name
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.huggingface.torch_devices import check_memory
from localspec.formats.values import MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Values, number, whole

PACKED = 16  # weights that a stored number holds at most
ROTARY = "inv_freq"  # the only buffers of the families that GGUF files are loaded for

_loaded: WeakValueDictionary[tuple[Any, ...], Any] = WeakValueDictionary()
_loading = threading.Lock()


def load(path: Path, device: Any, dtype: Any) -> Any:
    """Return the model of `path` on a torch `device` in a torch `dtype`.

    A model that is still in use is returned again, so that all users of a file share its weights. Raises
    BrokenModel, UnsupportedModel and TooLittleMemory.
    """
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.exists())
    key = (path.resolve(), stamps, str(device), str(dtype))
    with _loading, silenced():
        model = _loaded.get(key)
        if model is None:
            model = _load(path, dtype)
            check_memory(path.name, model, device)
            model = model.to(device).eval().requires_grad_(False)
            _loaded[key] = model
    return model


def load_trainable(path: Path, device: Any, kept: Sequence[int] | None = None) -> Any:
    """Return the model of `path` in float32, for training: it shares nothing with those of `load`.

    `kept` are the layers to keep, None for all. Raises the errors of `load`, and UnsupportedModel for a
    family without a list of layers.
    """
    import torch

    with silenced():
        model = _load(path, torch.float32)
    if kept is not None:
        _keep_layers(path, model, kept)
    check_memory(path.name, model, device)
    return model.to(device)


def _keep_layers(path: Path, model: Any, kept: Sequence[int]) -> None:
    import torch

    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise UnsupportedModel(f"`{path}` has no list of layers to remove some from")
    model.base_model.layers = torch.nn.ModuleList(layers[layer] for layer in kept)
    for place, layer in enumerate(model.base_model.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):  # its index in the KV cache
                module.layer_idx = place
    model.config.num_hidden_layers = len(kept)
    types = getattr(model.config, "layer_types", None)
    if types:
        model.config.layer_types = [types[layer] for layer in kept]


@contextmanager
def silenced() -> Iterator[None]:
    """Keep transformers and torch from writing to stderr."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def check_extra() -> None:
    """Raise MissingExtra unless torch and transformers are installed."""
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingExtra(error.name or "torch", "export") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop."""
    return printable(str(error).strip().split("\n")[0].rstrip("."), 300)


def _load(path: Path, dtype: Any) -> Any:
    return _from_folder(path, dtype) if path.is_dir() else _from_gguf(path, dtype)


def _from_folder(path: Path, dtype: Any) -> Any:
    folder = SafetensorsFolder.open(path)
    import transformers
    from safetensors import SafetensorError

    release = [int(part) for part in transformers.__version__.split(".")[:2]]
    options = {"dtype" if release >= [4, 56] else "torch_dtype": dtype}
    options |= {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **options)
        _check_sizes(folder, Values(path / "config.json", config.to_dict()))  # with the library's defaults
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            path, config=config, output_loading_info=True, **options
        )
    except LocalspecError:
        raise
    except (SafetensorError, OSError, RuntimeError) as error:  # RecursionError included
        raise BrokenModel(f"`{path}` cannot be loaded: {first_line(error)}", "Download it again") from None
    except Exception as error:  # the library raises nothing narrower for a config that it cannot use
        raise UnsupportedModel(
            f"`{path}` is a `{folder.architecture}` model, which transformers {transformers.__version__} "
            f"cannot load: {first_line(error)}",
            "A newer transformers may support the family; code that comes with a model is never run",
        ) from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise BrokenModel(f"`{path}` has no tensor `{missing[0]}`", "Download it again")
    return model


def _check_sizes(folder: SafetensorsFolder, config: Values) -> None:
    """Raise BrokenModel for a config of a far larger model than the tensors: all of it would be allocated."""
    stored = sum(math.prod(info.shape) for info in folder.tensors.values())
    most = stored * (PACKED if folder.value("quantization_config") else 2)
    width, layers = _size(config, "hidden_size"), _size(config, "num_hidden_layers", MAX_LAYERS)
    heads = _size(config, "num_attention_heads") * _size(config, "head_dim")
    for key, values in (
        ("vocab_size", width * _size(config, "vocab_size", MAX_TOKENS)),
        ("intermediate_size", width * layers * _size(config, "intermediate_size")),
        ("head_dim", width * layers * heads),
    ):
        if values > most:
            raise BrokenModel(
                f"`{key}` of `{folder.path}` stands for {values:,} weights and its files have {stored:,}",
                "Download it again",
            )


def _size(config: Values, key: str, most: int = MAX_WIDTH) -> int:
    """Return a size that a config gives; 1, which allows everything, if it gives none or one by layer."""
    return 1 if isinstance(config.value(key), list) else whole(config, key, 1, most=most)


def _from_gguf(path: Path, dtype: Any) -> Any:
    import torch

    file = GgufFile.open(path)
    shape, weights = of_gguf(file), GgufWeights(file, offsets=True)
    if shape.family not in LLAMA_LIKE:
        raise UnsupportedModel(
            f"`{path}` is a `{shape.family}` model, which torch cannot read as GGUF",
            "Use the model's own safetensors",
        )
    with torch.device("meta"):
        model = _empty(file, shape, weights)
    names = [name for name in file.tensors if name != "rope_freqs.weight"]  # part of `shape`
    with ThreadPoolExecutor(2) as pool:
        tensors = pool.map(lambda name: _tensor(file, shape, weights, name).to(dtype), names)
        state = {_hf_name(name): tensor for name, tensor in zip(names, tensors, strict=True)}
    try:
        keys = model.load_state_dict(state, strict=False, assign=True)
    except RuntimeError as error:
        what = f"The tensors of `{path}` do not fit its metadata: {first_line(error)}"
        raise BrokenModel(what, "Download it again") from None
    missing = [name for name in keys.missing_keys if name != "lm_head.weight" or "output.weight" in names]
    if missing or keys.unexpected_keys:
        raise _wrong_tensors(path, missing, keys.unexpected_keys)
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
        rope_theta=number(file, "rope.freq_base", 10000.0),
        tie_word_embeddings=not weights.has("output.weight"),
        attention_bias=shape.family != "qwen2" and weights.has("blk.0.attn_q.bias"),
        sliding_window=None,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return transformers.AutoModelForCausalLM.from_config(config)


def _tensor(file: GgufFile, shape: Architecture, weights: GgufWeights, name: str) -> Any:
    """Return a tensor in float32, the rows of queries and keys paired as first half and second half."""
    import torch

    values = weights.vector(name).reshape(file.tensors[name].shape)
    if shape.interleaved and (".attn_q." in name or ".attn_k." in name):
        pairs = values.reshape(-1, shape.head_width // 2, 2, *values.shape[1:])
        values = pairs.swapaxes(1, 2).reshape(values.shape)
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))


def _set_rotary(model: Any, frequencies: Any) -> None:
    """Replace the rotary frequencies that transformers computes from the config by the file's own."""
    for module in model.modules():
        for name in [name for name, _ in module.named_buffers(recurse=False)]:
            assert name.endswith(ROTARY), name
            module.register_buffer(name, frequencies.clone(), persistent=False)
        if hasattr(module, f"original_{ROTARY}"):
            setattr(module, f"original_{ROTARY}", frequencies.clone())


def _hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor, or the name itself if it is unknown."""
    match = GGUF_NAME.fullmatch(name)
    return hf_name(name) if match and match[2] in HF_NAMES else name


def _wrong_tensors(path: Path, missing: list[str], unknown: list[str]) -> Exception:
    if missing:
        return BrokenModel(f"`{path}` has no tensor for `{missing[0]}`", "Download it again")
    return UnsupportedModel(
        f"`{path}` has the tensor `{printable(unknown[0])}`, which this family does not have",
        "Choose another engine: `localspec parts engines`",
    )
