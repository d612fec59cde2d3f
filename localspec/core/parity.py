"""Compares two answers: equal, or different only at a near tie where an engine rounds by the pass width.

At the first difference the target reads the answer again, one token at a time. The difference is a near tie
if the target would choose either token with its logit a little higher. For greedy text that is the gap
between two logits; for sampled text it is the same gap after the noise of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from localspec.core.contracts import Engine
from localspec.core.cursor import Cursor
from localspec.core.sampler import Sampler, Sampling
from localspec.core.types import Row, shared_prefix

# By how much the logits of two pass widths may differ. An engine with int8 activations rounds a single token
# and several tokens differently: the largest gap seen at a difference is 0.32.
ROUNDED = 0.5


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of two answers: the token of each, and the gap of their logits.

    `token` or `other` is None if that answer ends there. `tie` tells whether the gap is within the tolerance.
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
    """Return where `other` first differs from `plain`, the answer of `engine` to `prompt`; None if equal."""
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
    """Return a copy of the logits [vocab] after the answer, read token by token as in plain decoding."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    for end in range(len(answer)):
        cursor.read([*prompt, *answer[:end]])
    row: Row = cursor.read([*prompt, *answer])[0].copy()
    return row
