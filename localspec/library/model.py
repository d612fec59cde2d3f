"""A model on disk, and what the files beside its weights say about using it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel
from localspec.formats.files import read_json
from localspec.formats.template import ChatTemplate
from localspec.library.manifest import Manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GRAPH = "openvino_model.xml"

# What generation_config.json may say about sampling; the rest of it is about other libraries.
SAMPLING = ("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")

_SPECIAL = ("unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class Model:
    """A model whose files are all there. What it says about itself is read when it is asked for."""

    name: str
    folder: Path  # holds openvino_model.xml, tokenizer.json ...
    manifest: Manifest
    draft: str | None = None  # the catalogue's name of a small model that guesses for it

    @property
    def gguf(self) -> Path | None:
        """The GGUF file it was made from, if it is still there."""
        path = self.folder / self.manifest.weights
        return path if self.manifest.weights and path.is_file() else None

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer; the same object at every call."""
        return self._tokenizer

    def template(self) -> ChatTemplate | None:
        """Return the chat template, None when the model has none."""
        sources = _template_sources(self.folder, self._tokenizer_config)
        if "default" not in sources:
            return None
        return ChatTemplate(
            sources["default"],
            bos=self._text_of("bos_token"),
            eos=self._text_of("eos_token"),
            special={name: text for name in _SPECIAL if (text := self._text_of(name))},
            with_tools=sources.get("tool_use"),
        )

    def generation(self) -> dict[str, Any]:
        """Return how the model's makers sample from it; empty when they do not say."""
        return {name: self._generation[name] for name in SAMPLING if self._generation.get(name) is not None}

    def stop_tokens(self) -> list[int]:
        """List every token that ends an answer."""
        named = self._generation.get("eos_token_id", self._config.get("eos_token_id"))
        found = set(named if isinstance(named, list) else [named])
        found.add(self._id_of("eos_token"))
        return sorted(token for token in found if type(token) is int)

    def first_tokens(self) -> list[int]:
        """List the tokens that stand before every text, usually one or none."""
        asked = self._tokenizer_config.get("add_bos_token")
        if isinstance(asked, bool):
            token = self._id_of("bos_token")
            return [token] if asked and token is not None else []
        return list(self.tokenizer().encode("", add_special_tokens=True).ids[:1])

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        path = self.folder / "tokenizer.json"
        try:
            return Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise BrokenModel(f"`{path}` cannot be read: {error}", "Fetch the model again") from None

    @cached_property
    def _tokenizer_config(self) -> dict[str, Any]:
        return _optional(self.folder / "tokenizer_config.json")

    @cached_property
    def _generation(self) -> dict[str, Any]:
        return _optional(self.folder / "generation_config.json")

    @cached_property
    def _config(self) -> dict[str, Any]:
        return _optional(self.folder / "config.json")

    def _text_of(self, role: str) -> str | None:
        """Return the text of a special token; the config has it plain or as a small table."""
        found = self._tokenizer_config.get(role)
        text = found.get("content") if isinstance(found, dict) else found
        return text if isinstance(text, str) else None

    def _id_of(self, role: str) -> int | None:
        text = self._text_of(role)
        return None if text is None else self.tokenizer().token_to_id(text)


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Find the chat templates by name, in the order in which Hugging Face looks."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": file.read_text("utf-8")}
    found = config.get("chat_template", _optional(folder / "chat_template.json").get("chat_template"))
    if isinstance(found, str):
        return {"default": found}
    if isinstance(found, list):
        return {entry["name"]: entry["template"] for entry in found if {"name", "template"} <= entry.keys()}
    return {}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write one of the files that this module reads."""
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")
