"""Guesses of several sources in one draft: copies that are sure, a draft model, and what is left after it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Annotated

from localspec import plugins
from localspec.core.contracts import Drafter, Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Guess, LazyGuess, Logits, Tokens, Verdict
from localspec.drafting.acceptance import class_of
from localspec.formats.tokenizer.token_bytes import Translation
from localspec.plugins import Option

SUFFIX, MODEL, RECYCLE = "suffix", "draft_model", "recycle"  # sources of guesses
READ = 16  # tokens that a draft model may catch up with for each round that it was missed
CREDIT = 32  # rounds that it counts as missed when an answer begins
AHEAD = 64  # tokens that others may guess in a draft before it is asked
PRIOR = 4.0  # judged guesses that a source's own confidence is worth
FADE = 0.98  # of what earlier guesses weigh is left after each new one


class HybridDraft(Drafter):
    """Copies where the text repeats itself, else asks a draft model, and fills up from the target's own rows.

    At each position of a draft: a copy that is sure enough is taken (`suffix`); else the draft model is
    offered, when there is one (`model`, or `universal` for another vocabulary); where it is refused, the
    likelier one of a doubtful copy and the target's last successor (`recycle`) goes on. So a draft may begin
    with a model's guesses and end with a retrieved tail. Confidence is calibrated by what stood, class by
    class.

    A model that copies have left behind must read what it missed before it can guess again. It is offered
    when it has been missed for so many rounds as the reading costs: then no more is lost than twice what is
    lost by who knows the future (ski rental; Karlin et al. 1988).

    `note` says why a store of answers is not used, None when it is or when there is none.
    """

    translates = "if needed"

    def __init__(
        self,
        target: Cursor,
        engine: Engine | None = None,
        vocab: int | None = None,
        translation: Translation | None = None,
        *,
        name: Annotated[str, Option("the draft model: an alias, a file or a folder; none when empty")] = "",
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
        sure: Annotated[float, Option("confidence of a copy that is taken at once", least=0, most=1)] = 0.7,
        store: Annotated[str, Option("file that keeps answers for the next time, none when empty")] = "",
    ) -> None:
        del device, threads, runs  # `runtime` has made the engine from them
        self._suffix = plugins.part("drafters", SUFFIX).made_by(target, store=store)
        self._recycle: Drafter = plugins.part("drafters", RECYCLE).made_by(target)
        self._model: Drafter | None = None
        if engine is not None:
            kind, given = ("universal", [translation]) if translation else (MODEL, [])
            self._model = plugins.part("drafters", kind).made_by(target, engine, vocab, *given, name=name)
        self._sure = sure
        self._stood: dict[str, tuple[float, float]] = {}  # by class: how many of how many, faded
        self._classes: dict[int, str] = {}  # of guesses by place, by their sources' own confidence
        self._begun = self._most = 0  # tokens before the last guesses, and the most after their round
        self._read = 0  # tokens that the model has read
        self._missed = CREDIT  # rounds in which it was wanted and did not guess
        self._wanted = False

    @property
    def note(self) -> str | None:
        """Say why the store is not used or was begun anew, or None."""
        found: str | None = self._suffix.note
        return found

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Guess | LazyGuess]:
        """Yield copies while they are sure, offers of the model, then what is left."""
        self._begin(tokens)
        walk = self._suffix.walk(tokens)
        able = self._model is not None and len(tokens) - self._read <= READ * (self._missed + 1)
        text, steps = list(tokens), None
        while True:
            copy = self._suffix.guess(walk)
            chance, name = self._judged(copy, SUFFIX, len(text)) if copy else (0.0, "")
            likely = copy is not None and chance >= self._sure
            self._wanted = self._wanted or not (likely or self._classes)
            if able and not likely and self._model is not None:
                steps = steps or self._model.propose(list(text), sampler)
                guess = yield from self._ask(steps, text)
                if guess is None:
                    able = False
                    continue
            else:
                steps = None
                last = None if likely else self._last_successor(text, sampler)
                other, of_other = self._judged(last, RECYCLE, len(text)) if last else (0.0, "")
                if last is not None and other > chance:
                    guess = self._kept(last, RECYCLE, other, of_other, len(text))
                elif copy is not None:
                    guess = self._kept(copy, SUFFIX, chance, name, len(text))
                else:
                    return
                yield guess
            text.append(guess.token)
            walk.go(guess.token, copied=guess.source == SUFFIX)

    def observe(self, tokens: Tokens, rows: Logits, verdict: Verdict) -> None:
        """Learn which guesses of each class stood, and let the sources learn from the rows."""
        wrong = len(tokens) - (len(rows) - 1) + verdict.accepted  # the place of the first, if any was
        for at in range(len(tokens) - len(rows) + 1, min(wrong + 1, len(tokens))):
            if name := self._classes.get(at):  # others may have guessed too
                stood, judged = self._stood.get(name, (0.0, 0.0))
                self._stood[name] = FADE * stood + (at < wrong), FADE * judged + 1
        self._classes, self._most = {}, len(tokens) + 1
        self._missed += self._wanted
        self._wanted = False
        self._suffix.observe(tokens, rows, verdict)
        self._recycle.observe(tokens, rows, verdict)

    def _begin(self, tokens: Tokens) -> None:
        if not self._begun < len(tokens) <= self._most + AHEAD:  # another answer
            self._missed, self._classes, self._wanted = CREDIT, {}, False
        self._begun = len(tokens)

    def _ask(
        self, steps: Iterator[Guess | LazyGuess], text: Tokens
    ) -> Generator[Guess | LazyGuess, None, Guess | None]:
        """Pass on the model's next step and return the guess that came of it, None when none did."""
        step = next(steps, None)
        if isinstance(step, Guess):
            guess = self._kept(step, MODEL, *self._judged(step, MODEL, len(text)), len(text))
            yield guess
            return guess
        made: list[Guess] = []

        def draw() -> Guess | None:
            found = step.draw() if step else None
            if found is not None:
                made.append(self._kept(found, MODEL, *self._judged(found, MODEL, len(text)), len(text)))
                self._read, self._missed, self._wanted = len(text), 0, False
            return made[0] if made else None

        if step is not None:
            yield LazyGuess(draw, MODEL, step.behind)
        return made[0] if made else None

    def _last_successor(self, text: Tokens, sampler: Sampler) -> Guess | None:
        """Return what the target last said after the last token, None when it said nothing yet."""
        step = next(iter(self._recycle.propose(text[-1:], sampler)), None)
        return step if isinstance(step, Guess) else None

    def _judged(self, guess: Guess, source: str, at: int) -> tuple[float, str]:
        """Return the chance of a guess at a place, and its class: copies go on more surely than they begin.

        That is the share of guesses of its class that stood; the source's own confidence counts too.
        """
        name = class_of(source, guess.confidence, at - 1 in self._classes)
        stood, judged = self._stood.get(name, (0.0, 0.0))
        return (stood + PRIOR * guess.confidence) / (judged + PRIOR), name

    def _kept(self, guess: Guess, source: str, chance: float, name: str, at: int) -> Guess:
        """Return the guess for place `at` with its source and calibrated chance, and remember its class."""
        self._classes[at] = name
        return Guess(guess.token, guess.probs, chance, source)
