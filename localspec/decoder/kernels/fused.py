"""The small steps between a layer's products, each in one Triton kernel, for half precisions on a card.

Torch runs several kernels for each of them, which cost a pass over a few tokens more than its products do.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

COLUMNS = 1024  # of a program of the gated product
MANY = 64  # tokens from which torch's own kernels, which launch sooner, cost no more


def added_norm(x: Any, y: Any, weight: Any, epsilon: float, scale: float) -> tuple[Any, Any]:
    """Return x + scale * y [tokens, width], and its RMS norm; `y` is None where nothing is added.

    The norm is x / sqrt(mean(x^2) + epsilon) * weight (Zhang and Sennrich 2019), in float32 until its end.
    """
    import torch

    if len(x) >= MANY:
        added = x if y is None else torch.add(x, y, alpha=scale)
        return added, torch.nn.functional.rms_norm(added, weight.shape, weight, epsilon)
    normed = torch.empty_like(x)
    added = x if y is None else torch.empty_like(x)
    with torch.cuda.device_of(x):
        _added_norm[len(x),](
            x, x if y is None else y, weight, added, normed, x.shape[1], epsilon, scale, ADDS=y is not None,
            BLOCK=triton.next_power_of_2(x.shape[1]),
        )  # fmt: skip
    return added, normed


def gated(joined: Any) -> Any:
    """Return silu(gate) * up [tokens, inner] of gates and ups side by side [tokens, 2 * inner]."""
    import torch

    tokens, inner = len(joined), joined.shape[1] // 2
    if tokens >= MANY:
        gate, up = joined.chunk(2, -1)
        return torch.nn.functional.silu(gate).mul_(up)
    found = joined.new_empty((tokens, inner))
    with torch.cuda.device_of(joined):
        _gated[tokens, triton.cdiv(inner, COLUMNS)](joined, found, inner, BLOCK=COLUMNS)
    return found


def placed(
    joined: Any, heads: int, turns: tuple[Any, Any] | None, norms: tuple[Any, Any] | None, epsilon: float,
    kept: tuple[Any, Any], slots: Any, texts: Any,
) -> Any:  # fmt: skip
    """Put a pass's keys and values into the buffers `kept`; return its queries [tokens, heads, head_width].

    `joined` [tokens, columns] are queries, keys and values side by side; queries and keys are normed by head
    and rotated by cosines and signed sines `turns` [tokens, 1, rotated width] in float32 where given.
    Buffers are [key_heads, room, head_width], or [texts, ...] with `slots` [texts, tokens of each].
    """
    import torch

    keys, values = kept
    key_heads, room, width = keys.shape[-3:]
    tokens = len(joined)
    queries = joined.new_empty((tokens, heads, width))
    cosine, sine = turns if turns else (joined, joined)
    of_queries, of_keys = norms if norms else (joined, joined)
    with torch.cuda.device_of(joined):
        _placed[tokens, heads + 2 * key_heads](
            joined, cosine, sine, of_queries, of_keys, queries, keys, values, slots,
            slots if texts is None else texts, heads, key_heads, room, epsilon,
            tokens if texts is None else slots.shape[1], WIDTH=width,
            TURNED=cosine.shape[-1] if turns else 0, NORMED=norms is not None, APART=texts is not None,
            BLOCK=triton.next_power_of_2(width), num_warps=1,
        )  # fmt: skip
    return queries


@triton.jit  # type: ignore[untyped-decorator]
def _added_norm(  # type: ignore[no-untyped-def]
    x, y, weight, added, normed, columns, epsilon, scale, ADDS: tl.constexpr, BLOCK: tl.constexpr
):
    """Add to a token's row and norm the sum as it is rounded."""
    column = tl.arange(0, BLOCK)
    there = column < columns
    at = tl.program_id(0).to(tl.int64) * columns + column
    value = tl.load(x + at, mask=there, other=0.0)
    if ADDS:
        more = tl.load(y + at, mask=there, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32) * scale).to(value.dtype)
        tl.store(added + at, value, mask=there)
    wide = value.to(tl.float32)
    size = tl.rsqrt(tl.sum(wide * wide, 0) / columns + epsilon)
    factor = tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + at, (wide * size * factor).to(value.dtype), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _gated(joined, found, inner, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Multiply a token's ups with the SiLU of its gates."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = column < inner
    at = joined + token * 2 * inner + column
    gate = tl.load(at, mask=there, other=0.0)
    up = tl.load(at + inner, mask=there, other=0.0)
    wide = gate.to(tl.float32)
    value = wide / (1 + tl.exp(-wide)) * up.to(tl.float32)
    tl.store(found + token * inner + column, value.to(gate.dtype), mask=there)


@triton.jit  # type: ignore[untyped-decorator]
def _placed(  # type: ignore[no-untyped-def]
    joined, cosine, sine, of_queries, of_keys, queries, keys, values, slots, texts, heads, key_heads, room,
    epsilon, each, WIDTH: tl.constexpr, TURNED: tl.constexpr, NORMED: tl.constexpr, APART: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Norm and rotate one head of one token, and write it where it belongs."""
    token, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    there = column < WIDTH
    at = joined + (token.to(tl.int64) * (heads + 2 * key_heads) + head) * WIDTH
    raw = tl.load(at + column, mask=there, other=0.0)
    value = raw.to(tl.float32)
    if head < heads + key_heads:
        half = TURNED // 2
        partner = tl.where(column < half, column + half, column - half)
        turns = column < TURNED
        other = tl.load(at + partner, mask=turns, other=0.0).to(tl.float32)
        if NORMED:
            size = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + epsilon)
            weight = of_queries if head < heads else of_keys
            value = value * size * tl.load(weight + column, mask=there, other=0.0).to(tl.float32)
            other = other * size * tl.load(weight + partner, mask=turns, other=0.0).to(tl.float32)
        if TURNED > 0:
            turn_at = token * TURNED + column
            turned = value * tl.load(cosine + turn_at, mask=turns, other=1.0)
            value = turned + other * tl.load(sine + turn_at, mask=turns, other=0.0)
    if head < heads:
        tl.store(
            queries + (token.to(tl.int64) * heads + head) * WIDTH + column, value.to(raw.dtype), mask=there
        )
    else:
        slot = tl.load(slots + token)
        row = (head - heads) % key_heads
        if APART:
            row += tl.load(texts + token // each) * key_heads
        into = (row * room + slot).to(tl.int64) * WIDTH + column
        if head < heads + key_heads:
            tl.store(keys + into, value.to(raw.dtype), mask=there)
        else:
            tl.store(values + into, raw, mask=there)
