"""Check in one pass of a diffusion target the tokens that a draft revealed in its block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks import visibility
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.types import Block
from localspec.core.types import Distribution, Logits

ALL, TWO = "all", "two"  # which copies of the block a target reads


class Checked(NamedTuple):
    """The tokens that the text goes on with, how many were drafted from its end on, and how many accepted.

    After a rejected token comes the target's own.
    """

    tokens: list[int]
    drafted: int
    accepted: int


def checked(canvas: Canvas, draft: Canvas, table: str) -> Checked:
    """Return what the target accepts of `draft`, a copy of `canvas` in which a draft model revealed tokens.

    The walk is in the order of positions, up to the first mask that is left; the order of revealing would
    lose tokens behind a rejected one. Greedy: a token stands if it is the target's choice. Sampling: with
    probability min(1, p / q), else the target's is drawn from the normed max(p - q, 0) (arXiv 2606.02544,
    "MRS", with p the target's law, as in Leviathan et al. 2023).
    """
    still_masked = (at for at in range(canvas.given, len(draft.tokens)) if not draft.revealed_by[at])
    places = list(range(canvas.given, next(still_masked, len(draft.tokens))))
    rows = canvas.writable(scored(canvas, draft, places, table))
    tokens: list[int] = []
    for place, row in zip(places, rows, strict=True):
        token = _accepted(canvas, draft, place, row)
        canvas.reveal([place], [token])
        tokens.append(token)
        if token != draft.tokens[place]:
            return Checked(tokens, len(places), len(tokens) - 1)
    return Checked(tokens, len(places), len(tokens))


def _accepted(canvas: Canvas, draft: Canvas, place: int, row: Logits) -> int:
    """Return the draft's token at a place if the target accepts it, else the target's own."""
    token, sampler = draft.tokens[place], canvas.sampler
    law = canvas.law(row)
    if sampler.sampling.greedy:
        return int(law.tokens[0])
    guessed = draft.laws.get(place)
    chance = guessed.of(token) if guessed else 1.0
    if sampler.uniform() * chance < law.of(token):
        return token
    return sampler.draw(residual(law, guessed or Distribution(np.array([token]), np.ones(1))))


def residual(target: Distribution, draft: Distribution) -> Distribution:
    """Return the normed max(p - q, 0); the target's own law where rounding leaves nothing."""
    spare = np.maximum(target.probs - _of_each(draft, target.tokens), 0.0)
    total = spare.sum()
    return Distribution(target.tokens, spare / total) if total > 0 else target


def _of_each(law: Distribution, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the probabilities of `tokens` [n]."""
    at = np.minimum(np.searchsorted(law.tokens, tokens), len(law.tokens) - 1)
    return np.where(law.tokens[at] == tokens, law.probs[at], 0.0)


def scored(canvas: Canvas, draft: Canvas, places: list[int], table: str) -> Logits:
    """Return the target's logits [places, vocab] about tokens, given what was revealed before each.

    With `all` copies, it reads the block as it was before each pass of the draft, side by side: the logits
    are those of so many passes. With `two`, the published ones, it reads the tokens and a copy of masks, at
    the same positions, which is less to read, and exact in models of one layer alone.
    """
    steps = [draft.revealed_by[place] for place in range(len(draft.tokens))]
    if table == TWO:
        return _by_two(canvas, draft, steps, places)
    states = sorted({steps[place] for place in places})
    mask, length = canvas.session.mask, len(steps)
    tokens = [
        mask if step >= state or (step == 0 and at >= canvas.given) else token
        for state in states
        for at, (token, step) in enumerate(zip(draft.tokens, steps, strict=True))
    ]
    block = Block(
        tokens, canvas.positions * len(states), visibility.apart(length, len(states)), len(tokens) - length
    )
    rows = [states.index(steps[place]) * length + place for place in places]
    return canvas.read(block).logits[rows]


def _by_two(canvas: Canvas, draft: Canvas, steps: list[int], places: list[int]) -> Logits:
    """Return the logits of the masks in a pass over data and masks."""
    mask, length, last = canvas.session.mask, len(steps), max(steps) + 1
    # what is still masked comes after all else; the mask copies of given tokens are seen by none
    order = [step if step or at < canvas.given else last for at, step in enumerate(steps)]
    table = visibility.two_copies(order)
    table[:, length : length + canvas.given] = np.eye(2 * length, dtype=bool)[
        :, length : length + canvas.given
    ]
    tokens = [*draft.tokens, *[mask] * length]
    found = canvas.read(Block(tokens, canvas.positions * 2, table, length))
    return found.logits[[length + place for place in places]]
