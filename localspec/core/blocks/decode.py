"""The loop of a block-diffusion model: fill in a block, or check what a draft filled in, and emit."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import NamedTuple

from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.pace import Pace
from localspec.core.blocks.parts import BlockDrafter, BlockSampler
from localspec.core.blocks.verify import checked
from localspec.core.contracts import BlockSession
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler
from localspec.core.stop import OutputProcessor
from localspec.core.types import Guess, Step, Tokens


class Drafting(NamedTuple):
    """A target's drafter, and the policy of how far it drafts."""

    drafter: BlockDrafter
    pace: Pace


def decode_blocks(
    prompt: Tokens,
    target: Cursor,
    filler: BlockSampler,
    sampler: Sampler,
    processor: OutputProcessor,
    drafting: Drafting | None = None,
) -> Generator[Step, None, None]:
    """Yield the steps of the answer to `prompt` until one has a finish reason.

    A step is a block that the `filler` filled in, or what the target accepted of a draft's. The answer does
    not depend on its limit of tokens: blocks are filled in whole. Effects: `target` holds whole blocks of the
    text. Raises what the engines raise.
    """
    text, finish = list(prompt), None
    if drafting:
        drafting.drafter.begin(prompt)
    try:
        while finish is None:
            canvas = opened(text, target, sampler)
            useful = _useful(drafting, canvas)
            depth = drafting.pace.depth(useful) if drafting and useful else 0
            last = _drafted(canvas, drafting, depth, processor) if drafting and depth else None
            last = last or _filled(canvas, filler, processor)
            if drafting and useful:
                drafting.pace.learn(last, depth)
            text += last.tokens
            finish = last.finish
            yield last
    finally:
        if drafting:
            drafting.drafter.end()


def _useful(drafting: Drafting | None, canvas: Canvas) -> int:
    """Return how many masks a draft may reveal.

    The target's pass over a draft from left to right decides the mask behind it, so the last one never needs
    one.
    """
    return len(canvas.masked) - drafting.drafter.stepwise if drafting else 0


def opened(text: Tokens, target: Cursor, sampler: Sampler, *, fresh: bool = False) -> Canvas:
    """Return the block that follows `text`; in a causal model it may begin with the end of it.

    Effects: the target holds the text before the block.
    """
    session = target.session
    assert isinstance(session, BlockSession)
    first = len(text) // session.block * session.block if session.causal else len(text)
    target.read(text[:first], rows=0)
    length = max(min(session.block, session.context - first), len(text) - first + 1)
    return Canvas(session, text[:first], text[first:], length, sampler, fresh=fresh)


def _filled(canvas: Canvas, filler: BlockSampler, processor: OutputProcessor) -> Step:
    """Let the target fill in the block by itself."""
    started = perf_counter()
    filler.fill(canvas)
    seconds = perf_counter() - started
    output = processor.process(canvas.tokens[canvas.given :])
    return Step(
        output.tokens,
        0,
        0,
        draft_seconds=0.0,
        target_seconds=seconds,
        text=output.text,
        finish=output.finish,
        marks=output.marks,
        passes=canvas.passes,
    )


def _drafted(canvas: Canvas, drafting: Drafting, depth: int, processor: OutputProcessor) -> Step | None:
    """Let a draft reveal up to `depth` tokens, and the target check them in one pass.

    None if the draft revealed nothing at the first mask.
    """
    started = perf_counter()
    draft = drafting.drafter.draft(canvas, depth)
    drafted = perf_counter()
    places = [place for place in canvas.masked if draft.revealed_by[place]]
    if not places or places[0] != canvas.given:
        return None
    verdict = checked(canvas, draft, drafting.drafter.table)
    verified = perf_counter()
    output = processor.process(verdict.tokens)
    return Step(
        output.tokens,
        drafted=verdict.drafted,
        accepted=min(verdict.accepted, len(output.tokens)),
        draft_seconds=drafted - started,
        target_seconds=verified - drafted,
        text=output.text,
        finish=output.finish,
        draft=tuple(Guess(draft.tokens[place]) for place in places[: verdict.drafted]),
        costs=(drafted - started, *[0.0] * (verdict.drafted - 1)),
        marks=output.marks,
        passes=canvas.passes,
    )
