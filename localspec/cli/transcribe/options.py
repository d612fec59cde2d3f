"""The options of `localspec transcribe`, and the checks that need no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from localspec.cli import completion, options
from localspec.errors import BadValue, UnknownName

STDIN = "-"
DEFAULT_MODEL = "whisper-base"
TASKS, TIMESTAMPS = ("transcribe", "translate"), ("segment", "word")
FORMATS = ("text", "srt", "vtt", "json", "tsv")
BACKENDS = ("own", "pyannote")
MOST_SPEAKERS = 99

PANELS = {
    options.MODEL: ("model", "language", "task", "previous_text"),
    options.DRAFT: ("draft",),
    "Speakers": ("diarize", "speakers", "diarization"),
    options.MACHINE: ("threads",),
    options.OUTPUT: ("format", "timestamps", "out", "force", "stats", "as_json"),
}


@dataclass(frozen=True, slots=True)
class TranscribeOptions:
    """Arguments and options of `localspec transcribe`, in the order of its help."""

    audio: Annotated[
        list[str],
        typer.Argument(help="Files with speech; `-` is stdin.", metavar="AUDIO...", show_default=False),
    ]
    model: Annotated[
        str | None,
        typer.Option(
            help="Model of speech that transcribes.",
            autocompletion=completion.speech_models,
            metavar="MODEL",
            show_default=f"the largest of the library, else {DEFAULT_MODEL}",
        ),
    ] = None
    language: Annotated[
        str, typer.Option(help="Language spoken: auto, a code or a name.", metavar="NAME")
    ] = "auto"
    task: Annotated[str, typer.Option(help="transcribe, or translate into English.", metavar="NAME")] = (
        "transcribe"
    )
    previous_text: Annotated[
        bool, typer.Option("--previous-text", help="Let each window know the text before it.")
    ] = False
    draft: Annotated[
        str,
        typer.Option(
            help="auto, off, copies, self, or a smaller speech model.",
            autocompletion=completion.speech_drafts,
            metavar="MODEL",
        ),
    ] = "auto"
    diarize: Annotated[bool, typer.Option("--diarize", help="Tell who says what.")] = False
    speakers: Annotated[
        str | None,
        typer.Option(help="How many speakers: N or MIN-MAX.", metavar="N", show_default="found out"),
    ] = None
    diarization: Annotated[
        str, typer.Option(help="What tells speakers apart: own or pyannote.", metavar="NAME")
    ] = "own"
    threads: options.Threads = None
    format: Annotated[str, typer.Option(help="text, srt, vtt, json or tsv.", metavar="NAME")] = "text"
    timestamps: Annotated[
        str, typer.Option(help="Times of segments, or of each word: segment or word.", metavar="NAME")
    ] = "segment"
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write NAME.txt, NAME.srt ... into this folder.", metavar="DIR", show_default="stdout"
        ),
    ] = None
    force: Annotated[
        bool, typer.Option("--force", help="Transcribe again what is in the folder already.")
    ] = False
    stats: Annotated[
        bool, typer.Option("--stats", help="Show time, speed and accepted guesses of each file.")
    ] = False
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each file.")] = False

    @property
    def words(self) -> bool:
        """Whether the time of each word is wanted: speakers are told apart by words."""
        return self.timestamps == "word" or self.diarize

    @property
    def written_format(self) -> str:
        """The format of files and of stdout."""
        return "json" if self.as_json else self.format

    def check(self) -> None:
        """Raise UnknownName and BadValue for values that do not exist, and for options that contradict."""
        for name, value, choices in (
            ("task", self.task, TASKS),
            ("timestamps", self.timestamps, TIMESTAMPS),
            ("format", self.format, FORMATS),
            ("diarization", self.diarization, BACKENDS),
        ):
            if value not in choices:
                raise UnknownName(f"`--{name}` is `{value}`", value, choices)
        if self.speakers is not None and not self.diarize:
            raise BadValue("`--speakers` counts those that `--diarize` tells apart", "Add `--diarize`")
        parse_speakers(self.speakers)
        if self.audio.count(STDIN) > 1:
            raise BadValue(f"`{STDIN}` is stdin, which can be read once", "Name it once")
        if self.as_json and self.out:
            raise BadValue(
                "`--json` prints, and `--out` writes files", "For files: `--format json --out DIR`"
            )
        if len(self.audio) > 1 and not self.out and self.written_format not in ("text", "json"):
            raise BadValue(
                f"The format `{self.format}` is for one file, not for {len(self.audio)} after one another",
                "Write files: `--out DIR`",
            )
        if self.force and not self.out:
            raise BadValue("`--force` replaces files, and none are written", "Add `--out DIR`")

    def fingerprint(self, model: str, language: str | None) -> dict[str, Any]:
        """Return all that a transcript depends on but its audio."""
        own: dict[str, Any] = {
            "model": model,
            "language": language,
            "task": self.task,
            "words": self.words,
            "previous_text": self.previous_text,
            "format": self.written_format,
        }
        if self.written_format == "json":
            own["draft"] = self.draft
        if self.diarize:
            own |= {"diarization": self.diarization, "speakers": self.speakers}
        return own


def parse_speakers(text: str | None) -> tuple[int, int] | None:
    """Return the fewest and the most speakers of `3` or `2-4`, None for None; raises BadValue."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    try:
        least, most = int(first), int(last if dash else first)
    except ValueError:
        least = most = 0
    if not 1 <= least <= most <= MOST_SPEAKERS:
        raise BadValue(f"`--speakers` cannot be `{text}`", f"Write `2` or `2-4`, up to {MOST_SPEAKERS}")
    return least, most
