"""A smaller speech model as a draft: whether it is worth its time for a window, and what it expects."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from localspec import plugins
from localspec.speech.decoding import WindowDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from localspec.core.types import Step
    from localspec.speech.model import SpeechModel
    from localspec.speech.types import Window

RATE_AT_FIRST = 4.5  # tokens per second of speech
SAVED_AT_FIRST = 0.6  # of a plain token's seconds
NEW = 0.3  # weight of the latest window
BUDGET = 0.02  # of all seconds, for drafts that may turn out not to pay


@dataclass(slots=True)
class Worth:
    """Decides for each window whether a draft saves more than it costs, by what it did so far.

    A window of n tokens costs n p without a draft and n (1 - s) p + e + n t with one: p seconds of a token
    decoded plainly, s the share of them that a draft saves, e the seconds of the draft's encoder and t those
    of its token. All are measured; the number of tokens follows from the seconds of speech.
    """

    plain: float = 0.0
    saved: float = SAVED_AT_FIRST
    encoder: float = 0.0
    token: float = 0.0
    rate: float = RATE_AT_FIRST
    seconds: float = 0.0  # of all windows
    lost: float = 0.0  # by drafts that did not pay

    def gain(self, seconds: float) -> float:
        """Return the seconds that a draft is expected to save in a window with so many of speech."""
        count = self.rate * seconds
        return count * (self.saved * self.plain - self.token) - self.encoder

    def wanted(self, seconds: float) -> bool:
        """Return whether to draft a window."""
        gain = self.gain(seconds)
        return gain > 0 or self.lost - gain < BUDGET * self.seconds

    def learn(self, window: float, steps: Sequence[Step], drafting: tuple[float, float] | None) -> None:
        """Learn from a window of so many seconds, its steps, and the seconds of its draft (encoder, rest)."""
        tokens = sum(len(step.tokens) for step in steps)
        spent = sum(step.target_seconds + step.draft_seconds for step in steps)
        self.seconds += spent + (sum(drafting) if drafting else 0.0)
        alone = [step.target_seconds for step in steps if not step.drafted]
        if alone:
            self.plain = _mixed(self.plain, sorted(alone)[len(alone) // 2])
        self.rate = _mixed(self.rate, tokens / max(window, 1.0))
        if drafting and tokens:
            self.encoder = _mixed(self.encoder, drafting[0])
            self.token = _mixed(self.token, drafting[1] / tokens)
            self.saved = _mixed(self.saved, 1 - spent / (tokens * self.plain))
            self.lost = max(0.0, self.lost + spent + sum(drafting) - tokens * self.plain)


def _mixed(old: float, new: float) -> float:
    return new if old == 0 else (1 - NEW) * old + NEW * new


class SpeechDraft:
    """A smaller speech model, with ears of its own, that writes what a window's answer is expected to be."""

    def __init__(self, model: SpeechModel, target: SpeechModel) -> None:
        self.model, self._target = model, target
        self._same = model.tokens == target.tokens
        self._decoder = WindowDecoder(
            model.cursor, model.tokenizer, model.tokens, plugins.parse("verifiers", "exact").make()
        )

    def serves(self, language: str | None, task: str) -> bool:
        """Return whether the draft knows the language and the task."""
        tokens = self.model.tokens
        if not tokens.multilingual:
            return language in (None, "en") and task == "transcribe"
        return language in tokens.languages and task in tokens.tasks

    def expected(
        self, window: Window, language: str | None, task: str
    ) -> tuple[list[int], tuple[float, float]]:
        """Return the tokens that the target is expected to write of a window, and the seconds it took.

        They are those of its encoder and those of the rest.
        """
        started, before = perf_counter(), self.model.encoder_seconds
        self.model.hear(self.model.encode(window))
        encoder = self.model.encoder_seconds - before
        self._decoder.target = self.model.cursor
        prompt = self.model.tokens.prompt(language if self.model.tokens.multilingual else None, task)
        found = self._decoder.attempt(
            prompt,
            plugins.parse("drafters", "none").make(self.model.cursor),
            plugins.parse("draft_length", "fixed:tokens=0").make(),
        )
        answer = list(found.tokens) if self._same else self._translated(found.tokens)
        return [*answer, self._target.tokens.end], (encoder, perf_counter() - started - encoder)

    def _translated(self, answer: tuple[int, ...]) -> list[int]:
        """Return an answer in the target's tokens: its text encoded anew, its times moved."""
        own, other = self.model.tokens, self._target.tokens
        found: list[int] = []
        for at, token in enumerate(answer):
            if own.is_time(token):
                found.append(other.first_time + token - own.first_time)
            elif at == 0 or own.is_time(answer[at - 1]):
                last = next(
                    (place for place in range(at, len(answer)) if own.is_time(answer[place])), len(answer)
                )
                found += encoded(
                    self._target.tokenizer, str(self.model.tokenizer.decode(list(answer[at:last])))
                )
        return found


def encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a text, without those that begin or end one."""
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found
