"""Tiers of verification: a draft, a middle tier and the target, and what the middle one says of a token."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from localspec.core.sampler import Sampler
from localspec.core.types import Row, Tokens
from localspec.errors import BadValue

DRAFT, MIDDLE, FULL = "draft", "middle", "full"  # tiers, named by who emits a token
ACCEPT, ESCALATE = 0.6, 0.3  # thresholds of the relative confidence
EXIT, MASK = "exit", "mask"  # middle tiers that follow from the target


class Judgement(NamedTuple):
    """A model's judgement of a token: its probability, and that relative to the most likely token's."""

    share: float
    relative: float


def judge(row: Row, before: Tokens, token: int, sampler: Sampler) -> Judgement:
    """Return the judgement on `token` after `before` by a model with the logits `row` [vocab].

    The distribution is the one that the answer is sampled from, with its penalties and grammar; for a greedy
    answer it is that of temperature 1. The relative confidence is r = q'(v) / max q' of VIA-SD (Xian et al.
    2026, arXiv 2606.12243). A token that the model does not have gets 0.
    """
    if token >= len(row):
        return Judgement(0.0, 0.0)
    if sampler.sampling.greedy:
        return _softmax(sampler.adjusted(row, before), token)
    distribution = sampler.distribution(row, before)
    share = distribution.of(token)
    return Judgement(share, share / float(distribution.probs.max()))


def _softmax(row: Row, token: int) -> Judgement:
    highest = row.max()
    if not np.isfinite(highest):  # a grammar allows none of the model's tokens
        return Judgement(0.0, 0.0)
    with np.errstate(over="ignore"):
        weights = np.exp(row - highest)
    return Judgement(float(weights[token]) / float(weights.sum(dtype=np.float64)), float(weights[token]))


def check_thresholds(accept: float, escalate: float) -> None:
    """Raise BadValue unless 0 <= escalate <= accept <= 1."""
    if not 0 <= escalate <= accept <= 1:
        raise BadValue(
            f"`escalate` is {escalate:g} and `accept` is {accept:g}",
            "Give numbers from 0 to 1, `escalate` at most `accept`",
        )
