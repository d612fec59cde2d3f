"""The cost of one distribution in the place of another: violations of a margin in their ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from localspec.core.types import Logits

A, B = 0.5, 0.3  # margins: the cost is 0 where no token is likelier by more than 1 / (1 - A)

Values = NDArray[np.float64]


def log_softmax(logits: Logits) -> Logits:
    """Return the log-probabilities [..., vocab] of logits at temperature 1, in float32."""
    shifted: Logits = logits - logits.max(axis=-1, keepdims=True)
    total = np.exp(shifted).sum(axis=-1, keepdims=True, dtype=np.float64)
    logs: Logits = (shifted - np.log(total)).astype(np.float32)
    return logs


def margin_cost(q: Logits, p: Logits, a: float = A, b: float = B) -> Values:
    """Return R_ab(q || p) [tokens] of log-probabilities [tokens, vocab].

    R_ab(q || p) = sum_x p relu(log(1 - a) + log(p / q)) + sum_x q relu(log b + log(p / q)), the
    margin-violation cost of VIA-SD (Xian et al. 2026, arXiv 2606.12243) of p in the place of q.
    """
    return np.array([_cost(better, other, a, b) for better, other in zip(q, p, strict=True)])


def point_cost(q: Logits, tokens: NDArray[np.int64], a: float = A, b: float = B) -> Values:
    """Return R_ab(q || p) [tokens] where p is sure of one of `tokens` at each position."""
    ratio = -q[np.arange(len(q)), tokens].astype(np.float64)
    over: Values = np.maximum(np.log1p(-a) + ratio, 0.0)
    under: Values = np.exp(-ratio) * np.maximum(np.log(b) + ratio, 0.0)
    return np.add(over, under)


def _cost(q: Logits, p: Logits, a: float, b: float) -> float:
    ratio = p - q
    with np.errstate(invalid="ignore"):
        over = np.exp(p) * np.maximum(ratio + np.log1p(-a), 0.0)
        under = np.exp(q) * np.maximum(ratio + np.log(b), 0.0)
    return float(np.nansum(over, dtype=np.float64) + np.nansum(under, dtype=np.float64))
