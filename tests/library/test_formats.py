"""The formats of a model: a GGUF that is used as it is, and converted to a graph when one is needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import letters
import numpy as np
import pytest
import tiny
from said import Said
from tokenizers import Tokenizer

from localspec.errors import BrokenModel, PromptError, StorageError, UnsupportedModel
from localspec.library import Library, Silent, storage
from localspec.library.importing import convert, refusals
from localspec.library.manifest import Manifest
from localspec.library.model import StoredModel

ANY = ("openvino", "gguf")


@pytest.fixture
def home(tmp_path: Path) -> Library:
    return Library(tmp_path / "home")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return tiny.write_gguf(tiny.make("llama", "Q8_0"), tmp_path / "small.gguf")


@pytest.fixture
def unknown(tmp_path: Path) -> Path:
    """A model with a sliding window of 16 tokens, which OpenVINO's import rejects."""
    return tiny.write_gguf(
        tiny.make("llama", "Q8_0"), tmp_path / "windowed.gguf", attention__sliding_window=16
    )


def test_an_engine_that_reads_gguf_needs_no_conversion(home: Library, gguf: Path) -> None:
    model = home.resolve(str(gguf), Silent(), ("gguf",))
    assert model.files_in("openvino") is None
    assert model.files_in("gguf") == gguf
    assert model.path_for("llamacpp", ("gguf",)) == gguf
    assert model.manifest.precision == "Q8_0"
    assert model.tokenizer().get_vocab_size() > 90
    assert model.stop_tokens() == [94, 95]
    assert not list(model.folder.glob("*.xml"))


def test_a_graph_is_added_when_needed(home: Library, gguf: Path) -> None:
    before = home.resolve(str(gguf), Silent(), ("gguf",))
    with pytest.raises(UnsupportedModel, match=r"`openvino` reads openvino, .* has gguf"):
        before.path_for("openvino", ("openvino",))
    after = home.resolve(str(gguf), Silent(), ("openvino",))
    assert (after.name, after.folder) == (before.name, before.folder)
    assert after.files_in("openvino") == after.folder
    assert after.files_in("gguf") == gguf
    assert {"openvino_model.xml", "openvino_model.bin", "config.json"} <= set(after.manifest.sizes)
    assert set(after.manifest.sizes) <= set(after.manifest.digests)
    assert [model.name for model in home.all()] == [after.name]
    found = home.find(after.name)
    assert found is not None
    assert found.files_in("openvino")


def test_an_unsupported_gguf_stays_a_gguf_and_is_reported(home: Library, unknown: Path) -> None:
    said = Said()
    model = home.pull(str(unknown), said)
    assert model.files_in("openvino") is None
    assert model.files_in("gguf") == unknown
    (line,) = [line for line in said.lines if "sliding window" in line]
    assert line.endswith("; another engine may support it")
    assert home.resolve(model.name, Silent(), ANY).files_in("gguf") == unknown


def test_a_refusal_is_remembered(home: Library, unknown: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes no disk, no second try and no new manifest, until a version changes."""
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1_000)
    model = home.resolve(str(unknown), Silent(), ("gguf",))
    assert not model.manifest.no_graph
    found = home.resolve(model.name, Silent(), ANY)
    assert "sliding window of 16" in found.manifest.no_graph["reason"]
    tried = []
    monkeypatch.setattr(refusals, "check", tried.append)
    before = (found.folder / "model.toml").stat().st_mtime_ns
    assert home.resolve(model.name, Silent(), ANY).manifest == found.manifest
    with pytest.raises(UnsupportedModel, match="sliding window of 16"):
        home.resolve(model.name, Silent())
    assert (found.folder / "model.toml").stat().st_mtime_ns == before
    assert tried == []
    monkeypatch.setattr(refusals, "version", lambda name: "99.9")
    with pytest.raises(StorageError):  # tried again, with the disk that a graph takes
        home.resolve(model.name, Silent(), ANY)
    assert tried == [unknown]


def test_a_refused_model_can_be_imported_on_a_full_disk(
    home: Library, unknown: Path, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "free_bytes", lambda folder: 1_000)
    model = home.resolve(str(unknown), Silent(), ANY)
    assert model.manifest.no_graph
    with pytest.raises(StorageError):
        home.resolve(str(gguf), Silent(), ANY)


def test_a_refusal_of_an_earlier_version_is_forgotten(
    home: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise UnsupportedModel("not yet")

    with monkeypatch.context() as patch:
        patch.setattr(refusals, "check", refuse)
        patch.setattr(refusals, "version", lambda name: "0")
        name = home.resolve(str(gguf), Silent(), ANY).name
    model = home.resolve(name, Silent(), ANY)
    assert model.files_in("openvino")
    assert not model.manifest.no_graph
    found = home.find(name)
    assert found is not None
    assert not found.manifest.no_graph


def test_a_tensor_type_that_is_only_seen_in_the_weights_is_remembered(home: Library, tmp_path: Path) -> None:
    model = tiny.make("qwen2")
    name = "blk.0.ffn_up.weight"
    model.stored[name], model.kinds[name] = np.zeros((tiny.INNER, tiny.WIDTH), np.int32), "I32"
    found = home.resolve(str(tiny.write_gguf(model, tmp_path / "odd.gguf")), Silent(), ANY)
    assert f"`{name}`" in found.manifest.no_graph["reason"]
    assert found.files_in("gguf")
    assert not list(found.folder.glob("*.xml"))


def test_an_unsupported_gguf_is_rejected_if_a_graph_is_required(home: Library, unknown: Path) -> None:
    with pytest.raises(UnsupportedModel, match="sliding window"):
        home.resolve(str(unknown), Silent())
    assert home.all() == []


def test_a_failed_graph_leaves_the_model_as_it_was(
    home: Library, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from localspec.formats.graph import ir

    model = home.resolve(str(gguf), Silent(), ("gguf",))
    before = sorted(path.name for path in model.folder.iterdir())

    def full(graph: object, into: Path) -> None:
        (into / "openvino_model.bin").write_bytes(bytes(10))
        raise KeyboardInterrupt

    monkeypatch.setattr(ir, "save", full)
    with pytest.raises(KeyboardInterrupt):
        home.resolve(str(gguf), Silent())
    assert sorted(path.name for path in model.folder.iterdir()) == before
    assert home.find(model.name) is not None
    assert not list(home.models.glob("*.partial-*"))


def test_a_folder_of_safetensors_is_read_where_it_lies(home: Library, tmp_path: Path) -> None:
    import shutil

    from localspec.formats.gguf.file import GgufFile
    from localspec.formats.tokenizer import vocabulary

    folder = tmp_path / "hf"
    folder.mkdir()
    tiny.write_folder(tiny.make("llama"), folder)
    source = GgufFile.open(tiny.write_gguf(tiny.make("llama"), tmp_path / "v.gguf"))
    vocabulary.from_gguf(source.metadata).save(str(folder / "tokenizer.json"))
    model = home.resolve(str(folder), Silent(), ("safetensors", "gguf"))
    assert model.files_in("safetensors") == folder
    assert model.files_in("openvino") is None
    assert model.kv_bytes_per_token() == 2 * 2 * tiny.LAYERS * tiny.KEY_HEADS * tiny.HEAD_WIDTH
    shutil.rmtree(folder)
    assert model.files_in("safetensors") is None


@pytest.mark.parametrize("name", ["tokenizer.model", "merges.txt", "tekken.json", None])
def test_an_older_tokenizer_is_no_damage(home: Library, tmp_path: Path, name: str | None) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    tiny.write_folder(tiny.make("llama"), folder)
    for each in {"merges.txt": ("vocab.json", "merges.txt"), None: ()}.get(name, (name,)):
        (folder / str(each)).write_bytes(b"{}")
    name = name and name.replace("merges.txt", "vocab.json")
    with pytest.raises(UnsupportedModel if name else BrokenModel, match=name or r"lacks `tokenizer\.json`"):
        home.resolve(str(folder), Silent())


def test_a_gguf_gives_the_kv_bytes_per_token(home: Library, gguf: Path) -> None:
    expected = 2 * 2 * tiny.LAYERS * tiny.KEY_HEADS * tiny.HEAD_WIDTH
    assert home.resolve(str(gguf), Silent(), ("gguf",)).kv_bytes_per_token() == expected
    assert home.resolve(str(gguf), Silent()).kv_bytes_per_token() == expected


ENDS = {  # by what the configs say: config.json has 5 unless it is the one
    "generation_config.json": ({"eos_token_id": [300, 7]}, [7, 300]),
    "no ids in generation_config.json": ({"eos_token_id": None}, []),
    "config.json": ({"eos_token_id": 7}, [7]),
    "an inner config": ({"text_config": {"eos_token_id": [8]}}, [8]),
    "ids that are none": ({"eos_token_id": [-1, "a", True, 7.5]}, []),
}


def stored(folder: Path) -> StoredModel:
    return StoredModel("m", folder, Manifest(name="m", source="file:m"))


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("eos", ["<|endoftext|>", {"__type": "AddedToken", "content": "<|endoftext|>"}, None])
def test_stop_tokens_come_from_every_config(name: str, eos: Any, tmp_path: Path) -> None:
    said, expected = ENDS[name]
    letters.byte_level().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": 5}')
    file = "generation_config.json" if "generation" in name else "config.json"
    (tmp_path / file).write_text(json.dumps(said))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert stored(tmp_path).stop_tokens() == sorted({*expected, *([300] if eos else [])})


def test_a_folder_is_imported_with_its_added_tokens(tmp_path: Path) -> None:
    """The library's tokenizer.json is complete, for programs that read nothing else."""
    source, into = tmp_path / "hf", tmp_path / "into"
    for folder in (source, into):
        folder.mkdir()
    letters.byte_level().save(str(source / "tokenizer.json"))
    (source / "config.json").write_text('{"model_type": "smollm3"}')
    (source / "added_tokens.json").write_text('{"<|im_end|>": 301, "<|im_start|>": 302}')
    (source / "special_tokens_map.json").write_text('{"eos_token": "<|im_end|>"}')
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (source / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    convert.from_folder(source, into)
    model = stored(into)
    tokens = [302, model.tokenizer().token_to_id("the"), 301]
    assert model.stop_tokens() == [301]
    assert model.encode("<|im_start|>the<|im_end|>") == tokens
    assert Tokenizer.from_file(str(into / "tokenizer.json")).encode("<|im_start|>the<|im_end|>").ids == tokens


@pytest.mark.parametrize("content", ["a\udce9", "\ud83d"])
def test_half_a_character_is_an_error_of_the_prompt(home: Library, gguf: Path, content: str) -> None:
    model = home.resolve(str(gguf), Silent(), ("gguf",))
    for encode in (model.encode, lambda text: model.encode_chat([{"role": "user", "content": text}])):
        with pytest.raises(PromptError, match="half a character"):
            encode(content)
