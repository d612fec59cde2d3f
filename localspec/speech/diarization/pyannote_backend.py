"""Tell speakers apart with pyannote.audio, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from localspec.errors import LocalspecError, UnsupportedModel, printable
from localspec.installation import install_command
from localspec.speech.audio import blocks
from localspec.speech.types import RATE, Turn

PACKAGE = "pyannote.audio"
MODEL = "pyannote/speaker-diarization-community-1"  # what its own page names first
PAGE = f"https://huggingface.co/{MODEL}"


def check() -> None:
    """Raise LocalspecError if pyannote.audio is not installed."""
    if find_spec("pyannote") is None or find_spec(PACKAGE) is None:
        raise LocalspecError(
            f"`{PACKAGE}` is not installed",
            f"Type `{install_command('speech', PACKAGE)}`, or leave `--diarization` out",
        )


def load() -> Any:
    """Return pyannote's pipeline, which it downloads; raises UnsupportedModel if it cannot be had."""
    check()
    from pyannote.audio import Pipeline

    try:
        pipeline = Pipeline.from_pretrained(MODEL)
    except Exception as error:  # of the hub's client, of torch, or of pyannote itself
        raise _not_loaded(printable(str(error), 200)) from error
    if pipeline is None:  # of older versions, without access
        raise _not_loaded("no access")
    return pipeline


def diarize(
    path: Path, pipeline: Any, speakers: tuple[int, int] | None, heard: Callable[[float], None]
) -> list[Turn]:
    """Return who speaks when in a file, by pyannote's pipeline; the whole file is held in memory.

    `speakers` are the fewest and the most. They are called `Speaker 1` and so on, as they appear. `heard` is
    told the seconds once all is done. Raises what `audio.blocks` raises.
    """
    import torch

    samples = np.concatenate([*blocks(path), np.zeros(0, np.float32)])
    if not len(samples):
        return []
    count = {"min_speakers": speakers[0], "max_speakers": speakers[1]} if speakers else {}
    waveform = torch.from_numpy(samples)[None]
    found = pipeline({"waveform": waveform, "sample_rate": RATE}, **count)
    heard(len(samples) / RATE)
    annotation = getattr(found, "speaker_diarization", found)  # older versions return it alone
    return turns_of(
        [(turn.start, turn.end, label) for turn, _, label in annotation.itertracks(yield_label=True)]
    )


def turns_of(tracks: list[tuple[float, float, str]]) -> list[Turn]:
    """Return turns in the order of their start, whose speakers are numbered as they appear."""
    ordered = sorted(tracks)
    names = {
        label: f"Speaker {number}"
        for number, label in enumerate(dict.fromkeys(track[2] for track in ordered), 1)
    }
    return [Turn(start, end, names[label]) for start, end, label in ordered]


def _not_loaded(reason: str) -> UnsupportedModel:
    return UnsupportedModel(
        f"`{PACKAGE}` cannot load `{MODEL}`: {reason}",
        f"Accept its terms at {PAGE}, and log in with `hf auth login`; or leave `--diarization` out",
    )
