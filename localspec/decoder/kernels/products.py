"""Products of a few tokens with matrices in 8 or 4 bits, by Triton, which comes with torch for CUDA.

Torch's own products read a row of 8 bits with one thread, and for 8 tokens of 4 bits take twice as long as
for one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from localspec.decoder.kernels import single

TILES = (128, 64, 32)  # columns of 8 bits that a program reads at a time
TILE = 64  # columns of 4 bits: the lower halves of its bytes are the first 32, the upper halves the others
HALF = TILE // 2
BLOCK = 512  # sums that a program adds up


class Way(NamedTuple):
    """How programs share a product: rows of each, programs wanted at least, warps, loads under way."""

    rows: int = 32
    programs: int = 264  # two for each multiprocessor of the largest cards
    warps: int = 4
    stages: int = 3


EIGHT, FOUR = Way(rows=64, stages=4), Way(rows=64, programs=1056, stages=5)

# four bytes become four numbers in bfloat16: a code after the byte 0x43 is 128 + code, which loses 136
_TAKEN = """
    prmt.b32 a, t, 0x43434343, 0x4140; prmt.b32 b, t, 0x43434343, 0x4342;
    fma.rn.bf16x2 $0, a, one, less; fma.rn.bf16x2 $1, b, one, less;
"""
_NAMES = "{ .reg .b32 t, a, b, one, less; mov.b32 one, 0x3F803F80; mov.b32 less, 0xC308C308;"
LOWER_CODES = tl.constexpr(_NAMES + "and.b32 t, $2, 0x0F0F0F0F;" + _TAKEN + "}")
UPPER_CODES = tl.constexpr(_NAMES + "shr.u32 t, $2, 4; and.b32 t, t, 0x0F0F0F0F;" + _TAKEN + "}")


def eight_bit_product(
    x: Any, codes: Any, scale: Any, bias: Any = None, rest: Any = None, way: Way = EIGHT
) -> Any:
    """Return x [tokens, columns] times the transposed matrix, and a bias [rows]: [tokens, rows].

    The matrix is `codes` [rows, columns], in multiples of 32, with a `scale` [rows, groups], plus a `rest`
    [rows] in float32 in all columns of a row. Sums are in float32. Where it has few rows, several programs
    share a row's columns.
    """
    import torch

    (tokens, columns), rows, groups = x.shape, len(codes), scale.shape[1]
    x = x.contiguous()
    shared = columns // groups
    tile = next(tile for tile in TILES if columns % tile == 0)
    parts, steps = _split(columns // tile, rows, way)
    sums = torch.empty((parts, tokens, rows), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):  # Triton launches on the current card
        _eight_bits[triton.cdiv(rows, way.rows), parts](
            x, codes, scale, sums, tokens, rows, columns, groups, COLUMNS=shared, STEPS=steps,
            TOKENS=max(16, triton.next_power_of_2(tokens)), ROWS=way.rows, TILE=tile, num_warps=way.warps,
            num_stages=way.stages,
        )  # fmt: skip
    return _summed(sums, bias, x.dtype, x, rest)


def four_bit_product(
    x: Any, packed: Any, scales: Any, group: int, bias: Any = None, rests: bool = True, way: Way = FOUR
) -> Any:
    """Return x [tokens, columns], in a half precision, times the transposed matrix: [tokens, rows].

    The matrix is scale * (code - 8) + rest, with codes `packed` [tiles, rows, 32] and `scales`
    [groups, rows, 2] in float16, both of a `group` of columns. Without `rests` those are all 0. Sums are in
    float32.
    """
    import torch

    (tokens, columns), rows = x.shape, packed.shape[1]
    if tokens == 1 and x.element_size() == 2:
        split = _split(columns // TILE, rows, Way(single.ROWS, single.PROGRAMS))
        return _summed(single.product(x, packed, scales, group, *split), bias, x.dtype)
    parts, steps = _split(columns // TILE, rows, way)
    sums = torch.empty((parts, tokens, rows), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _four_bits[triton.cdiv(rows, way.rows), parts](
            x.contiguous(), packed, scales.view(torch.int32), sums, tokens, rows, columns, GROUP=group,
            STEPS=steps, TOKENS=max(16, triton.next_power_of_2(tokens)), ROWS=way.rows, RESTS=rests,
            num_warps=way.warps, num_stages=way.stages,
        )  # fmt: skip
    return _summed(sums, bias, x.dtype)


def dense_eight(codes: Any, scale: Any, dtype: Any, rest: Any = None) -> Any:
    """Return the matrix [rows, columns] that codes, scales and rests of `eight_bit_product` stand for."""
    import torch

    rows, columns = codes.shape
    found = torch.empty((rows, columns), dtype=dtype, device=codes.device)
    with torch.cuda.device_of(codes):
        _dense_eight[rows, triton.cdiv(columns, BLOCK)](
            codes, scale, scale if rest is None else rest, found, columns, scale.shape[1],
            SHARED=columns // scale.shape[1], RESTS=rest is not None, BLOCK=BLOCK,
        )  # fmt: skip
    return found


def dense_four(packed: Any, scales: Any, group: int, dtype: Any) -> Any:
    """Return the matrix [rows, columns] that codes and scales of `four_bit_product` stand for."""
    import torch

    tiles, rows, _ = packed.shape
    found = torch.empty((rows, tiles * TILE), dtype=dtype, device=packed.device)
    with torch.cuda.device_of(packed):
        _dense_four[triton.cdiv(rows, 64), tiles](
            packed, scales, found, rows, tiles * TILE, GROUP=group, ROWS=64
        )
    return found


def packed_four(codes: Any) -> Any:
    """Return codes [rows, columns] from 0 to 15 as bytes [tiles, rows, 32] for `four_bit_product`."""
    tiles = codes.unflatten(1, (-1, 2, HALF)).transpose(0, 1)
    return (tiles[:, :, 0] | tiles[:, :, 1] << 4).contiguous()


def unpacked_four(packed: Any) -> Any:
    """Return the codes [rows, columns] of what `packed_four` packed."""
    import torch

    return torch.stack([packed & 15, packed >> 4], 2).transpose(0, 1).flatten(1)


def _split(tiles: int, rows: int, way: Way) -> tuple[int, int]:
    """Return how many programs share a row, and the tiles of each."""
    parts = min(max(1, way.programs // triton.cdiv(rows, way.rows)), max(1, tiles // 4))
    steps = triton.cdiv(tiles, parts)
    return triton.cdiv(tiles, steps), steps


def _summed(sums: Any, bias: Any, dtype: Any, x: Any = None, rest: Any = None) -> Any:
    """Return the sum over the parts of `sums` [parts, tokens, rows], in a fixed order, and a bias [rows].

    With a `rest` [rows] it also has that, times the sum of each token's `x` [tokens, columns].
    """
    import torch

    parts, tokens, rows = sums.shape
    if parts == 1 and bias is None and rest is None and dtype == torch.float32:
        return sums[0]
    found = torch.empty((tokens, rows), dtype=dtype, device=sums.device)
    with torch.cuda.device_of(sums):
        _added[tokens, triton.cdiv(rows, BLOCK)](
            sums, sums if bias is None else bias, *((sums, sums) if rest is None else (rest, x)), found, rows,
            tokens * rows, 0 if rest is None else x.shape[1], PARTS=parts, BIASED=bias is not None,
            RESTS=rest is not None, BLOCK=BLOCK,
        )  # fmt: skip
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _eight_bits(  # type: ignore[no-untyped-def]
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


@triton.jit  # type: ignore[untyped-decorator]
def _four_bits(  # type: ignore[no-untyped-def]
    x, packed, scales, sums, tokens, rows, columns, GROUP: tl.constexpr, STEPS: tl.constexpr,
    TOKENS: tl.constexpr, ROWS: tl.constexpr, RESTS: tl.constexpr,
):  # fmt: skip
    """Add up STEPS tiles of 64 columns of ROWS rows.

    Codes are exact in the precision of x, so each 32 columns are one product, which its group's scale
    multiplies. Scales are read a tile ahead, since nothing else hides how long that takes.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.program_id(1) * STEPS
    token, inner = tl.arange(0, TOKENS), tl.arange(0, 32)
    row_there, token_there = row < rows, token < tokens
    found = tl.zeros((ROWS, TOKENS), tl.float32)
    low = _scale(scales, first * 64 // GROUP, rows, row, row_there & (first * 64 < columns))
    high = _scale(scales, (first * 64 + 32) // GROUP, rows, row, row_there & (first * 64 < columns))
    for step in range(STEPS):
        tile = first + step
        inside = tile * 64 < columns
        pair_at = packed + (tile.to(tl.int64) * rows + row)[:, None] * 32 + inner[None, :]
        pair = tl.load(pair_at, mask=(row_there & inside)[:, None], other=0)
        read_at = x + token[None, :] * columns + tile * 64 + inner[:, None]
        read_there = token_there[None, :] & inside
        there = row_there & ((tile + 1) * 64 < columns) & (step + 1 < STEPS)
        next_low = _scale(scales, (tile + 1) * 64 // GROUP, rows, row, there)
        next_high = _scale(scales, ((tile + 1) * 64 + 32) // GROUP, rows, row, there)
        read = tl.load(read_at, mask=read_there, other=0.0)
        found = _group(found, _codes(pair, 0, read.dtype), read, low, RESTS)
        read = tl.load(read_at + 32, mask=read_there, other=0.0)
        found = _group(found, _codes(pair, 1, read.dtype), read, high, RESTS)
        low, high = next_low, next_high
    sum_at = (tl.program_id(1) * tokens + token[None, :]).to(tl.int64) * rows + row[:, None]
    tl.store(sums + sum_at, found, mask=token_there[None, :] & row_there[:, None])


@triton.jit
def _scale(scales, group, rows, row, there):  # type: ignore[no-untyped-def]
    """Return the scale and the rest of a group for each row, side by side in 32 bits."""
    return tl.load(scales + group.to(tl.int64) * rows + row, mask=there, other=0)


@triton.jit  # type: ignore[untyped-decorator]
def _group(found, code, read, scale, RESTS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Add the product of a group's codes, times its scale."""
    size = (scale & 0xFFFF).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
    found += tl.dot(code, read, input_precision="ieee") * size[:, None]
    if RESTS:
        rest = (scale >> 16).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
        found += rest[:, None] * tl.sum(read.to(tl.float32), 0)[None, :]
    return found


@triton.jit  # type: ignore[untyped-decorator]
def _codes(pair, UPPER: tl.constexpr, DTYPE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the codes of the lower or upper halves of bytes, less 8."""
    if DTYPE == tl.bfloat16:  # Triton compiles the branch that constants choose  # noqa: SIM300
        if UPPER:
            return tl.inline_asm_elementwise(
                UPPER_CODES, "=r,=r,r", [pair], dtype=tl.bfloat16, is_pure=True, pack=4
            )
        else:  # noqa: RET505
            return tl.inline_asm_elementwise(
                LOWER_CODES, "=r,=r,r", [pair], dtype=tl.bfloat16, is_pure=True, pack=4
            )
    else:  # noqa: RET505
        return ((pair >> (4 if UPPER else 0) & 15).to(tl.int8) - 8).to(DTYPE)


@triton.jit  # type: ignore[untyped-decorator]
def _added(  # type: ignore[no-untyped-def]
    sums, bias, rest, x, into, rows, size, columns, PARTS: tl.constexpr, BIASED: tl.constexpr,
    RESTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Add up the parts of a token's sums; the rest of a row multiplies the sum of the token's x."""
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = row < rows
    at = tl.program_id(0).to(tl.int64) * rows + row
    found = tl.zeros((BLOCK,), tl.float32)
    for part in range(PARTS):
        found += tl.load(sums + part * size + at, mask=there, other=0.0)
    if BIASED:
        found += tl.load(bias + row, mask=there, other=0.0).to(tl.float32)
    if RESTS:
        read = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            read_at = x + tl.program_id(0).to(tl.int64) * columns + column
            read += tl.load(read_at, mask=column < columns, other=0.0).to(tl.float32)
        found += tl.sum(read, 0) * tl.load(rest + row, mask=there, other=0.0)
    tl.store(into + at, found.to(into.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _dense_eight(  # type: ignore[no-untyped-def]
    codes, scale, rest, into, columns, groups, SHARED: tl.constexpr, RESTS: tl.constexpr, BLOCK: tl.constexpr
):
    """Multiply a row's codes with their scales, and add its rest."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < columns
    code = tl.load(codes + row * columns + column, mask=there, other=0).to(tl.float32)
    size = tl.load(scale + row * groups + column // SHARED, mask=there, other=0.0).to(tl.float32)
    found = code * size
    if RESTS:
        found += tl.load(rest + row)
    tl.store(into + row * columns + column, found.to(into.dtype.element_ty), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _dense_four(  # type: ignore[no-untyped-def]
    packed, scales, into, rows, columns, GROUP: tl.constexpr, ROWS: tl.constexpr
):
    """Write the 64 columns of a tile of ROWS rows."""
    row = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    tile, inner = tl.program_id(1).to(tl.int64), tl.arange(0, 32)
    there = row < rows
    pair = tl.load(packed + (tile * rows + row)[:, None] * 32 + inner[None, :], mask=there[:, None], other=0)
    for half in tl.static_range(2):
        code = (pair >> 4 if half else pair & 15).to(tl.float32) - 8
        scale_at = scales + ((tile * 64 + half * 32) // GROUP * rows + row) * 2
        size = tl.load(scale_at, mask=there, other=0.0).to(tl.float32)
        rest = tl.load(scale_at + 1, mask=there, other=0.0).to(tl.float32)
        at = into + row[:, None] * columns + tile * 64 + half * 32 + inner[None, :]
        tl.store(at, (code * size[:, None] + rest[:, None]).to(into.dtype.element_ty), mask=there[:, None])
