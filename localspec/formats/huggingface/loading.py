"""Load a transformers causal model from a Hugging Face folder or from a GGUF file.

Nothing is downloaded and no code of a model is run. The weights of a GGUF file are dequantized.
"""

from __future__ import annotations

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
from localspec.formats.graph.architecture import Architecture, gguf_refusal, of_gguf
from localspec.formats.graph.weights import GGUF_NAME, HF_NAMES, GgufWeights, hf_name
from localspec.formats.huggingface import folder_checks
from localspec.formats.huggingface.folder_checks import OTHER, ROTARY
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.huggingface.torch_devices import check_memory
from localspec.formats.values import Values, number
from localspec.formats.vision.config import sees

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

    folder_checks.check_quantization(folder)
    options = dtype_option(dtype) | {"local_files_only": True, "trust_remote_code": False}
    try:
        config = transformers.AutoConfig.from_pretrained(path, **options)
        folder_checks.check_values(
            Values(path / "config.json", config.to_dict())
        )  # with the library's defaults
        for part in _parts(config.to_dict()):
            folder_checks.check_sizes(folder, Values(path / "config.json", part))
        if _release()[0] < 5:
            folder_checks.use_rope_parameters(folder, config)
        made_by = "AutoModelForImageTextToText" if sees(folder.architecture) else "AutoModelForCausalLM"
        model, info = getattr(transformers, made_by).from_pretrained(
            path, config=config, output_loading_info=True, **options
        )
    except LocalspecError:
        raise
    except (SafetensorError, OSError, RuntimeError) as error:  # RecursionError included
        if folder.value("quantization_config"):  # what it needs, such as a GPU
            raise UnsupportedModel(f"`{path}` cannot be loaded: {first_line(error)}", OTHER) from None
        raise BrokenModel(f"`{path}` cannot be loaded: {first_line(error)}", "Download it again") from None
    except Exception as error:  # the library raises nothing narrower for a config that it cannot use
        raise UnsupportedModel(
            f"`{path}` is a `{folder.architecture}` model, which transformers {transformers.__version__} "
            f"cannot load: {first_line(error)}",
            "A newer transformers may support the family; code that comes with a model is never run",
        ) from None
    folder_checks.check_tensors(folder, config, info)
    return model


def dtype_option(dtype: Any) -> dict[str, Any]:
    """Return the option by which transformers loads a model in a torch `dtype`."""
    return {"dtype" if _release() >= [4, 56] else "torch_dtype": dtype}


def _release() -> list[int]:
    """Return the first two numbers of the version of transformers."""
    import transformers

    return [int(part) for part in transformers.__version__.split(".")[:2]]


def _parts(config: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a config, and those of the text part and of the eyes within it."""
    inner = (config.get(key) for key in ("text_config", "vision_config"))
    return [config, *(part for part in inner if isinstance(part, dict))]


def _from_gguf(path: Path, dtype: Any) -> Any:
    import torch

    if reason := gguf_refusal(path):
        raise UnsupportedModel(reason, "Use the model's own safetensors, or another engine")
    file = GgufFile.open(path)
    shape, weights = of_gguf(file), GgufWeights(file, offsets=True)
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
    _set_rotary(model, torch.from_numpy(shape.frequencies), shape.rope_scale)
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
        tie_word_embeddings=shape.tied,
        attention_bias=shape.family != "qwen2" and weights.has("blk.0.attn_q.bias"),
        mlp_bias=weights.has("blk.0.ffn_up.bias"),
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


def _set_rotary(model: Any, frequencies: Any, scale: float) -> None:
    """Replace the rotary frequencies that transformers computes from the config by the file's own.

    `scale` multiplies cosines and sines.
    """
    for module in model.modules():
        for name in [name for name, _ in module.named_buffers(recurse=False)]:
            assert name.endswith(ROTARY), name
            module.register_buffer(name, frequencies.clone(), persistent=False)
            module.attention_scaling = scale
        if hasattr(module, f"original_{ROTARY}"):
            setattr(module, f"original_{ROTARY}", frequencies.clone())


def _hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor, or the name itself if it is unknown."""
    match = GGUF_NAME.fullmatch(name)
    return hf_name(name) if match and match[2] in HF_NAMES else name


def _wrong_tensors(path: Path, missing: list[str], unknown: list[str]) -> Exception:
    what = f"no tensor for `{missing[0]}`" if missing else f"the tensor `{printable(unknown[0])}`"
    return UnsupportedModel(f"`{path}` has {what}, unlike its family in transformers", OTHER)
