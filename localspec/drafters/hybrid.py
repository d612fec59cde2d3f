"""Mixes several sources in one draft: confident copies, a draft model, and what is left after it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Annotated

from localspec import plugins
from localspec.core.contracts import CopyingDrafter, Drafter, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Candidate, Guess, LazyGuess, Logits, Tokens, Verdict
from localspec.drafting.acceptance import class_of
from localspec.plugins import Option

SUFFIX, MODEL, RECYCLE = "suffix", "draft_model", "recycle"  # sources of guesses, named as their parts
READ = 16  # tokens that a draft model may catch up with for each step in which it was missed
CREDIT = 32  # steps that count as missed when an answer begins
PRIOR = 4.0  # verified guesses that a source's own confidence is worth
FADE = 0.98  # of what earlier guesses weigh is left after each new one


class HybridDraft(Drafter):
    """Copies where the text repeats itself, else asks a draft model, else recycles the target's tokens.

    At each position of a draft, a confident copy is taken first (`suffix`); else the draft model guesses, if
    there is one (`draft_model`, or `universal` for another vocabulary); where it is declined, the more likely
    of an unsure copy and the target's last successor (`recycle`) follows. So a draft may begin with a model's
    guesses and end with a retrieved tail. Confidence is calibrated by the acceptance rate of each class.

    A draft model that fell behind while copies led must read what it missed before it can guess again. It is
    asked once it has been missed for as many steps as the reading costs, which loses at most twice what an
    oracle would lose (ski rental; Karlin et al. 1988).
    """

    translates = "if needed"

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel | None = None,
        *,
        name: Annotated[str, Option("the draft model: an alias, a file or a folder; none when empty")] = "",
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
        sure: Annotated[float, Option("confidence of a copy that is taken at once", least=0, most=1)] = 0.7,
        store: Annotated[str, Option("file that keeps answers for the next run, none when empty")] = "",
    ) -> None:
        del device, threads, runs  # the draft model's engine was made from them
        self._suffix: CopyingDrafter = plugins.part("drafters", SUFFIX).made_by(target, store=store)
        self._recycle: Drafter = plugins.part("drafters", RECYCLE).made_by(target)
        self._model: Drafter | None = None
        if draft_model is not None:
            kind = MODEL if draft_model.translation is None else "universal"
            self._model = plugins.part("drafters", kind).made_by(target, draft_model, name=name)
        self._sure = sure
        self._evidence: dict[str, tuple[float, float]] = {}  # by class: accepted of verified guesses, faded
        self._classes: dict[int, str] = {}  # of this step's guesses, by position in the text
        self._read = 0  # tokens that the draft model has read
        self._missed = CREDIT  # steps in which the draft model was wanted and did not guess
        self._wanted = False

    @property
    def note(self) -> str | None:
        """Why the store is not used or was started anew, or None."""
        return self._suffix.note

    def begin(self, prompt: Tokens) -> None:
        """Start an answer: the draft model may read the prompt."""
        self._missed, self._classes, self._wanted = CREDIT, {}, False
        for source in self._sources:
            source.begin(prompt)

    def end(self) -> None:
        """End the answer."""
        for source in self._sources:
            source.end()

    @property
    def _sources(self) -> list[Drafter]:
        return [self._suffix, self._recycle, *([self._model] if self._model else [])]

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield copies while they are confident, lazy guesses of the model, then what is left."""
        walk = self._suffix.walk(tokens)
        able = self._model is not None and len(tokens) - self._read <= READ * (self._missed + 1)
        text, model_guesses = list(tokens), None
        while True:
            copy = self._suffix.guess(walk)
            chance, name = self._calibrated(copy, SUFFIX, len(text)) if copy else (0.0, "")
            likely = copy is not None and chance >= self._sure
            self._wanted = self._wanted or not (likely or self._classes)
            if able and not likely and self._model is not None:
                model_guesses = model_guesses or self._model.propose(list(text), sampler)
                guess = yield from self._ask(model_guesses, text)
                if guess is None:
                    able = False
                    continue
            else:
                model_guesses = None
                successor = None if likely else self._last_successor(text, sampler)
                other, of_other = self._calibrated(successor, RECYCLE, len(text)) if successor else (0.0, "")
                if successor is not None and other > chance:
                    guess = self._noted(successor, RECYCLE, other, of_other, len(text))
                elif copy is not None:
                    guess = self._noted(copy, SUFFIX, chance, name, len(text))
                else:
                    return
                yield guess
            text.append(guess.token)
            walk.go(guess.token, copied=guess.source == SUFFIX)

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Learn which guesses of each class were accepted, and let the sources learn from the logits."""
        rejected = len(tokens) - (len(logits) - 1) + verdict.accepted  # position of the first rejected guess
        for at in range(len(tokens) - len(logits) + 1, min(rejected + 1, len(tokens))):
            if name := self._classes.get(at):  # a grammar may have guessed too
                accepted, verified = self._evidence.get(name, (0.0, 0.0))
                self._evidence[name] = FADE * accepted + (at < rejected), FADE * verified + 1
        self._classes = {}
        self._missed += self._wanted
        self._wanted = False
        self._suffix.observe(tokens, logits, verdict)
        self._recycle.observe(tokens, logits, verdict)

    def _ask(self, candidates: Iterator[Candidate], text: Tokens) -> Generator[Candidate, None, Guess | None]:
        """Pass on the model's next candidate and return the guess that came of it, None if none did."""
        candidate = next(candidates, None)
        if isinstance(candidate, Guess):
            guess = self._noted(candidate, MODEL, *self._calibrated(candidate, MODEL, len(text)), len(text))
            yield guess
            return guess
        drawn: list[Guess] = []

        def draw() -> Guess | None:
            guess = candidate.draw() if candidate else None
            if guess is not None:
                drawn.append(self._noted(guess, MODEL, *self._calibrated(guess, MODEL, len(text)), len(text)))
                self._read, self._missed, self._wanted = len(text), 0, False
            return drawn[0] if drawn else None

        if candidate is not None:
            yield LazyGuess(draw, MODEL, candidate.behind)
        return drawn[0] if drawn else None

    def _last_successor(self, text: Tokens, sampler: Sampler) -> Guess | None:
        """Return what the target last wrote after the last token, None if it never wrote that token."""
        guess = next(iter(self._recycle.propose(text[-1:], sampler)), None)
        return guess if isinstance(guess, Guess) else None

    def _calibrated(self, guess: Guess, source: str, at: int) -> tuple[float, str]:
        """Return the acceptance probability of a guess at position `at`, and its class.

        The share of accepted guesses of its class, mixed with the source's own confidence. Copies that
        continue form a class of their own: they are accepted more often than those that begin.
        """
        name = class_of(source, guess.confidence, at - 1 in self._classes)
        accepted, verified = self._evidence.get(name, (0.0, 0.0))
        return (accepted + PRIOR * guess.confidence) / (verified + PRIOR), name

    def _noted(self, guess: Guess, source: str, chance: float, name: str, at: int) -> Guess:
        """Return the guess for position `at` with its source and calibrated confidence; note its class."""
        self._classes[at] = name
        return Guess(guess.token, guess.probs, chance, source)
