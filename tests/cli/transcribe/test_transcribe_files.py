"""`localspec transcribe` with a made-up transcriber: what is written where, kept, refused and reported."""

from __future__ import annotations

import json
import os
import wave
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from localspec.cli.app import app
from localspec.cli.transcribe.options import parse_speakers
from localspec.errors import BadValue, LocalspecError
from localspec.speech import loading
from localspec.speech.transcriber import Request, SpeechStats
from localspec.speech.types import Segment

SECONDS = 2


@dataclass
class MadeUpTokens:
    """Knows English and Dutch."""

    multilingual: bool = True

    def prompt(self, language: str | None, task: str) -> list[int]:
        if language not in ("en", "nl"):
            raise BadValue(f"The model does not know the language `{language}`", "Give another")
        return []


@dataclass
class MadeUpTranscriber:
    """Hears a file's name in it, and nothing in `silence.wav`; `broken.wav` breaks off."""

    calls: list[tuple[str, Request, float]] = field(default_factory=list)
    language: str | None = None
    stats: SpeechStats = field(default_factory=SpeechStats)
    tokens: MadeUpTokens = field(default_factory=MadeUpTokens)
    sources: tuple[Any, ...] = ()

    @property
    def model(self) -> Any:
        return self

    @property
    def drafting(self) -> Any:
        return self

    def transcribe(
        self, path: Path, request: Request, heard: Callable[[float], None], later: float = 0.0
    ) -> Iterator[Segment]:
        self.calls.append((path.stem, request, later))
        self.language = request.language or "en"
        self.stats = SpeechStats(audio=2.0, windows=1, tokens=9, passes=3, seconds=0.5, notes=[])
        if path.stem == "silence":
            return
        yield Segment(0.0, 1.0, f" This is {path.stem}.", tokens=(1, 2))
        heard(1.0)
        if path.stem == "broken":
            raise BadValue(f"`{path}` is damaged after 1.0 seconds", "Get the file again")
        if path.stem == "stopped":
            raise KeyboardInterrupt
        yield Segment(1.0, 2.0, " The end.", tokens=(3,))
        heard(2.0)


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpTranscriber:
    found = MadeUpTranscriber()
    monkeypatch.setattr(loading, "load", lambda *given: found)
    monkeypatch.setenv("LOCALSPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALSPEC_CONFIG", "")
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "silence", "broken", "stopped"):
        with wave.open(f"{name}.wav", "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(16_000)
            file.writeframes(bytes(2 * 16_000 * SECONDS))
    return found


def transcribe(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["transcribe", *arguments, "--model", "whisper-base"], obj=[])


def test_one_file_goes_to_stdout(made_up: MadeUpTranscriber) -> None:
    found = transcribe("a.wav")
    assert (found.exit_code, found.stdout) == (0, "This is a.\nThe end.\n")
    assert "Transcribing a.wav" in found.stderr
    assert made_up.calls == [("a", Request(None, "transcribe", False), 0.0)]


@pytest.mark.parametrize(
    ("format", "start"),
    [
        ("srt", "1\n00:00:00,000 --> 00:00:01,000\nThis is a.\n\n2\n"),
        ("vtt", "WEBVTT\n\n00:00:00.000 --> "),
        ("tsv", "start\tend\ttext\n0\t1000\tThis is a.\n1000\t2000\t"),
        ("json", '{\n  "audio": "a.wav",\n  "language": "nl",\n  "duration": 2.0,\n'),
    ],
)
def test_formats(made_up: MadeUpTranscriber, format: str, start: str) -> None:
    found = transcribe("a.wav", "--format", format, "--language", "dutch")
    assert found.exit_code == 0
    assert found.stdout.startswith(start)


def test_several_files_have_headings(made_up: MadeUpTranscriber) -> None:
    found = transcribe("a.wav", "b.wav")
    expected = "==> a.wav <==\nThis is a.\nThe end.\n\n==> b.wav <==\nThis is b.\nThe end.\n"
    assert (found.exit_code, found.stdout) == (0, expected)
    assert [later for _, _, later in made_up.calls] == [2.0, 0.0]


def test_json_is_a_line_for_each_file(made_up: MadeUpTranscriber) -> None:
    found = transcribe("a.wav", "silence.wav", "--json")
    first, second = map(json.loads, found.stdout.splitlines())
    assert (first["audio"], first["text"], first["model"]) == ("a.wav", "This is a. The end.", "whisper-base")
    assert [segment["tokens"] for segment in first["segments"]] == [[1, 2], [3]]
    assert first["stats"]["passes"] == 3
    assert (second["text"], second["segments"]) == ("", [])
    assert "silence.wav: nobody talks in it" in found.stderr


def test_statistics(made_up: MadeUpTranscriber) -> None:
    assert transcribe("a.wav", "--stats").stderr.splitlines()[-1] == (
        "a.wav: English, 2.0 s of audio in 0.5 s (4.0 x), 9 tokens of whisper-base in 3 passes, no draft"
    )


def test_files_are_written_and_kept(made_up: MadeUpTranscriber, tmp_path: Path) -> None:
    found = transcribe("a.wav", "b.wav", "--out", "texts/new")
    assert (found.exit_code, found.stdout) == (0, "texts/new/a.txt\ntexts/new/b.txt\n")
    assert (tmp_path / "texts/new/b.txt").read_text() == "This is b.\nThe end.\n"
    made_up.calls.clear()
    again = transcribe("a.wav", "b.wav", "--out", "texts/new")
    assert (again.exit_code, again.stdout, made_up.calls) == (0, "", [])
    assert "texts/new/a.txt is there already; `--force` makes it again" in again.stderr


@pytest.mark.parametrize("change", ["force", "newer audio", "edited", "options", "deleted", "unknown"])
def test_what_has_changed_is_made_again(made_up: MadeUpTranscriber, tmp_path: Path, change: str) -> None:
    more: list[str] = []
    if change == "unknown":
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "a.txt").write_text("of another program")
    else:
        transcribe("a.wav", "--out", "out")
    target = tmp_path / "out" / "a.txt"
    if change == "force":
        more = ["--force"]
    elif change == "newer audio":
        os.utime("a.wav", ns=(10**19, 10**19 // 2))
    elif change == "edited":
        target.write_text("This is mine.")
    elif change == "options":
        more = ["--language", "nl"]
    elif change == "deleted":
        target.unlink()
    made_up.calls.clear()
    found = transcribe("a.wav", "--out", "out", *more)
    assert (found.exit_code, len(made_up.calls)) == (0, 1)
    assert target.read_text() == "This is a.\nThe end.\n"


def test_a_broken_file_does_not_stop_the_others(made_up: MadeUpTranscriber, tmp_path: Path) -> None:
    found = transcribe("broken.wav", "missing.wav", "b.wav", "--out", "out")
    assert found.exit_code == 1
    assert found.stdout == "out/b.txt\n"
    assert "`broken.wav` is damaged after 1.0 seconds" in found.stderr
    assert "`missing.wav`" in found.stderr
    assert "2 of 3 files failed" in found.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.txt"]


def test_the_error_of_a_single_file_is_an_error(made_up: MadeUpTranscriber) -> None:
    found = transcribe("broken.wav", "--out", "out")
    assert isinstance(found.exception, BadValue)
    assert list(Path("out").iterdir()) == []


def test_speakers(made_up: MadeUpTranscriber, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def loaded(backend: str, count: Any, *more: Any) -> Any:
        asked.append((backend, count))

        def speakers(path: Path, segments: list[Segment], heard: Any) -> list[Segment]:
            heard(2.0)
            return [replace(segment, speaker=f"Speaker {at}") for at, segment in enumerate(segments, 1)]

        return speakers

    monkeypatch.setattr("localspec.cli.transcribe.speakers.loaded", loaded)
    found = transcribe("a.wav", "--diarize", "--speakers", "2-4")
    assert found.stdout == "[Speaker 1] This is a.\n[Speaker 2] The end.\n"
    assert "Telling speakers apart in a.wav" in found.stderr
    assert asked == [("own", (2, 4))]
    assert made_up.calls[0][1].words


def test_ctrl_c_keeps_what_is_finished(made_up: MadeUpTranscriber) -> None:
    transcribe("a.wav", "stopped.wav", "b.wav", "--out", "out")
    assert [path.name for path in Path("out").iterdir()] == ["a.txt"]
    made_up.calls.clear()
    transcribe("a.wav", "b.wav", "--out", "out")
    assert [name for name, _, _ in made_up.calls] == ["b"]


def test_stdin_is_a_file(made_up: MadeUpTranscriber) -> None:
    audio = Path("a.wav").read_bytes()
    found = CliRunner().invoke(app, ["transcribe", "-", "--model", "whisper-base"], input=audio, obj=[])
    assert (found.exit_code, found.stdout) == (0, "This is stdin.\nThe end.\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a.wav", "--language", "klingon"], "Unknown language `klingon`"),
        (["a.wav", "--language", "de"], "does not know the language `de`"),
        (["a.wav", "--format", "subrip"], "`--format` is `subrip`"),
        (["a.wav", "--task", "sing"], "`--task` is `sing`"),
        (["a.wav", "--timestamps", "letter"], "`--timestamps` is `letter`"),
        (["a.wav", "--speakers", "2"], "`--speakers` counts those that `--diarize` tells apart"),
        (["a.wav", "--diarize", "--speakers", "3-2"], "`--speakers` cannot be `3-2`"),
        (["a.wav", "--diarize", "--diarization", "x"], "`--diarization` is `x`"),
        (["a.wav", "b.wav", "--format", "srt"], "The format `srt` is for one file"),
        (["-", "-"], "`-` is stdin, which can be read once"),
        (["a.wav", "--json", "--out", "x"], "`--json` prints, and `--out` writes files"),
        (["a.wav", "--force"], "`--force` replaces files, and none are written"),
        (["a.wav", "--out", "b.wav"], "`b.wav` is a file"),
        (["a.wav", "./a.wav", "--out", "x"], "would both become `x/a.txt`"),
    ],
)
def test_what_is_refused(made_up: MadeUpTranscriber, arguments: list[str], message: str) -> None:
    found = transcribe(*arguments)
    assert isinstance(found.exception, LocalspecError)
    assert message in found.exception.message
    assert found.exception.hint
    assert found.stdout == ""
    assert made_up.calls == []


@pytest.mark.parametrize(
    ("text", "expected"), [(None, None), ("3", (3, 3)), ("2-4", (2, 4)), ("1-99", (1, 99))]
)
def test_numbers_of_speakers(text: str | None, expected: tuple[int, int] | None) -> None:
    assert parse_speakers(text) == expected


@pytest.mark.parametrize("text", ["0", "x", "2-", "-2", "4-2", "1-100", "2-3-4", ""])
def test_wrong_numbers_of_speakers(text: str) -> None:
    with pytest.raises(BadValue, match="`--speakers` cannot be"):
        parse_speakers(text)
