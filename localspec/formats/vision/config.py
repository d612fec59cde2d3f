"""Vision-language models: their families, and the text part of a folder as a folder of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localspec.errors import UnsupportedModel, printable
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.values import MAX_TOKENS, Values, shown, text, whole

LLAVA, QWEN = "llava", "qwen2_5_vl"
FAMILIES = (LLAVA, QWEN)
PICTURE = {LLAVA: ("image_token_index", "image_token_id"), QWEN: ("image_token_id",)}
EYES = re.compile(r"(model\.)?(vision_tower|multi_modal_projector|visual|image_newline)\b")
TEXT = (  # how files of either age begin the names of the text part, and how a language model's do
    (re.compile(r"^language_model\."), ""),
    (re.compile(r"^model\.language_model\."), "model."),
)
TEXT_FAMILY = {LLAVA: ("llama", "mistral", "qwen2"), QWEN: ("qwen2",)}
TEXT_SIZES = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}  # of all these
CLIP = "clip_vision_model"
TOWERS = {CLIP: 32, "siglip_vision_model": 16}  # of LLaVA models, and their usual patches
USUAL = {"model_type": CLIP, "image_size": 336, "patch_size": 14}  # of a config without any
SIDE = 224  # pixels of a picture that either takes
OUTER = ("tie_word_embeddings", "quantization_config")  # what a config says of its text part too
WHOLE = ("default", "full")  # whether the state of a class is dropped, if there is one, or kept


def sees(model_type: str) -> bool:
    """Return whether models of a type have eyes that localspec knows."""
    return model_type in FAMILIES


@dataclass(frozen=True, slots=True)
class Tower:
    """The eyes of a LLaVA: squares of `side` pixels are cut into patches, whose states become tokens.

    `more` is the difference of tokens to patches: a state of a class precedes them, or one of them is
    dropped.
    """

    side: int
    patch: int
    more: int

    @property
    def tokens(self) -> int:
        """The tokens of a picture."""
        across = self.side // self.patch
        return across * across + self.more


@dataclass(frozen=True, slots=True)
class SeeingShape:
    """How a model with eyes reads pictures among tokens.

    `token` is the one that stands for a part of a picture. With `sections` the rotary pairs of a head have
    positions in time, height and width, so many of each (Qwen2-VL, 2409.12191, section 2.1). A LLaVA has a
    `tower`.
    """

    family: str
    token: int
    sections: tuple[int, int, int] | None = None
    tower: Tower | None = None


def read(folder: SafetensorsFolder) -> SeeingShape:
    """Read how a model reads pictures; raises UnsupportedModel for another family, and BrokenModel."""
    family = folder.architecture
    if not sees(family):
        raise UnsupportedModel(
            f"`{folder.path}` is a `{printable(family)}` model, whose pictures localspec does not read",
            f"Models that see: {', '.join(FAMILIES)}",
        )
    source = Values(folder.path / "config.json", folder.config)
    keys = [key for key in PICTURE[family] if folder.value(key) is not None] or [PICTURE[family][0]]
    token = whole(source, keys[0], least=0, most=MAX_TOKENS)
    if family == QWEN:
        return SeeingShape(family, token, sections=_sections(folder))
    return SeeingShape(family, token, tower=_tower(folder))


def _tower(folder: SafetensorsFolder) -> Tower:
    """Return the eyes of a LLaVA, absent keys as transformers fills them in; raises UnsupportedModel."""
    found, file = folder.value("vision_config"), folder.path / "config.json"
    source = Values(file, found if isinstance(found, Mapping) else USUAL)
    kind = text(source, "model_type", CLIP)
    if kind not in TOWERS:
        raise UnsupportedModel(
            f"The eyes of `{folder.path}` are a `{printable(kind)}`, which is not supported"
        )
    selected = text(Values(file, folder.config), "vision_feature_select_strategy", WHOLE[0])
    if selected not in WHOLE:
        raise UnsupportedModel(
            f"`vision_feature_select_strategy` of `{file}` is `{printable(selected)}`, expected "
            f"{' or '.join(WHOLE)}"
        )
    first = kind == CLIP  # the state of a class, before those of patches
    side, patch = whole(source, "image_size", SIDE), whole(source, "patch_size", TOWERS[kind])
    return Tower(side, patch, int(first) - int(selected == WHOLE[0]))


def _sections(folder: SafetensorsFolder) -> tuple[int, int, int]:
    """Return the rotary pairs that have positions in time, height and width."""
    inner = folder.value("text_config")
    for source in (inner if isinstance(inner, Mapping) else {}, folder.config):
        for key in ("rope_parameters", "rope_scaling"):
            values = source.get(key)
            found = values.get("mrope_section") if isinstance(values, Mapping) else None
            if isinstance(found, list) and len(found) == 3 and all(type(n) is int and n >= 0 for n in found):
                return found[0], found[1], found[2]
    raise UnsupportedModel(f"`{folder.path / 'config.json'}` has no `mrope_section` of three numbers")


def text_part(folder: SafetensorsFolder, values: Mapping[str, Any]) -> SafetensorsFolder:
    """Return the text part of a model with eyes as the folder of a language model.

    `values` is the config of the text part, with a library's defaults filled in. Raises UnsupportedModel for
    a language model of a family that goes with no eyes here.
    """
    family = folder.architecture
    own = str(values.get("model_type"))
    name = "qwen2" if family == QWEN else own
    if name not in TEXT_FAMILY[family]:
        raise UnsupportedModel(
            f"The text part of `{folder.path}` is a `{printable(shown(own))}` model, which is not supported "
            "behind eyes",
            f"Supported there: {', '.join(TEXT_FAMILY[family])}",
        )
    config = {**values, "model_type": name, "architectures": [f"{name}ForCausalLM"]}
    if family == QWEN:  # every token of a text has one position in all three sections
        for key in ("rope_scaling", "rope_parameters"):
            found = config.get(key)
            if isinstance(found, Mapping):
                kept = {k: v for k, v in found.items() if k != "mrope_section"}
                kind = kept.get("rope_type", kept.get("type", "default"))
                kept |= {"rope_type": "default"} if kind in ("mrope", "default") else {}
                kept.pop("type", None)
                config[key] = kept
    names = {text_name(name): name for name in folder.tensors if not EYES.match(name)}
    return folder.part(config, names)


def language_model(folder: SafetensorsFolder) -> SafetensorsFolder:
    """Return the text part of a LLaVA as a folder from which a graph is built, without any library.

    Raises UnsupportedModel for a family whose text part needs other positions than a graph computes, and for
    eyes or a text part that are not supported; BrokenModel.
    """
    shape = read(folder)
    if shape.sections:
        raise UnsupportedModel(
            f"`{folder.path}` is a `{printable(folder.architecture)}` model: its pictures have positions in "
            "height and width, which OpenVINO graphs of localspec do not compute",
            "Type `--engine torch`, or leave `--engine` out",
        )
    found = folder.value("text_config")
    inner = found if isinstance(found, Mapping) else {}
    given = {key: value for key, value in inner.items() if value is not None}
    outer = {key: folder.config[key] for key in OUTER if key in folder.config}
    return text_part(folder, {"model_type": "llama", **TEXT_SIZES, **outer, **given})


def text_name(name: str) -> str:
    """Return what a language model calls a tensor of the text part."""
    for pattern, beginning in TEXT:
        if pattern.match(name):
            return pattern.sub(beginning, name)
    return name
