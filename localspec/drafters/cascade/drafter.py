"""Drafts with one source, and lets a tier between it and the target check the guesses first."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Annotated, Any

from localspec import plugins
from localspec.core.contracts import (
    CopyingDrafter,
    CopyWalk,
    Drafter,
    DraftModel,
    ExpectingDrafter,
    TieredDrafter,
)
from localspec.core.cursor import Cursor
from localspec.core.decode import drawn
from localspec.core.sampler import Sampler
from localspec.core.types import Candidate, Guess, LazyGuess, Logits, Tokens, Verdict
from localspec.drafters.cascade.middle import middle_tier
from localspec.drafters.cascade.rules import Checked, Rules
from localspec.drafting import skip_mask
from localspec.drafting.tiers import ACCEPT, DRAFT, ESCALATE, EXIT, MASK, MIDDLE, check_thresholds
from localspec.errors import ContextFull
from localspec.plugins import Option

MODEL = "draft_model"  # the source of a draft model's guesses that go out unchecked
MIDDLE_HELP = "the target's first layers (a number, exit), mask, a mask such as a4-6+m5, or a model"


class CascadeDraft(ExpectingDrafter, TieredDrafter):
    """Drafts copies, or with a draft model, and lets a middle tier check each block in one pass.

    The cascade of VIA-SD (Xian et al. 2026, arXiv 2606.12243) before the target: the middle tier keeps a
    guess, replaces it by its own, from which drafting goes on, or ends the draft (rules.py). The target
    verifies what is left, so lossless verifiers keep its text. The middle tier's pass is a lazy guess: where
    the draft-length policy declines it, guesses go out unchecked, under their own source.
    """

    translates = "if needed"

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel | None = None,
        middle_model: DraftModel | None = None,
        *,
        middle: Annotated[str, Option(MIDDLE_HELP)],
        accept: Annotated[float, Option("r from which a guess is kept", least=0, most=1)] = ACCEPT,
        escalate: Annotated[float, Option("r below which the target decides", least=0, most=1)] = ESCALATE,
        block: Annotated[int, Option("guesses that are checked at once", least=1, most=64)] = 5,
        name: Annotated[str, Option("the draft model, copies when empty")] = "",
        device: Annotated[str, Option("the models' device, the target's when empty")] = "",
        threads: Annotated[int, Option("their threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs them, the target's when empty")] = "",
        max_tokens: Annotated[int, Option("tokens to search", least=1000, most=10_000_000)] = 200_000,
    ) -> None:
        del device, threads, runs  # the models' engines were made from them
        self._rules, self._size = Rules(accept, escalate), block
        self._middle = middle_tier(middle, target, middle_model)
        self._copies: CopyingDrafter = plugins.part("drafters", "hybrid").made_by(
            target, max_tokens=max_tokens
        )
        self._model: Drafter | None = None
        if draft_model is not None:
            kind = MODEL if draft_model.translation is None else "universal"
            self._model = plugins.part("drafters", kind).made_by(target, draft_model, name=name)
        self._tiers: dict[int, tuple[int, str]] = {}  # by position in the step's text: token and tier

    @classmethod
    def needs(cls, **options: Any) -> dict[str, Any]:
        """Return the engine's `exit` or `skip` for a tier of the target; raises BadValue for thresholds."""
        check_thresholds(options.get("accept", ACCEPT), options.get("escalate", ESCALATE))
        middle = options["middle"]
        if middle.isdigit() or middle == EXIT:
            return {"exit": int(middle) if middle.isdigit() else None}
        return {"skip": True} if middle == MASK or skip_mask.is_mask(middle) else {}

    def expect(self, prompt: Tokens, answer: Tokens) -> None:
        """Let copies come from the expected answer to a prompt."""
        self._copies.expect(prompt, answer)

    def begin(self, prompt: Tokens) -> None:
        """Start an answer."""
        self._tiers = {}
        for source in self._sources:
            source.begin(prompt)

    def end(self) -> None:
        """End the answer."""
        for source in self._sources:
            source.end()

    @property
    def _sources(self) -> list[Drafter]:
        return [self._copies, *([self._model] if self._model else [])]

    def observe(self, tokens: Tokens, logits: Logits, verdict: Verdict) -> None:
        """Let the sources learn from the logits; the step is over."""
        self._tiers = {}
        for source in self._sources:
            source.observe(tokens, logits, verdict)

    def tier(self, position: int, token: int) -> str:
        """Return the tier that stands for a guess of this step, empty if none does."""
        known, tier = self._tiers.get(position, (-1, ""))
        return tier if known == token else ""

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield for each block a lazy guess that checks it, then its others; else what is unchecked."""
        self._tiers = {at: known for at, known in self._tiers.items() if at < len(tokens)}
        walk, text = self._copies.walk(tokens), list(tokens)
        while (copy := self._copy(walk, text, sampler)) is not None or self._model is not None:
            block = _Block(self, walk, text, sampler)
            yield LazyGuess(block.draw, MIDDLE, self._middle.behind(text), copy)
            if block.checked is None:
                taken = yield from self._unchecked(text, copy, sampler)
            else:
                taken = yield from self._rest(block.checked, len(text), sampler)
            if not taken:
                return
            for guess, tier in taken:
                walk.go(guess.token, copied=tier == DRAFT)
                text.append(guess.token)

    def _rest(
        self, checked: list[Checked], at: int, sampler: Sampler
    ) -> Generator[Candidate, None, list[Checked]]:
        """Yield a block's guesses after the first, which is taken; return all, none if the draft ends there.

        Where a guess was drawn for rejection sampling, a policy must not see it before it decides: declining
        unlikely ones would change the distribution.
        """
        for place, (guess, tier) in enumerate(checked[1:], at + 1):
            self._tiers[place] = guess.token, tier
            if guess.probs is None or sampler.coupled:
                yield guess
                continue
            asked = _Drawn(guess)
            yield LazyGuess(asked.draw, MIDDLE)
            if asked.guess is None:
                return []
        return checked if checked and checked[-1].tier else []

    def _unchecked(
        self, text: list[int], copy: Guess | None, sampler: Sampler
    ) -> Generator[Candidate, None, list[Checked]]:
        """Yield the draft model's guess and, if it is declined, the copy; return the one that is taken."""
        offered = next(iter(self._model.propose(list(text), sampler)), None) if self._model else None
        if offered is not None:
            asked = _Drawn(offered)
            behind = offered.behind if isinstance(offered, LazyGuess) else 1
            yield LazyGuess(asked.draw, MODEL, behind, copy)
            if asked.guess is not None:
                return [Checked(asked.guess, "")]
        if copy is None:
            return []
        yield copy
        return [Checked(copy, DRAFT)]

    def draft(self, walk: CopyWalk, text: list[int], sampler: Sampler) -> list[Guess]:
        """Return the guesses of a block after `text`, which `walk` has reached."""
        guesses, reached = list[Guess](), list(text)
        if self._model is None:
            walk = walk.fork()
            while len(guesses) < self._size and (guess := self._copy(walk, reached, sampler)) is not None:
                guesses.append(guess)
                reached.append(guess.token)
                walk.go(guess.token, copied=True)
            return guesses
        candidates = iter(self._model.propose(list(text), sampler))
        while len(guesses) < self._size and (candidate := next(candidates, None)) is not None:
            if (guess := drawn(candidate)) is not None:
                if not sampler.allows(guess.token, reached):
                    break
                guesses.append(guess)
                reached.append(guess.token)
        return guesses

    def _copy(self, walk: CopyWalk, text: Tokens, sampler: Sampler) -> Guess | None:
        """Return a retrieved token that may follow `text`, which `walk` has reached."""
        return sampler.permitted(self._copies.guess(walk), text)

    def check(self, guesses: list[Guess], text: list[int], sampler: Sampler) -> list[Checked]:
        """Return what becomes of a block's guesses in a pass of the middle tier; none beyond its context."""
        if not guesses:
            return []
        try:
            rows = self._middle.read(text, [guess.token for guess in guesses])
        except ContextFull:
            return []
        checked = self._rules.check(guesses, rows, text, sampler)
        if checked:
            self._tiers[len(text)] = checked[0].guess.token, checked[0].tier
        return checked


class _Block:
    """Guesses that are drafted and checked when the policy asks for the first of them."""

    def __init__(self, drafter: CascadeDraft, walk: CopyWalk, text: list[int], sampler: Sampler) -> None:
        self._drafter, self._walk, self._text, self._sampler = drafter, walk, text, sampler
        self.checked: list[Checked] | None = None  # None until then

    def draw(self) -> Guess | None:
        """Draft the block, check it, and return its first guess."""
        guesses = self._drafter.draft(self._walk, self._text, self._sampler)
        self.checked = self._drafter.check(guesses, self._text, self._sampler)
        return self.checked[0].guess if self.checked else None


class _Drawn:
    """A candidate, and its guess once it was drawn."""

    def __init__(self, candidate: Candidate) -> None:
        self._candidate = candidate
        self.guess: Guess | None = None

    def draw(self) -> Guess | None:
        """Return the guess, under the source of its lazy guess."""
        self.guess = drawn(self._candidate)
        if self.guess is not None and not self.guess.source:
            self.guess = self.guess._replace(source=MODEL)
        return self.guess
