"""A speech model that listens: its engine's session, its tokens and its tokenizer."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from localspec.core.contracts import Engine, SpeechSession
from localspec.core.cursor import Cursor
from localspec.disk.samples import sampled_digest
from localspec.errors import UnsupportedModel
from localspec.formats.files import read_json
from localspec.formats.whisper import graphs
from localspec.speech.features import FRAMES, SECONDS, log_mel
from localspec.speech.whisper.vocabulary import SpeechTokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.core.types import Logits
    from localspec.speech.types import Window


ENCODER_WEIGHTS = f"{graphs.ENCODER}.bin"


class SpeechModel:
    """One session of a speech model, which hears window after window."""

    def __init__(self, engine: Engine, folder: Path, tokenizer: Tokenizer) -> None:
        session = engine.session()
        if not isinstance(session, SpeechSession):
            raise UnsupportedModel(
                f"`{folder.name}` is no speech model", "`localspec search speech` lists those that are"
            )
        self.engine, self.tokenizer, self.session = engine, tokenizer, session
        self.tokens = SpeechTokens.of(folder)
        self.mels = int(read_json(folder / "config.json").get("num_mel_bins", 80))
        self.cursor = Cursor(session)
        self.encoder_digest = sampled_digest(folder / ENCODER_WEIGHTS)
        self.encoder_seconds = 0.0  # of all windows
        self.last_encoder_seconds = 0.0  # of the last window
        self.pass_seconds = 0.0  # of the last window's first pass

    def encode(self, window: Window, seconds: float = SECONDS) -> Logits:
        """Return the encoder's hidden states [frames, width] of a window, padded with silence to `seconds`.

        Whisper was trained on 30.
        """
        started = perf_counter()
        frames = min(FRAMES, 2 * math.ceil(seconds * FRAMES / (2 * SECONDS)))
        states = self.session.encode(log_mel(window.samples, self.mels)[:, :frames])
        self.last_encoder_seconds = perf_counter() - started
        self.encoder_seconds += self.last_encoder_seconds
        return states

    def hear(self, states: Logits) -> None:
        """Empty the text; what follows is about the hidden states."""
        started = perf_counter()
        self.session.hear(states)
        self.cursor = Cursor(self.session)
        self.encoder_seconds += perf_counter() - started

    def listen(self, language: str | None) -> tuple[str | None, float]:
        """Return the language of what was heard, unless it is given, and the probability that nobody talks.

        The language is the likeliest after the first token, as in OpenAI's `detect_language`; None for a
        model of English alone.
        """
        own = self.tokens
        started = perf_counter()
        row = self.cursor.read([own.start], rows=1)[0]
        self.pass_seconds = perf_counter() - started
        weights = np.exp(row - row.max())
        nobody = float(weights[own.no_speech] / weights.sum())
        if language is None and own.multilingual:
            language = max(own.languages, key=lambda code: row[own.languages[code]])
        return language, nobody
