"""An answer as it grows, and its text as a stream."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from localspec.core.stats import Stats, TierStats
from localspec.output.reasoning import OutputPiece, ReasoningParser

if TYPE_CHECKING:
    from localspec.core.types import Step


@dataclass(slots=True)
class Answer:
    """One answer as it grows: its text, its statistics and its times in seconds.

    `prompt_seconds` is the time to read the prompt except its last token; `seconds` is all time spent on the
    answer, without that of the caller between two steps. `cached_prompt_tokens` of the prompt came from the
    prompt cache on disk. `finish_reason` is "stop", "length", "repeating" or "interrupted"; `off_reason` says
    why nothing was drafted, None if something was; `gains` are what a step's first guess of each source was
    expected to save, in passes over one token. `reasoning` is what a reasoning model thought, if a chat
    told it apart. `marks` are the places in the model's whole text of tokens that are marks, as in `Step`.
    `tiers` counts tokens by the tier that emitted them, if the verifier is lossy.
    """

    prompt_tokens: int
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    marks: list[int] = field(default_factory=list)
    reasoning: str = ""
    finish_reason: str = "interrupted"
    cached_prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: float = 0.0
    stats: Stats = field(default_factory=Stats)
    tiers: TierStats = field(default_factory=TierStats)
    off_reason: str | None = None
    gains: dict[str, float] = field(default_factory=dict)
    context_full: bool = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second after the prompt was read."""
        decoding = self.seconds - self.prompt_seconds
        return len(self.token_ids) / decoding if decoding > 0 else 0.0

    @property
    def estimated_speedup(self) -> float | None:
        """How many times as fast as plain decoding, by the passes of this answer that had no guess.

        None if nothing was drafted, or no pass was without a guess.
        """
        plain = self.stats.plain_token_seconds
        return None if plain is None or not self.stats.drafted else plain * self.tokens_per_second


class AnswerStream:
    """The text of an answer as the model writes it; `answer` fills up meanwhile.

    Iterating yields the answer without its reasoning. Leaving the loop early and calling `close` interrupts
    the answer; the text so far is kept.
    """

    def __init__(
        self, answer: Answer, steps: Generator[Step, None, None], parser: ReasoningParser | None
    ) -> None:
        self.answer = answer
        self._steps = steps
        self._parser = parser

    def __iter__(self) -> Iterator[str]:
        for step in self._steps:
            yield from self._visible(step)

    def _visible(self, step: Step) -> Iterator[str]:
        """Yield the text of a step that is not reasoning."""
        if self._parser is None:
            pieces = [OutputPiece(step.text)]
        else:
            pieces = self._parser.push(step.text, step.marks) + (self._parser.end() if step.finish else [])
        yield from (piece.text for piece in pieces if piece.text and not piece.is_reasoning)

    def finish(self) -> Answer:
        """Draw the rest of the answer and return it."""
        with closing(self._steps):
            for _ in self._steps:
                pass
        return self.answer

    def close(self) -> None:
        """Interrupt the answer."""
        self._steps.close()
