"""Offers several sources in one draft: copies, a draft model's guesses, and the target's earlier tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Annotated

from localspec import plugins
from localspec.core.contracts import CopyingDrafter, CopyWalk, Drafter, DraftModel, SuccessorDrafter
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import SURE, Candidate, Guess, LazyGuess, Logits, Tokens, Verdict
from localspec.drafting.branches import Branches
from localspec.plugins import Option

SUFFIX, RECYCLE = "suffix", "recycle"  # sources of guesses, named as their parts
MODEL, TRANSLATED, HEAD = "draft_model", "universal", "head"  # those that run a model
SUCCESSORS = "of a token that are kept for branches, 1 for none"
ANY = Sampler(Sampling())  # a table of successors samples nothing


class HybridDraft(CopyingDrafter):
    """Offers at each position a draft model's guess, and instead of it a copy or a recycled token.

    Without a model, or where its guess is declined, the more confident of two retrieved tokens follows: what
    came after the longest earlier match (`suffix`), or what the target last wrote after the last token
    (`recycle`). The model is `draft_model`, `universal` for another vocabulary, or a `head`. The draft-length
    policy chooses at each position: a draft may begin with a model's guesses and end with a retrieved tail.
    Where the target reads branches, they grow beside it from what `recycle` knows.
    """

    translates = "if needed"
    kinds = ("text", "head")

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel | None = None,
        *,
        name: Annotated[str, Option("the draft model: an alias, a file or a folder; none when empty")] = "",
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
        max_tokens: Annotated[int, Option("tokens to search", least=1000, most=10_000_000)] = 200_000,
        store: Annotated[str, Option("file that keeps answers for the next run, none when empty")] = "",
        successors: Annotated[int, Option(SUCCESSORS, least=1, most=64)] = 1,
        split: Annotated[int, Option("the model's guesses in a draft, 0 for as many as pay", least=0)] = 0,
    ) -> None:
        del device, threads, runs  # the draft model's engine was made from them
        self._split = split
        copying = {"max_tokens": max_tokens, "store": store}
        self._suffix: CopyingDrafter = plugins.part("drafters", SUFFIX).made_by(target, **copying)
        self._recycle: SuccessorDrafter = plugins.part("drafters", RECYCLE).made_by(
            target, successors=successors
        )
        self._model: Drafter | None = None
        self._source = HEAD if draft_model is not None and draft_model.head else MODEL
        if draft_model is not None:
            own = MODEL if draft_model.translation is None else TRANSLATED
            self._model = plugins.part("drafters", HEAD if draft_model.head else own).made_by(
                target, draft_model, name=name
            )

    @property
    def note(self) -> str | None:
        """Why the store is not used or was started anew, or branches are not read, or None."""
        return self._suffix.note or self._recycle.note

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Let `suffix` copy from the expected answer to a prompt."""
        self._suffix.expect(prompt, answer)

    def begin(self, prompt: Tokens) -> None:
        """Start an answer."""
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
        """Yield for each position a lazy guess of the model, if there is one, then a retrieved token."""
        walk, text = self.walk(tokens), list(tokens)
        model = _ModelGuesses(self._model, self._source, sampler) if self._model else None
        branches = Branches(tokens, self._recycle.successors)
        while True:
            guess, retrieved = None, sampler.permitted(self.guess(walk), text)
            yield from _recycled(branches.better(retrieved.confidence if retrieved else SURE))
            asked = model if not self._split or len(text) < len(tokens) + self._split else None
            if asked is not None and (candidate := asked.offer(text, retrieved)) is not None:
                yield candidate
                guess = asked.taken
            if guess is None:
                if retrieved is None:
                    break
                yield (guess := retrieved)
            text.append(guess.token)
            copied = guess.source == SUFFIX or (asked is not None and asked.copied)
            walk.go(guess.token, copied=copied)
            branches.step(guess)
        branches.end()
        yield from _recycled(branches.better(0.0))

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Let the sources learn from the logits."""
        self._suffix.observe(tokens, logits, verdict)
        self._recycle.observe(tokens, logits, verdict)

    def observe_branches(self, tokens: Tokens, branches: Sequence[Guess], logits: Logits) -> None:
        """Let `recycle` learn from the logits of branches."""
        self._recycle.observe_branches(tokens, branches, logits)

    def walk(self, tokens: Tokens) -> RetrievalWalk:
        """Take in `tokens` and return the position after them."""
        return RetrievalWalk(self._suffix, self._suffix.walk(tokens), tokens[-1:])

    def guess(self, walk: CopyWalk) -> Guess | None:
        """Return the more confident of a copy and a recycled token, None without either."""
        assert isinstance(walk, RetrievalWalk)
        copy = self._suffix.guess(walk.copies)
        offered = self._recycle.propose(walk.last, ANY)
        successor = next((one for one in offered if isinstance(one, Guess) and one.after is None), None)
        if isinstance(successor, Guess) and (copy is None or successor.confidence > copy.confidence):
            return successor._replace(source=RECYCLE)
        return copy._replace(source=SUFFIX) if copy else None


class RetrievalWalk(CopyWalk):
    """A position in the texts that `suffix` copies from, and the last token before it."""

    def __init__(self, suffix: CopyingDrafter, copies: CopyWalk, last: Tokens) -> None:
        self._suffix, self.copies, self.last = suffix, copies, last

    def go(self, token: int, *, copied: bool = False) -> None:
        """Advance by `token`; a recycled guess is no copy."""
        copy = self._suffix.guess(self.copies) if copied else None
        self.copies.go(token, copied=copy is not None and copy.token == token)
        self.last = (token,)

    def fork(self) -> RetrievalWalk:
        """Return another walk from the same position."""
        return RetrievalWalk(self._suffix, self.copies.fork(), self.last)


def _recycled(guesses: Iterator[Guess]) -> Iterator[Guess]:
    return (guess._replace(source=RECYCLE) for guess in guesses)


class _ModelGuesses:
    """The guesses of a draft model or a head for a text that grows by guesses of any source.

    The model reads the guesses of others, as it reads whatever else it has missed, only once it is asked.
    Where it is less sure of its own guess than of a retrieved token, that is taken under its source.
    """

    def __init__(self, model: Drafter, source: str, sampler: Sampler) -> None:
        self._model, self._source, self._sampler = model, source, sampler
        self._candidates: Iterator[Candidate] = iter(())
        self._candidate: Candidate | None = None
        self._missed = -1  # guesses of others since the candidate was made, -1 before the first one
        self._goes_on = False  # the last offer's guess was the model's own, after which it has another
        self.taken: Guess | None = None  # what came of the last offer
        self.copied = False  # whether that is a copy

    def offer(self, text: Tokens, instead: Guess | None) -> Candidate | None:
        """Return a candidate for the token after `text`, None if the model has none."""
        if self._goes_on:
            self._candidate = next(self._candidates, None)
        elif self._missed < 0 or self.taken is not None or isinstance(self._candidate, Guess):
            self._begin(text)
        else:
            self._missed += 1
        self.taken, self.copied, self._goes_on = None, False, False
        if isinstance(self._candidate, LazyGuess):
            behind = self._candidate.behind + self._missed
            return LazyGuess(partial(self._draw, text, instead), self._source, behind, instead)
        if self._candidate is not None:
            self._take(self._candidate, None)
        return self.taken

    def _begin(self, text: Tokens) -> None:
        self._candidates = iter(self._model.propose(list(text), self._sampler))
        self._candidate, self._missed = next(self._candidates, None), 0

    def _draw(self, text: Tokens, instead: Guess | None) -> Guess | None:
        if self._missed:
            self._begin(text)
        guess = self._candidate.draw() if isinstance(self._candidate, LazyGuess) else self._candidate
        if guess is None:  # nor has it others
            self._candidate = None
            return None
        return self._take(guess, instead)

    def _take(self, guess: Guess, instead: Guess | None) -> Guess:
        """Return the guess, or the retrieved token where that is more confident.

        A guess that was drawn with its probabilities stays: leaving it out would change their meaning.
        """
        self._goes_on = True
        if instead is not None and guess.probs is None and instead.confidence > guess.confidence:
            self._goes_on = instead.token == guess.token
            self.copied = not self._goes_on and instead.source == SUFFIX
            guess = instead
        self.taken = guess._replace(source=self._source)
        return self.taken
