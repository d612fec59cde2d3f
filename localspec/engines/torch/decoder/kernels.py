"""Products of a few tokens with matrices in 8 bits, by Triton, which comes with torch for CUDA.

Torch's own product of this kind has one scale for each row, and lets one thread read a whole row.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

TILES = (128, 64, 32)  # columns that a program reads at a time
PROGRAMS = 264  # two for each multiprocessor of the largest cards
ROWS = 32  # of a program


def eight_bit_product(x: Any, codes: Any, scale: Any) -> Any:
    """Return x [tokens, columns] times the transposed matrix, [tokens, rows], summed in float32.

    The matrix is `codes` [rows, columns], in multiples of 32, with a `scale` [rows, groups]. Where it has few
    rows, several programs share a row's columns, and their sums are added in a fixed order.
    """
    import torch

    (tokens, columns), rows, groups = x.shape, len(codes), scale.shape[1]
    tile = next(tile for tile in TILES if columns % tile == 0)
    parts = min(max(1, PROGRAMS // triton.cdiv(rows, ROWS)), max(1, columns // tile // 4))
    steps = triton.cdiv(columns // tile, parts)
    parts = triton.cdiv(columns, steps * tile)
    sums = torch.empty((parts, tokens, rows), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):  # Triton launches on the current card
        _product[triton.cdiv(rows, ROWS), parts](
            x.contiguous(), codes, scale, sums, tokens, rows, columns, groups, COLUMNS=columns // groups,
            STEPS=steps, TOKENS=max(16, triton.next_power_of_2(tokens)), ROWS=ROWS, TILE=tile,
        )  # fmt: skip
    return (sums[0] if parts == 1 else sums.sum(0)).to(x.dtype)


@triton.jit  # type: ignore[untyped-decorator]
def _product(  # type: ignore[no-untyped-def]
    x, codes, scale, sums, tokens, rows, columns, groups, COLUMNS: tl.constexpr,
    STEPS: tl.constexpr, TOKENS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Add up STEPS tiles of ROWS rows, of whose columns COLUMNS share a scale.

    A scale that a whole tile shares multiplies its sum, narrower ones the codes, rounded as weights are.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    part = tl.program_id(1)
    token, inner = tl.arange(0, TOKENS), tl.arange(0, TILE)
    row_there, token_there = row < rows, token < tokens
    place = row.to(tl.int64)
    found = tl.zeros((TOKENS, ROWS), tl.float32)
    for step in range(STEPS):
        start = (part * STEPS + step) * TILE
        column, inside = start + inner, start < columns
        code_at = codes + place[:, None] * columns + column[None, :]
        code = tl.load(code_at, mask=row_there[:, None] & inside, other=0)
        read_at = x + token[:, None] * columns + column[None, :]
        read = tl.load(read_at, mask=token_there[:, None] & inside, other=0.0)
        size_at = scale + place * groups + start // COLUMNS
        if COLUMNS >= TILE:
            size = tl.load(size_at, mask=row_there & inside, other=0.0).to(tl.float32)
            added = tl.dot(read, tl.trans(code.to(read.dtype)), input_precision="ieee")
            found += added * size[None, :]
        else:
            sizes_at = size_at[:, None] + tl.arange(0, TILE // COLUMNS)[None, :]
            size = tl.load(sizes_at, mask=row_there[:, None] & inside, other=0.0).to(tl.float32)
            groups_of = tl.reshape(code, (ROWS, TILE // COLUMNS, COLUMNS)).to(tl.float32) * size[:, :, None]
            weight = tl.reshape(groups_of, (ROWS, TILE)).to(read.dtype)
            found += tl.dot(read, tl.trans(weight), input_precision="ieee")
    sum_at = (part * tokens + token[:, None]).to(tl.int64) * rows + row[None, :]
    tl.store(sums + sum_at, found, mask=token_there[:, None] & row_there[None, :])
