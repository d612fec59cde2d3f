"""Whisper models in the library: from a hub, a package, and a folder of either format."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny_whisper

from localspec.errors import BadValue, BrokenModel, UnsupportedModel
from localspec.library import Library, StoredModel, catalogue, verify
from localspec.library.importing.add_local import add_local

GRAPHS = ("openvino_encoder_model", "openvino_cross_model", "openvino_model")


@pytest.fixture(scope="session")
def ctranslate2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CTranslate2 folder whose tokenizer lacks its first merge."""
    return tiny_whisper.ctranslate2_folder(tmp_path_factory.mktemp("speech") / "my whisper", broken=True)


@pytest.fixture(scope="session")
def huggingface(ctranslate2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Hugging Face folder of the same model, with the same tokenizer."""
    return tiny_whisper.huggingface_folder(ctranslate2, tmp_path_factory.mktemp("speech") / "hf whisper")


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the builder of graphs by one that writes small files; return the list of its names."""
    calls: list[str] = []

    def write(tensors: Any, config: Any, into: Path, progress: Any, name: str = "model") -> None:
        assert config["d_model"] == tensors.shape("model.encoder.conv1.weight")[0]
        calls.append(name)
        for graph in GRAPHS:
            (into / f"{graph}.xml").write_text("<net/>")
            (into / f"{graph}.bin").write_bytes(bytes(1000))

    monkeypatch.setattr("localspec.formats.whisper.graphs.write", write)
    return calls


def check_model(model: StoredModel) -> None:
    names = {"config.json", "generation_config.json", "tokenizer.json", "model.toml"}
    files = {f"{graph}.{kind}" for graph in GRAPHS for kind in ("xml", "bin")}
    assert {path.name for path in model.folder.iterdir()} == names | files
    tokenizer = json.loads((model.folder / "tokenizer.json").read_text("utf-8"))
    assert tokenizer["model"]["merges"][0] == "Ġ t"
    generation = json.loads((model.folder / "generation_config.json").read_text("utf-8"))
    assert generation["alignment_heads"] == [[0, 1], [1, 0]]
    assert set(generation["lang_to_id"]) == {"<|en|>", "<|zh|>", "<|de|>"}
    assert (model.kind, model.manifest.architecture, model.manifest.context) == ("speech", "whisper", 448)
    assert model.manifest.history[-1] == "the first merge of its tokenizer was missing, and added"
    assert model.encode(" the hat") == [256, 258, 220, 71, 64, 83]


def test_a_ctranslate2_folder(library: Library, ctranslate2: Path, said: Any, written: list[str]) -> None:
    model = library.resolve(str(ctranslate2), said, kind=catalogue.SPEECH)
    check_model(model)
    assert library.resolve(str(ctranslate2), said, kind=catalogue.SPEECH) == model
    assert written == [model.name]
    assert verify.problems(model, said) == (9, [])
    assert library.all("speech") == library.all() == [model]
    assert library.all("text") == []


def test_a_hugging_face_folder(library: Library, huggingface: Path, said: Any, written: list[str]) -> None:
    check_model(library.resolve(str(huggingface), said, kind=catalogue.SPEECH))


def test_a_repository(library: Library, hub: Any, huggingface: Path, said: Any, written: list[str]) -> None:
    files = {path.name: path.read_bytes() for path in huggingface.iterdir()}
    files["model.fp32-00001-of-00002.safetensors"] = b"the same in another precision"
    hub.repositories["openai/whisper-small"] = files
    model = library.pull("whisper-small", said)
    check_model(model)
    assert (model.name, model.draft) == ("whisper-small", "whisper-tiny")
    assert not any("fp32" in path for path, _ in hub.downloads())
    hub.asked.clear()
    assert library.resolve("hf:openai/whisper-small", said, kind=catalogue.SPEECH) == model
    assert hub.asked == []
    assert library.remove("whisper-small", said) > 0


def test_a_repository_that_the_catalogue_does_not_know(
    library: Library, hub: Any, huggingface: Path, said: Any, written: list[str]
) -> None:
    hub.repositories["some/whisper"] = {path.name: path.read_bytes() for path in huggingface.iterdir()}
    check_model(library.resolve("hf:some/whisper", said, kind=catalogue.SPEECH))
    with pytest.raises(UnsupportedModel, match="is a model of speech"):
        library.resolve("hf:some/whisper", said)


def test_a_repository_of_ctranslate2(
    library: Library, hub: Any, ctranslate2: Path, said: Any, written: list[str]
) -> None:
    hub.repositories["some/faster-whisper"] = {path.name: path.read_bytes() for path in ctranslate2.iterdir()}
    model = library.resolve("hf:some/faster-whisper", said, kind=catalogue.SPEECH)
    check_model(model)
    assert not any("vocabulary" in path for path, _ in hub.downloads())
    hub.asked.clear()
    assert library.resolve("hf:some/faster-whisper", said, kind=catalogue.SPEECH) == model
    assert hub.asked == []


def test_an_own_name(library: Library, ctranslate2: Path, said: Any, written: list[str]) -> None:
    check_model(add_local(library, ctranslate2, "mine", said))
    check_model(add_local(library, ctranslate2, "copy", said, copy=True))
    assert library.resolve("mine", said, kind=catalogue.SPEECH).name == "mine"


def test_a_whole_tokenizer_is_not_changed(
    library: Library, tmp_path: Path, said: Any, written: list[str]
) -> None:
    folder = tiny_whisper.ctranslate2_folder(tmp_path / "whole")
    model = library.resolve(str(folder), said, kind=catalogue.SPEECH)
    assert model.manifest.history == ["imported from whole"]
    ours, theirs = (json.loads((path / "tokenizer.json").read_text()) for path in (model.folder, folder))
    assert ours == theirs


def test_speech_is_made_in_one_form(library: Library, hub: Any, said: Any) -> None:
    for asked in ({"precision": "int8"}, {"format": "hf"}):
        with pytest.raises(BadValue, match="made in one form only"):
            library.pull("whisper-tiny", said, **asked)
    with pytest.raises(BadValue, match="made in one form only"):
        library.pull("whisper-tiny:int4", said)
    assert hub.asked == []


def test_a_folder_of_text_does_not_transcribe(
    library: Library, tmp_path: Path, said: Any, ctranslate2: Path
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModel, match="is a model of text"):
        library.resolve(str(tmp_path), said, kind=catalogue.SPEECH)
    with pytest.raises(UnsupportedModel, match="is a model of speech"):
        library.resolve(str(ctranslate2), said)
    assert library.all() == []


def test_what_others_converted_to_openvino_is_refused(
    library: Library, hub: Any, tmp_path: Path, said: Any
) -> None:
    for name in ("openvino_encoder_model.xml", "openvino_decoder_model.xml", "config.json"):
        (tmp_path / name).write_text('{"model_type": "whisper"}')
    hub.repositories["OpenVINO/whisper-base-int8-ov"] = {
        path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()
    }
    for name in (str(tmp_path), "hf:OpenVINO/whisper-base-int8-ov"):
        with pytest.raises(UnsupportedModel, match="another program converted to OpenVINO") as caught:
            library.resolve(name, said, kind=catalogue.SPEECH)
        assert "hf:openai/whisper-base" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("tokenizer.json", "{}", "which Whisper needs"),
        ("tokenizer.json", None, "lacks `tokenizer.json`"),
        ("generation_config.json", '{"alignment_heads": [[1, "x"]]}', "no pairs of numbers"),
        ("model.safetensors", "cut", "truncated"),
    ],
)
def test_a_damaged_folder_leaves_nothing(
    library: Library, huggingface: Path, tmp_path: Path, said: Any, file: str, content: str | None, words: str
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(huggingface, folder)
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_text(content)
    with pytest.raises(BrokenModel, match=words):
        library.resolve(str(folder), said, kind=catalogue.SPEECH)
    assert library.all() == []


def test_an_older_folder_gets_its_generation_config(
    library: Library, huggingface: Path, tmp_path: Path, said: Any, written: list[str]
) -> None:
    whole = library.resolve(str(huggingface), said, kind=catalogue.SPEECH)
    folder = tmp_path / "older"
    shutil.copytree(huggingface, folder)
    (folder / "generation_config.json").unlink()
    config = json.loads((folder / "config.json").read_text())
    lists = {
        "suppress_tokens": [1, 2, 7],
        "begin_suppress_tokens": [220],
        "alignment_heads": [[0, 1], [1, 0]],
    }
    (folder / "config.json").write_text(json.dumps(config | lists))
    model = library.resolve(str(folder), said, kind=catalogue.SPEECH)
    ours, theirs = (
        json.loads((each.folder / "generation_config.json").read_text()) for each in (model, whole)
    )
    assert ours == theirs


def test_heads_of_layers_that_are_not_there_are_left_out(
    library: Library, huggingface: Path, tmp_path: Path, said: Any, written: list[str]
) -> None:
    folder = tmp_path / "distilled"
    shutil.copytree(huggingface, folder)
    generation = json.loads((folder / "generation_config.json").read_text())
    generation["alignment_heads"] = [[1, 1], [7, 0]]
    (folder / "generation_config.json").write_text(json.dumps(generation))
    model = library.resolve(str(folder), said, kind=catalogue.SPEECH)
    assert json.loads((model.folder / "generation_config.json").read_text())["alignment_heads"] == [[1, 1]]
