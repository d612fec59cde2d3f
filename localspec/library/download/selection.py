"""Choose which files of a repository make a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from localspec.errors import BrokenModel, UnsupportedModel, UsageError
from localspec.formats.files import weight_map
from localspec.library.download.names import RepoFile
from localspec.library.sources import Source

PREFERRED = "Q4_K_M"
INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"

# Downloaded with the weights: all that a tokenizer, a chat template, generation defaults and eyes may need.
_CONFIGS = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    INDEX,
}
# Downloaded too where a repository has no tokenizer.json: what one can be made from.
_VOCABULARIES = {
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
}
_CTRANSLATE2 = ("model.bin", "config.json", "tokenizer.json")  # of Whisper, as `faster-whisper` reads it
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The files of a repository that make a model."""

    format: str  # openvino, gguf, safetensors or ctranslate2
    files: tuple[RepoFile, ...]  # the weights first


def choose(source: Source, files: Iterable[RepoFile], format: str = "") -> FileSelection:
    """Choose OpenVINO files if present, else a GGUF, else safetensors, else a Whisper model of CTranslate2.

    `format` allows one of the first three only.

    Raises UnsupportedModel if the repository holds no such model, UsageError if the choice is ambiguous.
    """
    names = sorted(files)
    ggufs = [name for name in names if name.endswith(".gguf") and "mmproj" not in name.lower()]
    configs = [name for name in names if name in _CONFIGS]
    if source.file:
        return FileSelection("gguf", (_named(source, ggufs),))
    if format in ("", "openvino") and {"openvino_model.xml", "openvino_model.bin"} <= set(names):
        graph = [name for name in names if re.fullmatch(r"openvino_(model|config)\.\w+", name)]
        return FileSelection("openvino", (*graph, *configs))
    if format in ("", "gguf") and ggufs:
        return FileSelection("gguf", (_preferred(source, ggufs),))
    weights = [name for name in names if re.fullmatch(r"(?!consolidated)[^/]+\.safetensors", name)]
    if SINGLE in weights and INDEX not in names:  # the others are the same in another precision
        weights = [RepoFile(SINGLE)]
    if format in ("", "safetensors") and weights:
        older = [name for name in names if name in _VOCABULARIES and "tokenizer.json" not in names]
        return FileSelection("safetensors", (*weights, *configs, *older))
    if format == "" and set(_CTRANSLATE2) <= set(names):
        return FileSelection("ctranslate2", tuple(map(RepoFile, _CTRANSLATE2)))
    if "openvino_encoder_model.xml" in names:
        raise UnsupportedModel(
            f"`{source}` holds a model with an encoder that another program converted to OpenVINO",
            "Choose the repository that it was converted from, such as `hf:openai/whisper-base`",
        )
    raise UnsupportedModel(
        f"`{source}` holds no {format or 'OpenVINO, GGUF or safetensors'} model", "Choose another repository"
    )


def is_complete(folder: Path, selection: FileSelection) -> bool:
    """Return whether the weights in `folder` are complete, as far as an index or the parts' names tell."""
    if selection.format == "openvino":
        return "tokenizer.json" in selection.files
    if selection.format in ("gguf", "ctranslate2"):
        return True
    present = set(selection.files)
    if INDEX in present:
        try:
            return set(weight_map(folder / INDEX).values()) <= present
        except BrokenModel:
            return False
    counts = {int(match[1]) for name in present if (match := re.search(r"-of-(\d+)\.safetensors$", name))}
    return all(sum(f"-of-{count:05}." in name for name in present) == count for count in counts)


def _named(source: Source, ggufs: list[RepoFile]) -> RepoFile:
    """Find the GGUF by its file name, else by the quantization in its name."""
    if source.file in ggufs:
        return RepoFile(source.file)
    pattern = re.compile(rf"(^|[-._/]){re.escape(source.file)}([-._]|$)", re.IGNORECASE)
    return _single(source, [name for name in ggufs if pattern.search(name)], ggufs)


def _preferred(source: Source, ggufs: list[RepoFile]) -> RepoFile:
    pattern = re.compile(rf"(^|[-._/]){PREFERRED}[-._]", re.IGNORECASE)
    matches = ggufs if len(ggufs) == 1 else [name for name in ggufs if pattern.search(name)]
    return _single(source, matches, ggufs)


def _single(source: Source, matches: list[RepoFile], ggufs: list[RepoFile]) -> RepoFile:
    complete = [name for name in matches if not _PART.search(name)]
    if len(complete) == 1:
        return complete[0]
    if matches and not complete:
        raise UnsupportedModel(
            f"`{matches[0]}` of `{source.name}` is split into several parts",
            "Download and join them with `llama-gguf-split --merge`, then give the joined file",
        )
    listed = "".join(f"\n  hf:{source.name}:{name}" for name in complete or ggufs) or "\n  none"
    what = f"no single GGUF file for `{source.file}`" if source.file else "more than one GGUF file"
    raise UsageError(f"`{source.name}` has {what}", f"Choose one:{listed}")
