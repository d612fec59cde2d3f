"""Whisper's tensors of a CTranslate2 folder under Hugging Face's names, and its settings under its keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.ctranslate2.file import WEIGHTS, Ctranslate2File

SPEC = "WhisperSpec"
FLOATS = ("F32", "F16", "BF16")
SIDES = ("encoder", "decoder")

# CTranslate2's module -> Hugging Face's, or the ones whose rows it holds one after another.
ENCODER_MODULES = {
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "ffn/layer_norm": ("final_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
}
DECODER_MODULES = {
    **ENCODER_MODULES,
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
}


class _Place(NamedTuple):
    """The rows of a stored tensor: part `part` of `parts` of equal length."""

    name: str
    part: int = 0
    parts: int = 1


class Ctranslate2Whisper:
    """The weights of a Whisper model in CTranslate2's format; tensors are read when they are used."""

    def __init__(self, file: Ctranslate2File) -> None:
        """Find each tensor; raise UnsupportedModel for another model or a quantized one, or BrokenModel."""
        if file.spec != SPEC:
            raise UnsupportedModel(f"`{file.path}` holds no Whisper model but a `{printable(file.spec)}`")
        self._file = file
        self.layers = {side: _count_layers(file, side) for side in SIDES}
        self._places = dict(_places(self.layers))
        for name, place in self._places.items():
            self._check(name, place)
        for name in [name for name in self._places if name.endswith("k_proj.bias")]:
            if np.any(self.stored(name)):
                raise UnsupportedModel(f"`{file.path}` has a bias for keys, which Whisper does not have")
            del self._places[name]

    @classmethod
    def open(cls, folder: Path) -> Ctranslate2Whisper:
        """Open `folder`/model.bin; raises as `Ctranslate2File.open` and `__init__` do."""
        return cls(Ctranslate2File.open(folder / WEIGHTS))

    @property
    def names(self) -> list[str]:
        """Hugging Face's names of the tensors, without the output layer, which is the embedding."""
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        place = self._places[name]
        rows, *others = self._file.tensors[place.name].shape
        return (rows // place.parts, *others)

    def stored(self, name: str) -> NDArray[Any]:
        """Return a view of a tensor, in the type it is stored in."""
        place = self._places[name]
        whole = self._file.array(place.name)
        rows = len(whole) // place.parts
        return whole[place.part * rows : (place.part + 1) * rows]

    def array(self, name: str) -> NDArray[np.float32]:
        """Return a copy of a tensor in float32; each float16 value is exact."""
        return self.stored(name).astype(np.float32)

    def shape_config(self) -> dict[str, Any]:
        """Return the model's dimensions under the keys of Hugging Face's config.json."""
        vocabulary, width = self.shape("model.decoder.embed_tokens.weight")
        config: dict[str, Any] = {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "activation_function": "gelu",
            "d_model": width,
            "vocab_size": vocabulary,
            "num_mel_bins": self.shape("model.encoder.conv1.weight")[1],
            "max_source_positions": self.shape("model.encoder.embed_positions.weight")[0],
            "max_target_positions": self.shape("model.decoder.embed_positions.weight")[0],
            "num_hidden_layers": self.layers["encoder"],
            "scale_embedding": False,
            "tie_word_embeddings": True,
            "torch_dtype": "float16",
            "is_encoder_decoder": True,
        }
        for side in SIDES:
            config[f"{side}_layers"] = self.layers[side]
            config[f"{side}_attention_heads"] = self._heads(side)
            config[f"{side}_ffn_dim"] = self.shape(f"model.{side}.layers.0.fc1.weight")[0]
        return config

    def _heads(self, side: str) -> int:
        name = f"{side}/num_heads"
        if name not in self._file.tensors:
            raise BrokenModel(f"`{self._file.path}` has no `{name}`", "Download it again")
        return int(self._file.array(name).reshape(-1)[0])

    def _check(self, name: str, place: _Place) -> None:
        info = self._file.tensors.get(place.name)
        if info is None:
            raise BrokenModel(f"`{self._file.path}` has no `{place.name}`", "Download it again")
        if info.kind not in FLOATS:
            raise UnsupportedModel(
                f"`{self._file.path}` has quantized weights ({info.kind}), which are not read",
                "Give the model as CTranslate2 float16, or its Hugging Face folder",
            )
        if not info.shape or info.shape[0] % place.parts:
            raise BrokenModel(
                f"`{self._file.path}` is damaged: `{place.name}` has the shape {list(info.shape)}",
                "Download it again",
            )


def _count_layers(file: Ctranslate2File, side: str) -> int:
    """Return how many layers a side has; raise BrokenModel for none."""
    count = 0
    while f"{side}/layer_{count}/ffn/linear_0/weight" in file.tensors:
        count += 1
    if not count:
        raise BrokenModel(f"`{file.path}` has no layers of the {side}", "Download it again")
    return count


def _places(layers: dict[str, int]) -> Iterator[tuple[str, _Place]]:
    """Yield Hugging Face's name of each tensor, and its place."""
    for kind in ("weight", "bias"):
        for module in ("conv1", "conv2"):
            yield f"model.encoder.{module}.{kind}", _Place(f"encoder/{module}/{kind}")
    yield "model.decoder.embed_tokens.weight", _Place("decoder/embeddings/weight")
    for side, modules in zip(SIDES, (ENCODER_MODULES, DECODER_MODULES), strict=True):
        yield f"model.{side}.embed_positions.weight", _Place(f"{side}/position_encodings/encodings")
        yield from _module(f"{side}/layer_norm", (f"model.{side}.layer_norm",))
        for layer in range(layers[side]):
            for module, targets in modules.items():
                named = tuple(f"model.{side}.layers.{layer}.{target}" for target in targets)
                yield from _module(f"{side}/layer_{layer}/{module}", named)


def _module(module: str, targets: tuple[str, ...]) -> Iterator[tuple[str, _Place]]:
    """Yield the weight and the bias of each of the modules that `module` holds."""
    kinds = {"weight": "gamma", "bias": "beta"} if module.endswith("layer_norm") else {}
    for kind in ("weight", "bias"):
        for part, target in enumerate(targets):
            yield f"{target}.{kind}", _Place(f"{module}/{kinds.get(kind, kind)}", part, len(targets))
