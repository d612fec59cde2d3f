"""Blocks that a smaller diffusion model fills in, for a diffusion target or for an autoregressive one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.decode import opened
from localspec.core.blocks.parts import BlockDrafter, check_pair
from localspec.core.blocks.quota import ranked
from localspec.core.blocks.types import Candidates, Places
from localspec.core.blocks.verify import ALL, TWO
from localspec.core.contracts import BlockSession, DraftModel
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.types import Candidate, Guess, LazyGuess, Tokens
from localspec.errors import BadValue
from localspec.plugins import Option

LEFT, CONFIDENCE = "left", "confidence"


class DiffusionDraft(BlockDrafter):
    """Guesses blocks with a smaller diffusion model (SimSD), which the target checks in one pass.

    After arXiv 2606.02544. A target that is a diffusion model checks tokens by their positions, each given
    what the draft had revealed before it. With `order=left` and `copies=all`, its text is that of its own
    sampler `left_to_right`. With `order=confidence`, as published, it is close to that of
    `low_confidence`: a token may have been checked beside later ones that were then rejected. An
    autoregressive target checks guesses as any others, and keeps its own text.
    """

    kinds: ClassVar[tuple[str, ...]] = ("diffusion",)

    def __init__(
        self,
        target: Cursor,
        draft_model: DraftModel,
        *,
        name: Annotated[str, Option("the draft: a diffusion model's name or folder")],
        order: Annotated[str, Option("which masks it reveals first", choices=(LEFT, CONFIDENCE))] = LEFT,
        copies: Annotated[str, Option("what a diffusion target reads", choices=(ALL, TWO))] = ALL,
        k: Annotated[int, Option("tokens that it reveals a pass", least=1, most=4096)] = 1,
        device: Annotated[str, Option("its device, the target's when empty")] = "",
        threads: Annotated[int, Option("its threads, 0 for as many as the target", least=0, most=1024)] = 0,
        runs: Annotated[str, Option("the engine that runs it, the target's when empty")] = "",
    ) -> None:
        del name, device, threads, runs  # the engine was made from them
        self._cursor = Cursor(draft_model.engine.session())
        session, own = self._cursor.session, target.session
        if not isinstance(session, BlockSession):
            raise BadValue("`diffusion` drafts with a diffusion model", "Name one, or use `draft_model`")
        if isinstance(own, BlockSession):
            check_pair(own, session)
        self._session, self._vocab = session, draft_model.vocab
        self._order, self._k = order, k
        self.table = copies
        self.stepwise = order == LEFT and k == 1

    @classmethod
    def exact_with(cls, **options: Any) -> bool:
        """Return whether a diffusion target's text is exactly that of its sampler from left to right."""
        given = {"order": LEFT, "copies": ALL} | options
        return (given["order"], given["copies"]) == (LEFT, ALL)

    def propose(self, tokens: Tokens, sampler: Sampler) -> Iterator[Candidate]:
        """Yield the rest of the block after `tokens`: the first guess costs all its passes."""
        text = list(tokens)
        if len(text) >= self._session.context:
            return
        guesses: list[Guess] = []

        def draw() -> Guess:
            guesses.extend(self._filled(text, sampler))
            return guesses[0]

        yield LazyGuess(draw)
        yield from guesses[1:]

    def draft(self, canvas: Canvas, depth: int) -> Canvas:
        """Return a copy of a target's canvas in which up to `depth` masks are revealed."""
        text = [*canvas.text_before(canvas.first), *canvas.tokens[: canvas.given]]
        drafted = opened(text, self._cursor, canvas.sampler, fresh=not canvas.sampler.sampling.greedy)
        for _ in self._reveal(drafted, depth):
            pass
        if self._order == LEFT:  # each is checked given those before it, also where one pass revealed several
            found = [place for place, by in enumerate(drafted.revealed_by) if by]
            for step, place in enumerate(found, 1):
                drafted.revealed_by[place] = step
        return drafted

    def _filled(self, text: Tokens, sampler: Sampler) -> list[Guess]:
        """Return guesses of the rest of a block, for a target that is no diffusion model.

        Each has the distribution that it was drawn from.
        """
        canvas = opened(text, self._cursor, sampler, fresh=not (sampler.coupled or sampler.sampling.greedy))
        canvas.most = self._vocab
        sure: dict[int, float] = {}
        for candidates, picked in self._reveal(canvas, len(canvas.tokens)):
            found = candidates.confidence[picked].tolist()
            sure |= zip(candidates.places[picked].tolist(), found, strict=True)
        places = range(canvas.given, len(canvas.tokens))
        return [Guess(canvas.tokens[place], canvas.laws.get(place), sure[place]) for place in places]

    def _reveal(self, canvas: Canvas, depth: int) -> Iterator[tuple[Candidates, Places]]:
        """Reveal `depth` masks at most in the drafter's order; yield candidates of each pass, and which."""
        left = min(depth, len(canvas.masked))
        while left > 0:
            count = min(self._k, left)
            candidates = canvas.candidates(count if self._order == LEFT else None)
            picked = np.arange(count) if self._order == LEFT else ranked(candidates.confidence)[:count]
            canvas.chosen_of(candidates, picked)
            yield candidates, picked
            left -= count
