"""How likely the tokens of an answer were: log-probabilities by the model's own logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from localspec.core.sampler import top
from localspec.core.types import Likelihood, Logits, Row, Tokens


def likelihoods(logits: Logits, tokens: Tokens, count: int | None) -> list[Likelihood]:
    """Return the likelihood of each of `tokens` by its row of `logits`, with `count` alternatives.

    Nothing is computed for a `count` of None.
    """
    if count is None:
        return []
    return [_likelihood(row, token, count) for row, token in zip(logits, tokens, strict=False)]


def _likelihood(row: Row, token: int, count: int) -> Likelihood:
    highest = row.max()
    if not np.isfinite(highest):  # the highest share the whole probability
        row, highest = np.where(row == highest, np.float32(0), np.float32(-np.inf)), np.float32(0)
    with np.errstate(over="ignore"):  # far below the highest: the weight is 0
        total = float(highest) + float(np.log(np.exp(row - highest).sum(dtype=np.float64)))
    best: Sequence[int] = sorted(top(row, count).tolist(), key=lambda each: -row[each]) if count else ()
    return Likelihood(float(row[token]) - total, tuple((each, float(row[each]) - total) for each in best))
