"""Attention of a few tokens to a long text on a card: its keys are split among programs (Flash-Decoding).

Heads that share a key are rows of one product, so that each key is read once for all tokens of a pass
(Dao et al. 2023, "Flash-Decoding for long-context inference").
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

PROGRAMS = 264  # two for each multiprocessor of the largest cards
SLOTS = 64  # keys that a program reads at a time
ROWS = 128  # of a program at most: tokens times heads that share a key
CHUNK = 8  # partial results that are added at a time


def attend(queries: Any, keys: Any, values: Any, mask: Any, ends: Any, scale: float, texts: Any) -> Any:
    """Return attention [tokens, heads * head_width] of queries [tokens, heads, head_width].

    Keys and values are [key_heads, room, head_width], `mask` [tokens, end] says which of the first `end` a
    token sees, none of them behind `ends` [1]. Several `texts` [texts] have as many tokens each, a mask
    [texts, tokens, end], ends [texts], and rows [texts, key_heads, room, head_width] of the buffers.
    """
    import torch

    (tokens, heads, width), (key_heads, room, _) = queries.shape, keys.shape[-3:]
    end, count = mask.shape[-1], len(ends)
    each, shared = tokens // count, heads // key_heads
    rows = min(ROWS, max(16, triton.next_power_of_2(each * shared)))
    blocks = triton.cdiv(each * shared, rows)
    most = triton.cdiv(end, SLOTS)
    parts = min(most, max(1, PROGRAMS // (key_heads * count * blocks)))
    steps = triton.cdiv(most, parts)
    parts = triton.cdiv(most, steps)
    sums = torch.empty((parts, tokens * heads, width), dtype=torch.float32, device=queries.device)
    peaks, totals = torch.empty((2, parts, tokens * heads), dtype=torch.float32, device=queries.device)
    found = torch.empty_like(queries)
    block = max(16, triton.next_power_of_2(width))
    with torch.cuda.device_of(queries):
        _partial[key_heads * count, parts, blocks](
            queries, keys, values, mask.view(torch.uint8), ends, ends if texts is None else texts, sums,
            peaks, totals, each, heads, key_heads, end, room, tokens * heads, scale * 1.4426950408889634,
            SHARED=shared, WIDTH=width, BLOCK=block, ROWS=rows, SLOTS=SLOTS, STEPS=steps,
            APART=texts is not None, num_warps=8 if rows > 64 else 4,
        )  # fmt: skip
        _joined[tokens * heads,](
            sums, peaks, totals, found, ends, tokens * heads, each * heads, WIDTH=width, BLOCK=block,
            EACH=steps * SLOTS, CHUNK=CHUNK, num_warps=2,
        )  # fmt: skip
    return found.flatten(1)


@triton.jit  # type: ignore[untyped-decorator]
def _partial(  # type: ignore[no-untyped-def]
    queries, keys, values, mask, ends, texts, sums, peaks, totals, each, heads, key_heads, end, room, total,
    scale, SHARED: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    SLOTS: tl.constexpr, STEPS: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    """Attend to STEPS times SLOTS keys of one head, as far as the text goes; keep sums, peaks and weights."""
    text, head = tl.program_id(0) // key_heads, tl.program_id(0) % key_heads
    row = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    there = row < each * SHARED
    token = text * each + row // SHARED
    column, slot = tl.arange(0, BLOCK), tl.arange(0, SLOTS)
    inside = column < WIDTH
    query_at = token * heads + head * SHARED + row % SHARED
    cells = query_at[:, None] * WIDTH + column[None, :]
    query = tl.load(queries + cells, mask=there[:, None] & inside[None, :], other=0.0)
    first = ((tl.load(texts + text) if APART else 0) * key_heads + head).to(tl.int64) * room
    start = tl.program_id(1) * STEPS * SLOTS
    stop = tl.minimum(start + STEPS * SLOTS, tl.load(ends + text).to(tl.int32))
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    weight = tl.zeros((ROWS,), tl.float32)
    found = tl.zeros((ROWS, BLOCK), tl.float32)
    for begin in range(start, stop, SLOTS):
        place = begin + slot
        known = place < stop
        at = (first + place)[:, None] * WIDTH + column[None, :]
        both = known[:, None] & inside[None, :]
        key = tl.load(keys + at, mask=both, other=0.0)
        seen_at = (token.to(tl.int64) * end)[:, None] + place[None, :]
        seen = tl.load(mask + seen_at, mask=there[:, None] & known[None, :], other=0)
        score = tl.where(seen != 0, tl.dot(query, tl.trans(key)) * scale, float("-inf"))
        highest = tl.maximum(peak, tl.max(score, 1))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        share = tl.exp2(score - base[:, None])
        fade = tl.exp2(peak - base)
        weight = weight * fade + tl.sum(share, 1)
        value = tl.load(values + at, mask=both, other=0.0)
        found = found * fade[:, None] + tl.dot(share.to(value.dtype), value)
        peak = highest
    into = tl.program_id(1).to(tl.int64) * total
    tl.store(peaks + into + query_at, peak, mask=there)
    tl.store(totals + into + query_at, weight, mask=there)
    if start < stop:
        tl.store(sums + into * WIDTH + cells, found, mask=there[:, None] & inside[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def _joined(  # type: ignore[no-untyped-def]
    sums, peaks, totals, into, ends, total, of_text, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    EACH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Join what the programs, of EACH keys, found for one query, as far as its text goes."""
    row = tl.program_id(0)
    parts = tl.cdiv(tl.load(ends + row // of_text).to(tl.int32), EACH)
    column, each = tl.arange(0, BLOCK), tl.arange(0, CHUNK)
    inside = column < WIDTH
    peak = tl.full((), float("-inf"), tl.float32)
    weight = tl.zeros((), tl.float32)
    found = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, parts, CHUNK):
        part = begin + each
        there = part < parts
        high = tl.load(peaks + part * total + row, mask=there, other=float("-inf"))
        highest = tl.maximum(peak, tl.max(high, 0))
        base = tl.where(highest == float("-inf"), 0.0, highest)
        share, fade = tl.exp2(high - base), tl.exp2(peak - base)
        added = tl.load(totals + part * total + row, mask=there, other=0.0)
        weight = weight * fade + tl.sum(share * added, 0)
        at = (part.to(tl.int64) * total + row)[:, None] * WIDTH + column[None, :]
        value = tl.load(sums + at, mask=(share > 0)[:, None] & inside[None, :], other=0.0)
        found = found * fade + tl.sum(share[:, None] * value, 0)
        peak = highest
    tl.store(
        into + row.to(tl.int64) * WIDTH + column, (found / weight).to(into.dtype.element_ty), mask=inside
    )
