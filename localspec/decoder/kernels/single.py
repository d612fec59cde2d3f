"""The product of one token with a matrix in 4 bits, by dp4a: four multiplications of bytes at a time.

Codes are bytes already, and each 32 numbers of the token become integers of 16 bits, in two bytes, with a
scale of their own: twice the bits of bfloat16. No multiplication of floats is left for a single code.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

GROUP = 32  # numbers of a token that share a scale
GROUPS = 8  # of a program that takes a token apart
ROWS, PROGRAMS, WARPS = 64, 1056, 4  # of the product

# the sum of four codes times the upper bytes, which are signed, and times the lower ones
_SUM = tl.constexpr(
    "{ .reg .s32 a, b; dp4a.s32.s32 a, $1, $2, 0; dp4a.u32.u32 b, $1, $3, 0;"
    " shl.b32 a, a, 8; add.s32 $0, a, b; }"
)


class Integers(NamedTuple):
    """A token as integers: `upper` and `lower` bytes [columns], and scales and scaled sums [groups]."""

    upper: Any
    lower: Any
    scales: Any
    sums: Any


def integers_of(x: Any) -> Integers:
    """Return the integers of a token [1, columns]."""
    import torch

    columns = x.shape[1]
    upper = torch.empty(columns, dtype=torch.int8, device=x.device)
    lower = torch.empty(columns, dtype=torch.uint8, device=x.device)
    scales, sums = torch.empty((2, columns // GROUP), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _taken_apart[triton.cdiv(columns, GROUP * GROUPS),](
            x, upper, lower, scales, sums, columns // GROUP, GROUPS=GROUPS, GROUP=GROUP, num_warps=2
        )
    return Integers(upper, lower, scales, sums)


def product(
    x: Any, packed: Any, scales: Any, group: int, parts: int, steps: int, rows_each: int = ROWS
) -> Any:
    """Return sums [parts, 1, rows] of x [1, columns] times the transposed matrix of `four_bit_product`."""
    import torch

    columns, rows = x.shape[1], packed.shape[1]
    found = integers_of(x)
    into = torch.empty((parts, 1, rows), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _one[triton.cdiv(rows, rows_each), parts](
            found.upper.view(torch.int32), found.lower.view(torch.int32), found.scales, found.sums,
            packed.view(torch.int32), scales.view(torch.int32), into, rows, columns, SHARED=group,
            STEPS=steps, ROWS=rows_each, num_warps=WARPS,
        )  # fmt: skip
    return into


@triton.jit  # type: ignore[untyped-decorator]
def _taken_apart(  # type: ignore[no-untyped-def]
    x, upper, lower, scales, sums, groups, GROUPS: tl.constexpr, GROUP: tl.constexpr
):
    """Take groups of a token apart."""
    group = tl.program_id(0) * GROUPS + tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    there = group < groups
    value = tl.load(x + at, mask=there[:, None], other=0.0).to(tl.float32)
    peak = tl.max(tl.abs(value), 1)
    scale = tl.where(peak > 0, peak / 32767, 1.0)
    whole = tl.floor(value / scale[:, None] + 0.5).to(tl.int32)
    tl.store(upper + at, (whole >> 8).to(tl.int8), mask=there[:, None])
    tl.store(lower + at, (whole & 255).to(tl.uint8), mask=there[:, None])
    tl.store(scales + group, scale, mask=there)
    tl.store(sums + group, tl.sum(whole, 1).to(tl.float32) * scale, mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _one(  # type: ignore[no-untyped-def]
    upper, lower, scales_of_x, sums_of_x, packed, scales, into, rows, columns, SHARED: tl.constexpr,
    STEPS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add up STEPS tiles of 64 columns of ROWS rows, of whose bytes each thread reads whole words."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * STEPS
    word = tl.arange(0, 8)
    row_there = row < rows
    found = tl.zeros((ROWS, 8), tl.float32)
    rests = tl.zeros((ROWS,), tl.float32)
    for step in range(STEPS):
        tile = first + step
        inside = tile * 64 < columns
        there = row_there & inside
        pair_at = packed + (tile.to(tl.int64) * rows + row)[:, None] * 8 + word[None, :]
        pair = tl.load(pair_at, mask=there[:, None], other=0)
        for half in tl.static_range(2):
            at = (tile * 2 + half) * 8 + word
            up = tl.load(upper + at, mask=inside, other=0)
            low = tl.load(lower + at, mask=inside, other=0)
            shared = (tile * 64 + half * 32) // SHARED
            both = tl.load(scales + shared.to(tl.int64) * rows + row, mask=there, other=0)
            size = (both & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            rest = (both >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            scale = tl.load(scales_of_x + tile * 2 + half, mask=inside, other=0.0)
            total = tl.load(sums_of_x + tile * 2 + half, mask=inside, other=0.0)
            code = (pair >> 4 * half) & 0x0F0F0F0F
            summed = tl.inline_asm_elementwise(
                _SUM, "=r,r,r,r", [code, up[None, :], low[None, :]], dtype=tl.int32, is_pure=True, pack=1
            )
            found += summed.to(tl.float32) * (size * scale)[:, None]
            rests += (rest - 8 * size) * total
    at = tl.program_id(1).to(tl.int64) * rows + row
    tl.store(into + at, tl.sum(found, 1) + rests, mask=row_there)
