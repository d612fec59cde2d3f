"""Files that ask for gigabytes, loop for minutes, or hold something else than a reader expects."""

from __future__ import annotations

import json
import resource
import struct
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fuzz import inputs

from localspec.errors import BadValue, BrokenModel, ModelError, StorageError, UnsupportedModel
from localspec.formats.files import context_length, read_json, weight_files
from localspec.formats.gguf.file import GgufFile
from localspec.formats.graph import layer_split
from localspec.formats.graph.architecture import of_folder, of_gguf
from localspec.formats.huggingface.safetensors import SafetensorsFolder
from localspec.formats.tokenizer import vocabulary
from localspec.formats.tokenizer.opening import open_tokenizer
from localspec.formats.tokenizer.translation import ModelTokenizer, build_translation
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel

WRONG = (
    *([], {}, [7, 8], "7", "", True, -1, 0, 1 << 40, 1 << 70, 0.5, float("nan"), float("inf")),
    *("x" * 300, "\0", [[[]]], {"a": 1}),
)
GIGABYTES = 3 << 30  # of a sparse file: as long as a real model, and nothing but zeros


@contextmanager
def little_memory(most: int = 64 << 20) -> Iterator[None]:
    """Check that the block takes at most so many bytes and a few seconds."""
    started = time.monotonic()
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 60


def sparse(path: Path, start: bytes) -> Path:
    with path.open("wb") as file:
        file.write(start)
        file.truncate(GIGABYTES)
    return path


def gguf_header(values: int, tensors: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, values) + rest


ENTRY = struct.pack("<Q", 1) + b"k"


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (gguf_header(200_000_000, 0), "the metadata has 200,000,000 items"),
        (gguf_header(0, 100_000_000), "the list of tensors has 100,000,000 items"),
        (gguf_header(60_000, 0), "`` is listed twice"),
        (gguf_header(0, 100_000), "`` is listed twice"),
        (gguf_header(1, 0, ENTRY + struct.pack("<IIQ", 9, 0, 1 << 31)), "`k` has 2,147,483,648 items"),
        (gguf_header(1, 0, ENTRY + struct.pack("<IQ", 8, 1 << 30)), "`k` has 1,073,741,824 characters"),
        (gguf_header(1, 0, ENTRY + struct.pack("<II", 9, 9)), "list of the unknown type 9"),
        (gguf_header(0, 1, ENTRY + struct.pack("<IQIQ", 1, 0, 0, 0)), "`k` has no values"),
        (gguf_header(0, 1, ENTRY + struct.pack("<I", 5)), "`k` has 5 dimensions"),
        (gguf_header(0, 1, ENTRY + struct.pack("<I4QIQ", 4, *[1 << 63] * 4, 0, 0)), "is truncated"),
    ],
)
def test_a_damaged_count_of_a_gguf_takes_no_memory(tmp_path: Path, start: bytes, message: str) -> None:
    with little_memory(), pytest.raises(BrokenModel, match=message):
        GgufFile.open(sparse(tmp_path / "m.gguf", start))


def test_the_lists_of_a_gguf_have_a_bound_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.formats.gguf.file.MAX_LISTED", 100)
    lists = b"".join(
        struct.pack("<Q", 1) + bytes([97 + at]) + struct.pack("<IIQ", 9, 0, 40) + bytes(40) for at in range(3)
    )
    with pytest.raises(BrokenModel, match="its metadata lists more than 100 values"):
        GgufFile.open(sparse(tmp_path / "m.gguf", gguf_header(3, 0, lists)))


def test_the_header_of_a_gguf_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("localspec.formats.gguf.file.MAX_HEADER", 200)
    (tmp_path / "m.gguf").write_bytes(inputs.gguf_file(tmp_path))
    with pytest.raises(BrokenModel, match="its header has more than 200 bytes"):
        GgufFile.open(tmp_path / "m.gguf")


NUMBERS_OF_A_GGUF = (
    *("context_length", "embedding_length", "block_count", "attention.head_count", "rope.freq_base"),
    *("attention.head_count_kv", "attention.key_length", "attention.layer_norm_rms_epsilon"),
)


@pytest.mark.parametrize("key", NUMBERS_OF_A_GGUF)
@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
def test_a_wrong_number_of_a_gguf_is_named(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "m.gguf").write_bytes(inputs.gguf_file(tmp_path))
    file = GgufFile.open(tmp_path / "m.gguf")
    file.metadata[f"llama.{key}"] = value
    if key == "attention.layer_norm_rms_epsilon" and value in (0, 0.5):
        return
    with pytest.raises(ModelError, match=f"`{key}` of `.*m.gguf`") as caught:
        of_gguf(file)
    assert caught.value.message.isprintable()


NUMBERS_OF_A_CONFIG = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta"),
)


@pytest.mark.parametrize("key", NUMBERS_OF_A_CONFIG)
@pytest.mark.parametrize("value", WRONG, ids=lambda value: str(value)[:12])
def test_a_wrong_number_of_a_config_is_named(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "model.safetensors").write_bytes(inputs.safetensors())
    (tmp_path / "config.json").write_text(json.dumps(inputs.CONFIG | {key: value}))
    if key == "rms_norm_eps" and value in (0, 0.5):
        return
    with pytest.raises(ModelError, match=f"`{key}` of ") as caught:
        of_folder(SafetensorsFolder.open(tmp_path))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("rope_scaling", value) for value in ([1], "yarn", 7)),
        *(("rope_scaling", inputs.CONFIG["rope_scaling"] | {"factor": value}) for value in (0, [], "4")),
        *(("rope_scaling", {"rope_type": value}) for value in ([], {}, 7, "x" * 300, "\0")),
        ("rope_scaling", inputs.LLAMA3 | {"high_freq_factor": 1.0}),
        ("rope_scaling", inputs.LONGROPE | {"short_factor": [1.0] * 7}),
        ("rope_scaling", inputs.LONGROPE | {"short_factor": [float("nan")] * 8}),
        ("partial_rotary_factor", 1e9),
        ("model_type", "x" * 300),
        ("model_type", ["llama"]),
    ],
)
def test_wrong_positions_and_families_are_refused(tmp_path: Path, key: str, value: Any) -> None:
    (tmp_path / "model.safetensors").write_bytes(inputs.safetensors())
    (tmp_path / "config.json").write_text(json.dumps(inputs.CONFIG | {key: value}))
    with pytest.raises((BrokenModel, UnsupportedModel)) as caught:
        of_folder(SafetensorsFolder.open(tmp_path))
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 50, 0], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [0] * 9, "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [1 << 70], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 4, 8]},
        {"dtype": "x" * 300, "shape": [1], "data_offsets": [8, 4]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        "x",
        7,
        None,
    ],
)
def test_a_wrong_entry_of_safetensors_is_named(tmp_path: Path, entry: Any) -> None:
    (tmp_path / "config.json").write_text("{}")
    header = json.dumps({"t\x1b": entry}).encode()
    (tmp_path / "model.safetensors").write_bytes(inputs.with_header(header, bytes(64)))
    with pytest.raises(BrokenModel, match=r"`t\\x1b` has"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"7",
        b"{",
        b'{"a": ' + b"[" * 100_000,
        b'{"__metadata__": ' + b'{"a":' * 100_000,
        b"\xff{}",
    ],
)
def test_a_header_of_safetensors_that_is_none(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(inputs.with_header(header, b""))
    with pytest.raises(BrokenModel, match="its header is not"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001, 90_000_000])
def test_a_damaged_length_of_safetensors_takes_no_memory(tmp_path: Path, length: int) -> None:
    (tmp_path / "config.json").write_text("{}")
    sparse(tmp_path / "model.safetensors", struct.pack("<Q", length))
    with little_memory(256 << 20), pytest.raises(BrokenModel, match="not a safetensors file|is not JSON"):
        SafetensorsFolder.open(tmp_path)


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "\0", "x" * 300, "a/b", "..", "", "a\x1b[2J"])
def test_an_index_names_no_file_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(BrokenModel, match="which its index names") as caught:
        weight_files(tmp_path)
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"null", b"{", b"\xff\xfe", b'{"a": "\\ud800"}', b'{"\\udfff": 1}', b"[" * 200_000),
        *(b'{"a":' * 200_000, b'{"a": ' + b"9" * 5000 + b"}"),
    ],
)
def test_a_json_file_that_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BrokenModel, match="is damaged"):
        read_json(tmp_path / "config.json")
    assert context_length(tmp_path) == 1 << 20


def test_a_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": "\\ud83d\\ude00"}')
    assert read_json(tmp_path / "config.json") == {"a": "\N{GRINNING FACE}"}


def test_a_json_file_as_large_as_a_model_is_not_read(tmp_path: Path) -> None:
    sparse(tmp_path / "config.json", b"{}")
    with little_memory(), pytest.raises(BrokenModel, match="more than 268,435,456 bytes"):
        read_json(tmp_path / "config.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="cannot be read"):
        read_json(tmp_path / "folder")


def model(folder: Path, **files: Any) -> StoredModel:
    """Return a model with these files, given as JSON values by their stems."""
    (folder / "tokenizer.json").write_bytes(inputs.tokenizer())
    for stem, values in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(values))
    return StoredModel("tiny", folder, Manifest(name="tiny", source="file:x"))


@pytest.mark.parametrize("key", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty", "do_sample"])
@pytest.mark.parametrize("value", [[], {}, [7], "0.7", float("nan"), float("inf"), 1 << 70, "\0"], ids=str)
def test_a_wrong_sampling_default_is_named(tmp_path: Path, key: str, value: Any) -> None:
    found = model(tmp_path, generation_config={key: value})
    with pytest.raises(ModelError, match=f"`{key}` of `.*generation_config.json`"):
        found.sampling_defaults()


def test_right_sampling_defaults_are_read(tmp_path: Path) -> None:
    found = model(tmp_path, generation_config=inputs.GENERATION | {"top_p": 1, "top_k": -1})
    expected = {key: value for key, value in inputs.GENERATION.items() if key != "eos_token_id"}
    assert found.sampling_defaults() == expected | {"top_p": 1.0, "top_k": -1}


@pytest.mark.parametrize("value", [[[1]], {"a": 1}, "9", [9, -1, True, 1 << 70, "x", None, 0.5], None])
def test_stop_tokens_are_ids(tmp_path: Path, value: Any) -> None:
    found = model(tmp_path, generation_config={"eos_token_id": value})
    assert found.stop_tokens() in ([], [9])


@pytest.mark.parametrize("value", [7, [7], [[]], [{"name": [], "template": 7}], [{}], {"a": 1}])
def test_a_chat_template_that_is_none(tmp_path: Path, value: Any) -> None:
    assert model(tmp_path, tokenizer_config={"chat_template": value}).template() is None


def changed_tokenizer(folder: Path, **parts: Any) -> Path:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(inputs.tokenizer()) | parts))
    return path


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"Regex": "("},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"model": {"type": "Unigram", "unk_id": 10**9, "vocab": [["a", -1.0]], "byte_fallback": False}},
        {"model": json.loads(inputs.tokenizer())["model"] | {"unk_token": "none"}, "pre_tokenizer": None},
        {"model": 7},
        {"added_tokens": [{"id": -1}]},
    ],
)
def test_a_panic_of_the_tokenizer_library_is_an_error(tmp_path: Path, parts: dict[str, Any]) -> None:
    with pytest.raises(BrokenModel, match=r"tokenizer\.json` cannot be read"):
        open_tokenizer(changed_tokenizer(tmp_path, **parts))


def test_a_tokenizer_neither_cuts_nor_pads(tmp_path: Path) -> None:
    padding = {"strategy": {"Fixed": 1 << 40}, "direction": "Right", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "a"}
    cutting = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
    tokenizer = open_tokenizer(changed_tokenizer(tmp_path, padding=padding, truncation=cutting))
    assert len(tokenizer.encode("abcdefgh", add_special_tokens=False).ids) == 8


@pytest.mark.parametrize("token", [1 << 22, (1 << 32) - 1])
def test_a_token_id_takes_no_memory(tmp_path: Path, token: int) -> None:
    parts = json.loads(inputs.tokenizer())["model"]
    parts["vocab"]["zz"] = token
    tokenizer = open_tokenizer(changed_tokenizer(tmp_path, model=parts))
    own = ModelTokenizer("tiny", tokenizer)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for use in (lambda: vocabulary.to_gguf(tmp_path, 16), lambda: build_translation(own, own)):
        with pytest.raises(BrokenModel, match=f"has a token {token:,}"):
            use()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KB


def test_heads_that_differ_by_layer_count_as_the_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(inputs.gguf_file(tmp_path))
    found = StoredModel("tiny", tmp_path, Manifest(name="tiny", source="file:x", weights="m.gguf"))
    assert found.kv_bytes_per_token() == 2 * 2 * 1 * 1 * 16
    opened = GgufFile.open(tmp_path / "m.gguf")
    opened.metadata["llama.attention.head_count_kv"] = [1, 2]
    monkeypatch.setattr(GgufFile, "open", lambda path: opened)
    assert found.kv_bytes_per_token() == 2 * 2 * 1 * 2 * 16
    with pytest.raises(UnsupportedModel, match="`attention.head_count_kv` of .* differs by layer"):
        of_gguf(opened)


@pytest.mark.parametrize(
    "config", [{"text_config": [1]}, {"text_config": "x"}, {"num_hidden_layers": [7]}, {}]
)
def test_a_config_without_a_number_of_layers_allows_each(tmp_path: Path, config: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    layer_split.check(tmp_path, 7)
    (tmp_path / "config.json").write_text(json.dumps(config | {"text_config": {"num_hidden_layers": 7}}))
    with pytest.raises(BadValue, match="the model has 7 layers"):
        layer_split.check(tmp_path, 7)
