"""A model on disk: its weight files, tokenizer, chat template and generation defaults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localspec.errors import PromptError, UnknownModel, UnsupportedModel
from localspec.formats.diffusion.config import is_diffusion
from localspec.formats.files import read_json, read_text
from localspec.formats.tokenizer.chat_template import ChatTemplate
from localspec.formats.tokenizer.conversation import ConversationEncoder, Messages, Render, Tools
from localspec.formats.tokenizer.folder import FolderTokenizer, ends_of, open_folder
from localspec.formats.tokenizer.infill import InfillMarks
from localspec.formats.values import MAX_LAYERS, MAX_TOKENS, Values, flag, number, whole
from localspec.formats.vision.config import sees
from localspec.library.manifest import Manifest
from localspec.pictures.messages import counted

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GRAPH = "openvino_model.xml"
FORMATS = ("openvino", "gguf", "safetensors")
# By architecture; all others are models of text.
KINDS = {
    "whisper": "speech",
    "speakers": "diarization",
    "eagle3": "head",
    "k-forcing": "k-forcing",
    "pipo": "pipo",
}

# The sampling parameters of generation_config.json; its other keys configure other libraries.
SAMPLING = {
    "do_sample": bool,
    "temperature": float,
    "top_k": int,
    "top_p": float,
    "min_p": float,
    "repetition_penalty": float,
}


@dataclass(frozen=True)
class StoredModel:
    """A complete model on disk. Its configuration files are read on first use."""

    name: str
    folder: Path  # holds openvino_model.xml, tokenizer.json ...
    manifest: Manifest
    draft: str | None = None  # the catalogue name of its draft model

    @property
    def kind(self) -> str:
        """The kind of model: text, speech, diarization, head, k-forcing or pipo."""
        return KINDS.get(self.manifest.architecture, "text")

    @property
    def is_diffusion(self) -> bool:
        """Return whether it is a diffusion language model, which fills in blocks of masks."""
        return is_diffusion(self.manifest.architecture)

    @property
    def sees(self) -> bool:
        """Return whether it has eyes: its messages may have pictures."""
        return sees(self.manifest.architecture)

    def files_in(self, format: str) -> Path | None:
        """Return its files in one of FORMATS, None if it has none in that format."""
        if format == "openvino":
            return self.folder if (self.folder / GRAPH).is_file() else None
        path = self.folder / self.manifest.weights
        exists = path.is_file() if format == "gguf" else path.is_dir()
        return path if self.manifest.weights and exists else None

    def path_for(self, engine: str, formats: Sequence[str]) -> Path:
        """Return its files in the first of `formats` that it has.

        Raises UnsupportedModel if it has none, UnknownModel if it was removed.
        """
        for format in formats:
            if path := self.files_in(format):
                return path
        if not self.folder.is_dir():
            raise UnknownModel(f"`{self.name}` was removed meanwhile", f"Type `localspec pull {self.name}`")
        if self.manifest.dropped:
            raise self._dropped_error(engine, formats)
        available = [format for format in FORMATS if self.files_in(format)]
        has = " and ".join(available) or "neither"
        raise UnsupportedModel(
            f"`{engine}` reads {' or '.join(formats)}, `{self.name}` has {has}",
            f"Choose another engine, or give the model's own {formats[-1]} files",
        )

    def _dropped_error(self, engine: str, formats: Sequence[str]) -> UnsupportedModel:
        """Return the error for a format that was dropped, with the way to get it again."""
        about = self.manifest
        local = about.source.removeprefix("file:") if about.source.startswith("file:") else ""
        again = f"Give it instead: `{local}`" if local and Path(local).exists() else ""
        fetched = local or about.name
        return UnsupportedModel(
            f"`{engine}` reads {' or '.join(formats)}, which `--drop-source` removed from `{self.name}`",
            again or f"Get it again: `localspec rm {self.name}`, then `localspec pull {fetched}`",
        )

    def kv_bytes_per_token(self) -> int:
        """Return the bytes of one token in a float16 KV cache, 0 if the model does not give its shape."""
        shape = self._shape()
        heads = _count(shape, "num_attention_heads")
        kv_heads = _count(shape, "num_key_value_heads") or heads
        head_dim = _count(shape, "head_dim") or _count(shape, "hidden_size") // (heads or 1)
        return 2 * 2 * self.layer_count() * kv_heads * head_dim

    def layer_count(self) -> int:
        """Return the number of its layers, 0 if the model does not give it."""
        return whole(self._shape(), "num_hidden_layers", 0, least=0, most=MAX_LAYERS)

    def shape(self) -> tuple[int, int]:
        """Return the number of its layers and their width, 0 for what the model does not give."""
        return self.layer_count(), whole(self._shape(), "hidden_size", 0, least=0)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer, the same object on every call."""
        return self._opened.tokenizer

    def template(self) -> ChatTemplate | None:
        """Return the chat template, None if the model has none."""
        sources = _template_sources(self.folder, self._tokenizer_config)
        if "default" not in sources:
            return None
        special = self._opened.special
        with_tools = sources.get("tool_use")
        return ChatTemplate(sources["default"], special=special, with_tools=with_tools, in_parts=self.sees)

    def encode_chat(
        self, messages: Messages, tools: Tools | None = None, render: Render | None = None
    ) -> list[int]:
        """Return the prompt tokens for the next reply; without a chat template, the plain texts joined.

        `render` replaces the chat template's own rendering. The text of special tokens in messages and tools
        stays text. Raises PromptError for half a character, a lone surrogate.
        """
        messages = counted(messages)
        _check_characters(messages, tools)
        template = self.template()
        if template is None:
            text = "\n\n".join(str(message["content"]) for message in messages)
            return self.encode(text)
        return self._conversation_encoder.encode(render or template.render, messages, tools)

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a bare text, with those that begin (BOS) and end every text of the model.

        Raises PromptError for half a character, a lone surrogate.
        """
        _check_characters(text)
        return list(self.tokenizer().encode(text, add_special_tokens=True).ids)

    def encode_infill(self, before: str, behind: str) -> list[int]:
        """Return the prompt for the text between two others, in which the text of special tokens stays text.

        Raises UnsupportedModel for a model that cannot fill in text, and PromptError as `encode` does.
        """
        _check_characters(before, behind)
        marks, tokenizer, encoder = self.infill_marks, self.tokenizer(), self._conversation_encoder
        if marks is None:
            raise UnsupportedModel(
                f"`{self.name}` cannot fill in text: its tokenizer has no tokens for it",
                "Choose a model such as `qwen2.5-coder-0.5b`",
            )
        prompt = self.first_tokens()
        for mark, text in ((marks.before, before), (marks.behind, behind), (marks.answer, "")):
            token = tokenizer.token_to_id(mark)
            assert token is not None, mark  # it was found in the tokenizer
            prompt += [token, *encoder.plain(text, mark)]
        return prompt

    @cached_property
    def infill_marks(self) -> InfillMarks | None:
        """The tokens with which the model fills in text, None if it cannot."""
        return InfillMarks.of(self.tokenizer())

    @cached_property
    def _conversation_encoder(self) -> ConversationEncoder:
        sources = _template_sources(self.folder, self._tokenizer_config)
        return ConversationEncoder(self.tokenizer(), "\n".join(sources.values()))

    def sampling_defaults(self) -> dict[str, Any]:
        """Return the sampling parameters of generation_config.json, empty if it has none.

        Raises BrokenModel for one that is not of its type.
        """
        source = self._values("generation_config.json", self._generation)
        given = {name: kind for name, kind in SAMPLING.items() if source.value(name) is not None}
        readers: dict[type, Callable[[str], Any]] = {
            bool: lambda name: flag(source, name),
            int: lambda name: whole(source, name, least=-1, most=MAX_TOKENS),
            float: lambda name: number(source, name, least=-1.0),
        }
        return {name: readers[kind](name) for name, kind in given.items()}

    def stop_tokens(self) -> list[int]:
        """List the tokens that end an answer."""
        inner = self._config.get("text_config")
        own = self._config.get("eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None)
        configured = self._generation.get("eos_token_id", own)
        eos = self._opened.special.get("eos_token")
        found = [*(configured if isinstance(configured, list) else [configured])]
        found += [self.tokenizer().token_to_id(eos)] if eos is not None else []
        return sorted({token for token in found if type(token) is int and 0 <= token < MAX_TOKENS})

    def first_tokens(self) -> list[int]:
        """List the tokens that start every text, usually one or none."""
        return ends_of(self.tokenizer())[0]

    def _shape(self) -> Values:
        """Return the values of its config.json, else those of its GGUF file under the same names."""
        return self._values("config.json", self._config or self._gguf_shape())

    def _values(self, file: str, values: Mapping[str, Any]) -> Values:
        return Values(self.folder / file, values)

    @cached_property
    def _opened(self) -> FolderTokenizer:
        return open_folder(self.folder)

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

        path = self.files_in("gguf")
        if path is None:
            return {}
        source = GgufFile.open(path)
        return {
            "num_hidden_layers": source.value("block_count"),
            "num_attention_heads": _most(source.value("attention.head_count")),
            "num_key_value_heads": _most(source.value("attention.head_count_kv")),
            "hidden_size": source.value("embedding_length"),
            "head_dim": source.value("attention.key_length"),
        }


def _count(source: Values, key: str) -> int:
    """Return a number of heads or columns, 0 if it is not given."""
    return whole(source, key, 0, least=0)


def _most(heads: Any) -> Any:
    """Return the most heads of any layer, if a value lists them by layer."""
    listed = isinstance(heads, list) and heads and all(type(each) is int for each in heads)
    return max(heads) if listed else heads


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _check_characters(*values: Any) -> None:
    """Raise PromptError if texts in values of JSON hold a lone surrogate, which no tokenizer takes."""
    try:
        json.dumps(values, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        half = f"\\u{ord(error.object[error.start]):04x}"
        raise PromptError(f"The prompt holds half a character, `{half}`", "Check its source") from None


def _template_sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat templates by name, searched in the same order as transformers does."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return {"default": read_text(file)}
    value = config.get("chat_template", _optional(folder / "chat_template.json").get("chat_template"))
    if isinstance(value, str):
        return {"default": value}
    entries = [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []
    named = [(entry.get("name"), entry.get("template")) for entry in entries]
    return {name: text for name, text in named if isinstance(name, str) and isinstance(text, str)}


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write a JSON file of a model folder."""
    path.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", "utf-8")
