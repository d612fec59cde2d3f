"""The tokens of one window: the same loop as for text, and another attempt where the first is poor."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from localspec.core.cursor import Cursor
from localspec.core.decode import decode
from localspec.core.sampler import Sampling
from localspec.core.stop import OutputProcessor
from localspec.core.text import TextStream
from localspec.speech.whisper.rules import SpeechSampler

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from localspec.core.contracts import Drafter, DraftLengthPolicy, Verifier
    from localspec.core.types import Step
    from localspec.speech.whisper.vocabulary import SpeechTokens

TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
MOST_COMPRESSED = 2.4  # bytes of a text by those of it compressed: more is a loop
LEAST_SURE = -1.0  # mean log-probability of a token
NOBODY = 0.6  # probability of the token that says that nobody talks
MOST_TOKENS = 224  # of a window's answer


@dataclass(frozen=True, slots=True)
class Decoded:
    """What was decoded of a window: the tokens with their times, without the end."""

    tokens: tuple[int, ...]
    text: str
    finish: str
    temperature: float
    logprob: float
    no_speech: float
    compression: float
    logprobs: tuple[float, ...] = ()
    steps: tuple[Step, ...] = field(default=(), repr=False)

    @property
    def poor(self) -> bool:
        """Return whether another temperature should be tried."""
        return self.compression > MOST_COMPRESSED or (self.logprob < LEAST_SURE and not self.silent)

    @property
    def silent(self) -> bool:
        """Return whether nobody talks."""
        return self.no_speech > NOBODY and self.logprob < LEAST_SURE


@dataclass(slots=True)
class WindowDecoder:
    """Decodes what a cursor's session has heard."""

    target: Cursor
    tokenizer: Tokenizer
    tokens: SpeechTokens
    verifier: Verifier
    seed: int = 0

    def decode(
        self, prompt: Sequence[int], drafter: Drafter, policy: DraftLengthPolicy, no_speech: float
    ) -> Decoded:
        """Return the answer to `prompt`, from the first temperature whose answer is not poor.

        As OpenAI's `decode_with_fallback`; the last temperature's answer is taken as it is.
        """
        found: Decoded | None = None
        steps: tuple[Step, ...] = ()
        for temperature in TEMPERATURES:
            found = self.attempt(prompt, drafter, policy, no_speech, temperature, steps)
            steps = found.steps
            if not found.poor:
                break
        assert found is not None
        return found

    def attempt(
        self,
        prompt: Sequence[int],
        drafter: Drafter,
        policy: DraftLengthPolicy,
        no_speech: float = 0.0,
        temperature: float = 0.0,
        before: tuple[Step, ...] = (),
        most: int = MOST_TOKENS,
    ) -> Decoded:
        """Return the answer of at most `most` tokens at one temperature.

        Its steps follow those of the attempts `before`.
        """
        sampler = SpeechSampler(self.tokens, Sampling(temperature), seed=self.seed, answer_from=len(prompt))
        processor = OutputProcessor(
            TextStream(self.tokenizer),
            stop_tokens=(self.tokens.end,),
            max_new_tokens=min(most, MOST_TOKENS, 2 * MOST_TOKENS - len(prompt)),
        )
        steps = list(decode(prompt, self.target, drafter, policy, self.verifier, sampler, processor))
        answer = [token for step in steps for token in step.tokens]
        logprobs = [sampler.logprobs[len(prompt) + at] for at in range(len(answer))]
        words = [token for token in answer if token < self.tokens.end]
        text = str(self.tokenizer.decode(words)).strip()
        return Decoded(
            tokens=tuple(token for token in answer if token != self.tokens.end),
            text=text,
            finish=steps[-1].finish or "",
            temperature=temperature,
            logprob=float(np.mean(logprobs)),
            no_speech=no_speech,
            compression=compression(text),
            logprobs=tuple(logprobs[: len(answer)]),
            steps=(*before, *steps),
        )


def compression(text: str) -> float:
    """Return the bytes of a text by those of it compressed."""
    found = text.encode()
    return len(found) / len(zlib.compress(found)) if found else 0.0
