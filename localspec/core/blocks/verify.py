"""Check in one pass of a diffusion target the tokens that a draft revealed in its block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.core.blocks import visibility
from localspec.core.blocks.canvas import Canvas
from localspec.core.blocks.types import Block, BlockPass
from localspec.core.types import Distribution, Logits

ALL, TWO = "all", "two"  # which copies of the block a target reads


class Checked(NamedTuple):
    """The tokens that the text goes on with, how many were drafted from its end on, and how many accepted.

    After a rejected token, and after a draft that was accepted but for the rest of its block, comes the
    target's own.
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
    places = _places(draft)
    drafted = sum(draft.revealed_by[place] > 0 for place in places)
    found, rows = _scores(canvas, draft, places, table)
    greedy = canvas.choices(found, rows)
    logits = canvas.writable(found.logits[rows]) if greedy is None else None
    tokens: list[int] = []
    for at, place in enumerate(places):
        if greedy:
            token = int(greedy.tokens[at])
        else:
            assert logits is not None
            token = _accepted(canvas, draft, place, logits[at])
        canvas.reveal([place], [token])
        tokens.append(token)
        if token != draft.tokens[place]:
            return Checked(tokens, drafted, at)
    return Checked(tokens, drafted, len(tokens))


def _places(draft: Canvas) -> list[int]:
    """Return the places that a pass decides: those that were drafted up to a mask, and that mask's.

    The mask is decided as it is after all of the draft, if no token behind it was drafted: the target's own
    token, which comes with those that it accepts.
    """
    length = len(draft.tokens)
    end = next((at for at in range(draft.given, length) if not draft.revealed_by[at]), length)
    behind = any(draft.revealed_by[end + 1 :])
    return list(range(draft.given, end if behind else min(end + 1, length)))


def _accepted(canvas: Canvas, draft: Canvas, place: int, row: Logits) -> int:
    """Return the draft's token at a place if the target accepts it, else the target's own."""
    token, sampler = draft.tokens[place], canvas.sampler
    law = canvas.law(row)
    if sampler.sampling.greedy:
        return int(law.tokens[0])
    if not draft.revealed_by[place]:
        return sampler.draw(law)
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
    """Return the target's logits [places, vocab] about tokens, given what was revealed before each."""
    found, rows = _scores(canvas, draft, places, table)
    return found.logits[rows]


def _scores(canvas: Canvas, draft: Canvas, places: list[int], table: str) -> tuple[BlockPass, list[int]]:
    """Return the target's pass that decides tokens at places, and its rows that do.

    With `all` copies, it reads the block as it was before each pass of the draft, side by side: the logits
    are those of so many passes. With `two`, the published ones, it reads the tokens and a copy of masks, at
    the same positions, which is less to read, and exact in models of one layer alone.
    """
    steps = [draft.revealed_by[place] for place in range(len(draft.tokens))]
    if table == TWO:
        return _by_two(canvas, draft, steps, places)
    last = max(steps) + 1  # when what is still masked would be revealed
    due = {place: steps[place] or last for place in places}
    states = sorted(set(due.values()))
    mask, length = canvas.session.mask, len(steps)
    tokens = [
        mask if step >= state or (step == 0 and at >= canvas.given) else token
        for state in states
        for at, (token, step) in enumerate(zip(draft.tokens, steps, strict=True))
    ]
    block = Block(
        tokens, canvas.positions * len(states), visibility.apart(length, len(states)), len(tokens) - length
    )
    return canvas.read(block), [states.index(due[place]) * length + place for place in places]


def _by_two(
    canvas: Canvas, draft: Canvas, steps: list[int], places: list[int]
) -> tuple[BlockPass, list[int]]:
    """Return a pass over data and masks, and the rows of the masks at places."""
    mask, length, last = canvas.session.mask, len(steps), max(steps) + 1
    # what is still masked comes after all else; the mask copies of given tokens are seen by none
    order = [step if step or at < canvas.given else last for at, step in enumerate(steps)]
    table = visibility.two_copies(order)
    table[:, length : length + canvas.given] = np.eye(2 * length, dtype=bool)[
        :, length : length + canvas.given
    ]
    tokens = [*draft.tokens, *[mask] * length]
    found = canvas.read(Block(tokens, canvas.positions * 2, table, length))
    return found, [length + place for place in places]
