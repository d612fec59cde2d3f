"""A model on disk, and what the files beside its weights say about using it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import BrokenModel, UnsupportedModel
from localspec.formats.files import read_json
from localspec.formats.tokenizer.chat_template import ChatTemplate
from localspec.library.manifest import Manifest

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GRAPH = "openvino_model.xml"
FORMS = ("openvino", "gguf", "safetensors")

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

    def form(self, name: str) -> Path | None:
        """Return its files in one of the forms that engines read (`Engine.forms`), None when it has none."""
        if name == "openvino":
            return self.folder if (self.folder / GRAPH).is_file() else None
        path = self.folder / self.manifest.weights
        there = path.is_file() if name == "gguf" else path.is_dir()
        return path if self.manifest.weights and there else None

    def path_for(self, engine: str, forms: Sequence[str]) -> Path:
        """Return its files in the first of `forms` that it has; raises UnsupportedModel when it has none."""
        for name in forms:
            if path := self.form(name):
                return path
        has = [name for name in FORMS if self.form(name)]
        raise UnsupportedModel(
            f"`{engine}` reads {' or '.join(forms)} and `{self.name}` has {' and '.join(has) or 'neither'}",
            f"Another engine reads it, or give a model's own {forms[-1]} files",
        )

    def cache_bytes(self) -> int:
        """Return the bytes that one token takes in a float16 KV cache, 0 where the model does not say."""
        config = self._config or self._gguf_shape()
        heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 0
        width = config.get("head_dim") or config.get("hidden_size", 0) // (
            config.get("num_attention_heads") or 1
        )
        return 2 * 2 * int(config.get("num_hidden_layers") or 0) * int(heads) * int(width)

    def layers(self) -> int:
        """Return the number of its layers, 0 where it does not say."""
        return int((self._config or self._gguf_shape()).get("num_hidden_layers") or 0)

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

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return the tokens that ask for the next turn; the bare texts where there is no chat template."""
        template = self.template()
        if template is None:
            text, first = "\n\n".join(str(message["content"]) for message in messages), self.first_tokens()
        else:
            text, first = template.render(messages), []
        return [*first, *self.tokenizer().encode(text, add_special_tokens=False).ids]

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

    def _gguf_shape(self) -> dict[str, Any]:
        from localspec.formats.gguf.file import GgufFile

        path = self.form("gguf")
        if path is None:
            return {}
        source = GgufFile.open(path)
        return {
            "num_hidden_layers": source.value("block_count"),
            "num_attention_heads": source.value("attention.head_count"),
            "num_key_value_heads": source.value("attention.head_count_kv"),
            "hidden_size": source.value("embedding_length", 0),
            "head_dim": source.value("attention.key_length"),
        }

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
