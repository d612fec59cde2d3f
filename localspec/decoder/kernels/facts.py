"""The likeliest token of logits on a card and how sure it is, in one Triton kernel."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

COLUMNS = 4096  # that a program looks at together


def likeliest(logits: Any, mask: int) -> Any:
    """Return [rows, 3]: the likeliest token but for `mask`, its probability, and the entropy in nats.

    `logits` [rows, vocab] are in float32. A probability is NaN where a logit is.
    """
    return _found(logits, mask, greedy=False)


def greedy(logits: Any) -> Any:
    """Return [rows, 3]: the likeliest token, its logit, and the sum of exp(logit - highest).

    `logits` are [rows, vocab]. Both numbers are NaN where a logit is.
    """
    return _found(logits, -1, greedy=True)


def _found(logits: Any, mask: int, *, greedy: bool) -> Any:
    import torch

    rows, columns = logits.shape
    found = torch.empty((rows, 3), dtype=torch.float32, device=logits.device)
    with torch.cuda.device_of(logits):
        _likeliest[rows,](
            logits.contiguous(), found, mask, columns, GREEDY=greedy, BLOCK=COLUMNS, num_warps=16
        )
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _likeliest(  # type: ignore[no-untyped-def]
    logits, found, mask, columns, GREEDY: tl.constexpr, BLOCK: tl.constexpr
):
    """Find the first token of the highest logit of a row, then sum exp(logit - highest)."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * columns
    at = tl.arange(0, BLOCK)
    high = tl.full((BLOCK,), float("-inf"), tl.float32)
    best = tl.zeros((BLOCK,), tl.int32)
    for begin in range(0, columns, BLOCK):
        column = begin + at
        value = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        higher = (value > high) & (column != mask)
        best = tl.where(higher, column, best)
        high = tl.where(higher, value, high)
    highest = tl.max(high, 0)
    token = tl.min(tl.where(high == highest, best, 2147483647), 0)
    total = tl.zeros((BLOCK,), tl.float32)
    spread = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, columns, BLOCK):
        column = begin + at
        value = tl.load(start + column, mask=column < columns, other=float("-inf")).to(tl.float32)
        less = tl.where(column == mask, float("-inf"), value - highest)
        weight = tl.exp(less)
        total += weight
        spread += tl.where(weight > 0, weight * less, 0.0)  # without -inf, whose product with 0 is NaN
    whole = tl.sum(total, 0)
    into = found + row * 3
    tl.store(into, token.to(tl.float32))
    if GREEDY:
        tl.store(into + 1, tl.where(whole == whole, highest, whole))
        tl.store(into + 2, whole)
    else:
        tl.store(into + 1, 1 / whole)
        tl.store(into + 2, tl.log(whole) - tl.sum(spread, 0) / whole)
