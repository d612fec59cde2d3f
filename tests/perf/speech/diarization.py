"""Measure the diarization error rate on a synthetic dialogue, or on a recording with a known truth.

    localspec pull speakers
    python tests/perf/speech/diarization.py MODELS
    python tests/perf/speech/diarization.py MODELS --audio call.wav --truth call.rttm
    python tests/perf/speech/diarization.py MODELS --voices slt,rms,awb --keep dialogue.wav

MODELS is the folder of the diarization models. The dialogue needs flite. No collar is left out around the
borders of turns, and overlapping speech counts for each of its speakers.
"""

from __future__ import annotations

import argparse
import sys
import time
import wave
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

if __name__ == "__main__":  # as a script
    sys.path[:0] = [str(folder) for folder in (Path(__file__).parent, Path(__file__).parents[3])]

from dialogue import Dialogue, dialogue

from localspec.speech.diarization.models import Models
from localspec.speech.diarization.pipeline import diarize
from localspec.speech.types import RATE, Turn

FRAME = 0.01  # seconds


class ErrorRate(NamedTuple):
    """The diarization error rate and its parts, in percent of the speech of the truth."""

    total: float
    missed: float
    false: float
    confused: float


def error_rate(truth: Sequence[Turn], found: Sequence[Turn]) -> ErrorRate:
    """Return the diarization error rate (NIST RT-03) under the best pairing of both sides' speakers."""
    from scipy.optimize import linear_sum_assignment

    frames = int(max(turn.end for turn in (*truth, *found)) / FRAME) + 1
    right, own = _active(truth, frames), _active(found, frames)
    shared = right.astype(int) @ own.T.astype(int)
    rows, columns = linear_sum_assignment(-shared)
    speaking, said = right.sum(axis=0), own.sum(axis=0)
    missed = np.maximum(0, speaking - said).sum()
    false = np.maximum(0, said - speaking).sum()
    confused = np.minimum(speaking, said).sum() - shared[rows, columns].sum()
    parts = [100 * float(part) / float(speaking.sum()) for part in (missed, false, confused)]
    return ErrorRate(sum(parts), *parts)


def _active(turns: Sequence[Turn], frames: int) -> NDArray[np.bool_]:
    """Return who speaks [speakers, frames]."""
    speakers = sorted({turn.speaker for turn in turns})
    active = np.zeros((len(speakers), frames), bool)
    for turn in turns:
        active[speakers.index(turn.speaker), round(turn.start / FRAME) : round(turn.end / FRAME)] = True
    return active


def read_rttm(path: Path) -> list[Turn]:
    """Return the turns of an RTTM file."""
    rows = [line.split() for line in path.read_text("utf-8").splitlines() if line.startswith("SPEAKER")]
    return [Turn(float(row[3]), float(row[3]) + float(row[4]), row[7]) for row in rows]


def write_wav(path: Path, made: Dialogue) -> None:
    """Write a dialogue as 16-bit WAV."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((made.samples.clip(-1, 1) * 32767).astype("<i2").tobytes())


def measure(path: Path, truth: list[Turn], models: Models) -> None:
    """Print the error rates of a file with the number of its speakers given and without."""
    count = len({turn.speaker for turn in truth})
    for label, speakers in ((f"{count} speakers given", (count, count)), ("number not given", None)):
        started = time.perf_counter()
        found = diarize(path, models, speakers)
        seconds = time.perf_counter() - started
        rate = error_rate(truth, found)
        print(
            f"{label}: {rate.total:.1f} % (missed {rate.missed:.1f}, false {rate.false:.1f},"
            f" confused {rate.confused:.1f}), {len({turn.speaker for turn in found})} found,"
            f" {len(found)} turns, {seconds:.1f} s"
        )


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", type=Path, help="the folder of the diarization models")
    parser.add_argument("--audio", type=Path, help="a recording, instead of a dialogue")
    parser.add_argument("--truth", type=Path, help="its turns, an RTTM file")
    parser.add_argument("--voices", default="slt,rms", help="of flite (default: slt,rms)")
    parser.add_argument("--keep", type=Path, help="write the dialogue to this file")
    args = parser.parse_args()
    models = Models.open(args.models)
    if args.audio:
        measure(args.audio, read_rttm(args.truth), models)
        return
    made = dialogue(args.voices.split(","))
    with TemporaryDirectory() as folder:
        path = args.keep or Path(folder) / "dialogue.wav"
        write_wav(path, made)
        measure(path, made.turns, models)


if __name__ == "__main__":
    main()
