"""The parts of a pass by themselves: attention and matrix products in the forms that torch offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from shapes import HEAD_WIDTH, SIZES, Size, bytes_of, matrix_of
from timing import replayed
from torch.nn.attention.bias import causal_lower_right

COUNTS, ENDS = (1, 4, 16), (512, 2048, 8192)
attention = torch.nn.functional.scaled_dot_product_attention


def attentions(size: str, place: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield microseconds of attention of a few tokens to so many slots, by the form of the call."""
    found = SIZES[size]
    for end in ENDS:
        for count in COUNTS:
            row: dict[str, Any] = {"attention": size, "slots": end, "tokens": count}
            for name, run in forms(found, count, end, place, dtype).items():
                row[name] = tried(replayed, run, place, 20, 28, times=1e6)
            yield row


def forms(
    size: Size, count: int, end: int, place: torch.device, dtype: torch.dtype
) -> dict[str, Callable[[], Any]]:
    """Return calls that compute the same: queries of several heads as rows of one product, or apart."""
    queries = torch.randn(1, size.heads, count, HEAD_WIDTH, device=place, dtype=dtype)
    keys, values = (
        torch.randn(1, size.key_heads, end, HEAD_WIDTH, device=place, dtype=dtype) for _ in range(2)
    )
    shared = size.heads // size.key_heads
    mask = torch.ones(count, end, dtype=torch.bool, device=place).tril(end - count)
    rows = queries.reshape(1, size.key_heads, shared * count, HEAD_WIDTH)
    many, scale = mask.repeat(shared, 1), HEAD_WIDTH**-0.5

    def products() -> Any:
        scores = (rows[0] @ keys[0].transpose(1, 2)).float().masked_fill_(~many, float("-inf"))
        return (scores * scale).softmax(-1).to(dtype) @ values[0]

    return {
        "rows of one product": lambda: attention(rows, keys, values, attn_mask=many),
        "grouped, mask": lambda: attention(queries, keys, values, attn_mask=mask, enable_gqa=True),
        "grouped, flash": lambda: attention(
            queries, keys, values, attn_mask=causal_lower_right(count, end), enable_gqa=True
        ),
        "repeated": lambda: attention(
            queries,
            keys.repeat_interleave(shared, 1),
            values.repeat_interleave(shared, 1),
            attn_mask=mask,
        ),
        "two products": products,
    }


def products(size: str, place: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield microseconds of the products of a layer, by the form of the matrix and the tokens."""
    found = SIZES[size]
    queries = (found.heads + 2 * found.key_heads) * HEAD_WIDTH
    shapes = {"qkv": (queries, found.width), "gates": (2 * found.inner, found.width)}
    shapes["down"] = (found.width, found.inner)
    for part, (rows, columns) in shapes.items():
        for form in ("bf16", "int8", "int8 by 32", "int4"):
            matrix = matrix_of(rows, columns, form, place, dtype)
            row: dict[str, Any] = {"product": f"{size} {part}", "form": form, "MB": bytes_of(matrix) / 1e6}
            for count in (1, 2, 4, 8, 16, 64, 1024):
                x = torch.randn(count, columns, device=place, dtype=dtype)
                row[str(count)] = tried(replayed, partial(matrix.product, x), place, 10, 8, times=1e6)
            yield row
        codes = torch.randint(-127, 128, (rows, columns), dtype=torch.int8, device=place)
        scale, x = (
            torch.ones(rows, device=place, dtype=dtype),
            torch.randn(1, columns, device=place, dtype=dtype),
        )
        theirs = tried(replayed, partial(torch._weight_int8pack_mm, x, codes, scale), place, 5, 8, times=1e6)
        yield {"product": f"{size} {part}", "form": "torch's int8", "1": theirs}


def tried(run: Callable[..., Any], *given: Any, times: float = 1.0) -> Any:
    """Return a number times `times`, rounded, or the error in its place."""
    try:
        found = run(*given)
    except Exception as error:  # what a card cannot do is a result
        return f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"
    return float(f"{times * found:.4g}") if isinstance(found, float) else found
