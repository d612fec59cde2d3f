"""The rule that compares speculative with plain text, as an assertion."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.core.contracts import Engine
from localspec.core.parity import ROUNDED, first_difference, one_by_one
from localspec.core.sampler import Sampling

UNROUNDED = 0.02  # logits: without int8 activations only the float16 KV cache differs

__all__ = ["ROUNDED", "UNROUNDED", "check", "one_by_one"]


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
    found = first_difference(
        plain, other, engine=engine, prompt=prompt, tolerance=tolerance, sampling=sampling, seed=seed
    )
    assert found is None or found.tie, f"the answers part, and not at a near tie: {found}"
    return len(plain) if found is None else found.at
