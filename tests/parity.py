"""The rule that compares speculative with plain text on an engine that rounds by the width of a pass.

A first difference is allowed only at a near tie: where the target, read one token at a time, would choose the
other token if its logit were `tolerance` higher. For greedy text that is a gap between the two logits
below the tolerance; for sampled text it is the same gap after the noise of the seed.
"""

from __future__ import annotations

from collections.abc import Sequence

from localspec.core.contracts import Engine, Row
from localspec.core.cursor import Cursor, shared_prefix
from localspec.core.sampler import Sampler, Sampling

# What two widths of a pass may differ by, in logits. The default engine rounds activations to int8, one token
# and several in different ways: the largest gap seen at a difference is 0.32. Without that rounding what is
# left is the float16 cache's.
ROUNDED = 0.5
UNROUNDED = 0.02


def check(
    plain: Sequence[int],
    other: Sequence[int],
    *,
    engine: Engine,
    prompt: Sequence[int],
    tolerance: float,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> int:
    """Raise AssertionError unless `other` is `plain` up to a near tie; return how many tokens they share."""
    shared = shared_prefix(plain, other)
    if shared == len(plain) == len(other):
        return shared
    assert shared < min(len(plain), len(other)), (
        f"one answer ends after {shared} tokens and the other goes on"
    )
    before = [*prompt, *plain[:shared]]
    row = one_by_one(engine, prompt, plain[:shared])
    sampler = Sampler(sampling or Sampling(), seed=seed, answer_from=len(prompt))
    assert sampler.choose(row, before) == plain[shared], "the plain text is not what one-by-one reading gives"
    gap = float(row[plain[shared]] - row[other[shared]])
    row[other[shared]] += tolerance
    assert sampler.choose(row, before) == other[shared], (
        f"token {shared} is {other[shared]} instead of {plain[shared]}, which is {gap:.3f} logits likelier"
    )
    return shared


def one_by_one(engine: Engine, prompt: Sequence[int], answer: Sequence[int]) -> Row:
    """Return a copy of the logits [vocab] after the answer, read as plain decoding reads: token by token."""
    cursor = Cursor(engine.session())
    cursor.read(prompt[:-1], rows=0)
    for end in range(len(answer)):
        cursor.read([*prompt, *answer[:end]])
    row: Row = cursor.read([*prompt, *answer])[0].copy()
    return row
