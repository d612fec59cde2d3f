"""Are two answers the same? On an engine that rounds by the width of a pass, up to a near tie.

Where they differ first, the target is asked again, one token at a time: it would have to choose either
token if its logit were a little higher. For greedy text that is a gap between two logits; for sampled text
it is the same gap after the noise of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.core.contracts import Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Row, shared_prefix

# What two widths of a pass may differ by, in logits. An engine that rounds activations to int8 rounds one
# token and several in different ways: the largest gap seen at a difference is 0.32. Without that rounding
# what is left is a float16 cache's.
ROUNDED = 0.5
UNROUNDED = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two answers part: the token of each, and by how many logits the first is likelier.

    `token` or `other` is None where that answer ends. `tie` tells whether the gap is within the tolerance.
    """

    at: int
    token: int | None
    other: int | None
    gap: float
    tie: bool


def first_difference(
    plain: Sequence[int],
    other: Sequence[int],
    *,
    engine: Engine,
    prompt: Sequence[int],
    tolerance: float,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> Difference | None:
    """Return where `other` leaves the answer `plain` of `engine` to `prompt`, None when it does not."""
    shared = shared_prefix(plain, other)
    if shared == len(plain) == len(other):
        return None
    if shared == min(len(plain), len(other)):
        ended = [answer[shared] if shared < len(answer) else None for answer in (plain, other)]
        return Difference(shared, ended[0], ended[1], float("inf"), tie=False)
    before = [*prompt, *plain[:shared]]
    row = one_by_one(engine, prompt, plain[:shared])
    sampler = Sampler(sampling or Sampling(), seed=seed, answer_from=len(prompt))
    gap = float(row[plain[shared]] - row[other[shared]])

    def near(token: int) -> bool:
        lifted = row.copy()
        lifted[token] += tolerance
        return sampler.choose(lifted, before) == token

    tie = near(plain[shared]) and near(other[shared])
    return Difference(shared, plain[shared], other[shared], gap, tie)


def one_by_one(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """Return a copy of the logits [vocab] after the answer, read as plain decoding reads: token by token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    for end in range(len(answer)):
        cursor.read([*prompt, *answer[:end]])
    row: Row = cursor.read([*prompt, *answer])[0].copy()
    return row
