"""A dialogue of synthetic voices, made from text by flite, with its turns known to the sample."""

from __future__ import annotations

import subprocess
import wave
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from localspec.speech.types import RATE, Turn

LINES = Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines()
JOIN = 0.25  # seconds: a shorter pause belongs to the turn
QUIET = 0.01  # of the loudest sample


@dataclass(frozen=True)
class Dialogue:
    """Mono samples at 16 kHz, and who speaks when in them."""

    samples: NDArray[np.float32]
    turns: list[Turn]


def dialogue(voices: Sequence[str], lines: Sequence[str] = LINES, seed: int = 0) -> Dialogue:
    """Return lines said by voices of flite in turn, some a little before the one before has ended."""
    dice = np.random.default_rng(seed)
    at, turns, parts = RATE // 2, [], []
    for number, line in enumerate(lines):
        voice = voices[number % len(voices)]
        said = spoken(voice, line)
        for start, end in voiced(said):
            turns.append(Turn((at + start) / RATE, (at + end) / RATE, voice))
        parts.append((at, said))
        at = max(0, at + len(said) + int(dice.uniform(-0.3, 0.7) * RATE))
    samples = np.zeros(max(start + len(said) for start, said in parts) + RATE, np.float32)
    for start, said in parts:
        samples[start : start + len(said)] += said
    samples += dice.normal(scale=3e-4, size=len(samples)).astype(np.float32)
    return Dialogue(samples, turns)


def spoken(voice: str, text: str) -> NDArray[np.float32]:
    """Return what flite says, without the silence before and after."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "said.wav"
        subprocess.run(["flite", "-voice", voice, "-t", text, "-o", str(path)], check=True)
        with wave.open(str(path)) as file:
            rate, content = file.getframerate(), file.readframes(file.getnframes())
    samples = np.frombuffer(content, "<i2").astype(np.float32) / 32768
    if rate != RATE:
        times = np.arange(int(len(samples) * RATE / rate)) * rate / RATE
        samples = np.interp(times, np.arange(len(samples)), samples).astype(np.float32)
    stretches = voiced(samples)
    return samples[stretches[0][0] : stretches[-1][1]]


def voiced(samples: NDArray[np.float32]) -> list[tuple[int, int]]:
    """Return the stretches of a voice without pauses, in samples."""
    loud = np.flatnonzero(np.abs(samples) > QUIET * np.abs(samples).max())
    breaks = np.flatnonzero(np.diff(loud) > JOIN * RATE)
    starts = loud[np.concatenate([[0], breaks + 1])]
    ends = loud[np.concatenate([breaks, [len(loud) - 1]])] + 1
    return [(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]
