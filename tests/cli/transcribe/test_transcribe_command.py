"""`localspec transcribe` as a process, with a tiny Whisper of random weights."""

from __future__ import annotations

import wave
from pathlib import Path

import pytest
import tiny_whisper
from command import Localspec


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An English model in CTranslate2's format."""
    return tiny_whisper.ctranslate2_folder(tmp_path_factory.mktemp("model") / "tiny", 51_864)


@pytest.fixture
def silence(tmp_path: Path) -> Path:
    path = tmp_path / "silence.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(2 * 8000 * 3))
    return path


def test_silence_is_an_empty_transcript(home: Path, model: Path, silence: Path) -> None:
    found = Localspec(home).run("transcribe", str(silence), "--model", str(model))
    assert (found.code, found.out) == (0, "")
    assert f"{silence}: nobody talks in it" in found.err
    values = Localspec(home).run("transcribe", str(silence), "--model", str(model), "--json").values
    assert (values["text"], values["segments"], values["duration"]) == ("", [], 3.0)


def test_what_is_no_audio(home: Path, model: Path, tmp_path: Path) -> None:
    for name, content in (
        ("empty.wav", b""),
        ("text.mp3", b"nothing to hear"),
        ("picture.png", b"\x89PNG\r\n"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        Localspec(home).run("transcribe", str(path), "--model", str(model)).refused(2, f"`{path}`")
    missing = Localspec(home).run("transcribe", str(tmp_path / "no.wav"), "--model", str(model))
    missing.refused(2, "No such file: `")


def test_a_model_of_english_alone(home: Path, model: Path, silence: Path) -> None:
    for more in (("--language", "german"), ("--task", "translate")):
        found = Localspec(home).run("transcribe", str(silence), "--model", str(model), *more)
        found.refused(2, "English alone", "--model whisper-base")


def test_models_of_the_wrong_kind(fresh: Localspec, silence: Path) -> None:
    fresh.run("transcribe", str(silence), "--model", "qwen3-8b").refused(
        1, "`qwen3-8b` is a model of text", "`whisper-base`"
    )
    fresh.run("chat", "whisper-base", "Hi").refused(
        1, "`whisper-base` is a model of speech", "localspec transcribe AUDIO --model whisper-base"
    )
    fresh.run("transcribe", str(silence), "--model", "no-such-model").refused(1, "Unknown model")


def test_settings_of_its_own(fresh: Localspec) -> None:
    """The default model and draft of `chat` are none of `transcribe`."""
    listed = fresh.run("config", "--json", LOCALSPEC_SPEECH_MODEL="whisper-small").values["settings"]
    found = {value["key"]: value["value"] for value in listed if value["command"] == "transcribe"}
    assert (found["speech_model"], found["speech_draft"], found["format"]) == (
        "whisper-small",
        "auto",
        "text",
    )
    assert not {"model", "draft", "out", "force", "speakers", "json"} & set(found)
