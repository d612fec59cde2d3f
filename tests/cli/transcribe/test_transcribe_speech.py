"""`localspec transcribe` with real Whisper models and a human voice."""

from __future__ import annotations

import json
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from command import Localspec

import models
from localspec.library import Library, Silent, catalogue
from localspec.library.importing.source import ImportSource
from localspec.library.importing.speech import CTRANSLATE2
from localspec.library.locks import locked
from localspec.speech.audio import blocks
from localspec.speech.types import RATE

pytestmark = pytest.mark.engines

CLIP = Path(__file__).parents[2] / "data" / "speech" / "austen.opus"
SAID = (
    "And Mr John Dashwood had then leisure to consider how much there might be prudently in his power to do "
    "for them He was not an ill disposed young man unless to be rather cold hearted and rather selfish is to "
    "be ill disposed Had he married a more amiable woman he might have been made still more respectable than "
    "he was he might even have been made amiable himself"
)
BASE, TINY = "whisper-base", "whisper-tiny.en"


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Localspec:
    """The command with two speech models under their names in the catalogue."""
    home = tmp_path_factory.mktemp("home")
    library = Library(home)
    for name in (BASE, TINY):
        source = ImportSource.from_local(CTRANSLATE2, models.whisper(name))
        with locked(library.models, name, Silent()):
            assert library.import_model(name, source, Silent(), "required").kind == catalogue.SPEECH
    return Localspec(home)


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


@pytest.mark.parametrize("model", [BASE, TINY])
def test_what_is_said(speech: Localspec, model: str) -> None:
    found = speech.run("transcribe", str(CLIP), "--model", model, "--draft", "off")
    assert found.code == 0
    assert words(found.out) == words(SAID)


@pytest.mark.parametrize("draft", ["copies", "self", TINY, "auto"])
def test_a_draft_changes_nothing(speech: Localspec, draft: str) -> None:
    """The same tokens, and the same text in each format."""
    files = [str(CLIP)] * 3
    plain, drafted = (
        [
            json.loads(line)
            for line in speech.run(
                "transcribe", *files, "--model", BASE, "--draft", name, "--json", "--timestamps", "word"
            ).out.splitlines()
        ]
        for name in ("off", draft)
    )
    assert [each["segments"] for each in plain] == [each["segments"] for each in drafted]
    assert plain[0]["language"] == "en"
    assert all(each["draft"] is None for each in plain)
    if draft == "self":
        assert all(each["draft"] == "self" for each in drafted)
        assert all(each["stats"]["passes"] < each["stats"]["tokens"] for each in drafted)
        assert all(set(each["stats"]["sources"]) == {"self"} for each in drafted)


@pytest.mark.parametrize("more", [(), ("--previous-text",)])
def test_what_is_said_again_is_copied(speech: Localspec, tmp_path: Path, more: tuple[str, ...]) -> None:
    """A recording that says everything twice: the same tokens, many of them copied."""
    twice = tmp_path / "twice.wav"
    samples = np.concatenate([*blocks(CLIP), *blocks(CLIP)])
    with wave.open(str(twice), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((samples * 32767).astype("<i2").tobytes())
    found = {
        draft: speech.run(
            "transcribe", str(twice), "--model", BASE, "--draft", draft, "--stats", "--json", *more
        )
        for draft in ("off", "copies")
    }
    plain, copied = found["off"].values, found["copies"].values
    assert copied["segments"] == plain["segments"]
    stats = copied["stats"]
    assert (plain["draft"], plain["stats"]["sources"]) == (None, {})
    assert (copied["draft"], set(stats["sources"])) == ("copies", {"copies"})
    # how many are tried depends on what passes cost meanwhile
    assert stats["sources"]["copies"]["accepted"] == stats["accepted"] > 10
    assert stats["passes"] < stats["tokens"]
    assert f"{stats['accepted']} of {stats['drafted']} guesses of copies accepted" in found["copies"].err


def test_times_of_words_are_in_order(speech: Localspec) -> None:
    arguments = ("transcribe", str(CLIP), "--model", TINY, "--timestamps", "word", "--json")
    found = speech.run(*arguments).values
    said = [word for part in found["segments"] for word in part["words"]]
    assert words("".join(word["word"] for word in said)) == words(SAID)
    times = [(word["start"], word["end"]) for word in said]
    assert all(start <= end for start, end in times)
    assert [start for start, _ in times] == sorted(start for start, _ in times)
    assert 20 < times[-1][1] <= found["duration"]


def test_subtitles(speech: Localspec, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = ("transcribe", str(CLIP), "--model", TINY, "--timestamps", "word", "--format", "srt")
    found = speech.run(*arguments, "--out", str(out))
    assert (found.code, found.out) == (0, f"{out / 'austen.srt'}\n")
    blocks = (out / "austen.srt").read_text().strip().split("\n\n")
    assert [block.split("\n")[0] for block in blocks] == [str(at) for at in range(1, len(blocks) + 1)]
    lines = [line for block in blocks for line in block.split("\n")[2:]]
    assert all(0 < len(line) <= 42 for line in lines)
    assert words(" ".join(lines)) == words(SAID)
    assert "is there already" in speech.run(*arguments, "--out", str(out)).err


def test_the_default_model_is_the_largest(speech: Localspec) -> None:
    found = speech.run("transcribe", str(CLIP), "--task", "translate", "--stats")
    assert f"Transcribing with {BASE}" in found.err
    assert "s of audio in" in found.err
