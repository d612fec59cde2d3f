"""How many visual tokens run in which layers, and whether those that do not may return."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from itertools import pairwise
from typing import NamedTuple

from localspec.errors import BadValue

REROUTE, PDROP, FASTV = "reroute", "pdrop", "fastv"
METHODS = (REROUTE, PDROP, FASTV)
DEPTHS = (2 / 32, 7 / 32, 15 / 32, 23 / 32)  # of Reroute's decision layers in a model of 32 (2606.12412)
SHARES = (1.0, 1.0, 0.5, 0.25)  # of the visual tokens kept from each of them on
FORM = re.compile(r"(?:(keep|method|layers)=([a-z0-9-]+))(?:\+|$)")
HINT = "Such as `keep=64`, `keep=64+method=pdrop` or `keep=80-40-20+layers=2-7-15`"


class Decision(NamedTuple):
    """A layer before which visual tokens are chosen, and how many run from there on."""

    layer: int
    keep: int


class Schedule(NamedTuple):
    """The decisions of a model in the order of its layers; with `returns` each chooses among all tokens."""

    decisions: tuple[Decision, ...] = ()
    returns: bool = True

    def keep_at(self, layer: int) -> int | None:
        """Return how many visual tokens run from a layer on, None where nothing is decided."""
        return next((decision.keep for decision in self.decisions if decision.layer == layer), None)

    def average(self, layers: int, tokens: int) -> float:
        """Return the mean number of visual tokens that run in a layer, of a prompt with so many."""
        edges = [Decision(0, tokens), *self.decisions, Decision(layers, 0)]
        spans = ((then.layer - now.layer) * min(now.keep, tokens) for now, then in pairwise(edges))
        return sum(spans) / layers


class VisionTokens(NamedTuple):
    """The value of `--vision-tokens`: a mean number of visual tokens of a picture, or one per decision."""

    keeps: tuple[int, ...]
    method: str = REROUTE
    layers: tuple[int, ...] = ()

    def schedule(self, layers: int, tokens: int, pictures: int = 1) -> Schedule:
        """Return the schedule of a model for a prompt with so many visual tokens in so many pictures.

        Raises BadValue for layers that the model does not have, and for a mean below what its first layers
        need, which read all of them.
        """
        returns = self.method == REROUTE
        if self.layers:
            if self.layers[-1] >= layers:
                raise BadValue(
                    f"`--vision-tokens` decides at layer {self.layers[-1]}: the model has {layers} layers",
                    "Count them from 0",
                )
            kept = (min(keep * pictures, tokens) for keep in self.keeps)
            return Schedule(tuple(map(Decision, self.layers, kept)), returns)
        return by_mean(min(self.keeps[0] * pictures, tokens), self.method, layers, tokens)


def by_mean(mean: float, method: str, layers: int, tokens: int) -> Schedule:
    """Return the schedule of a method in which `mean` of so many visual tokens run in a layer on average.

    Reroute and PDrop decide at the same layers and keep as many; FastV decides once, at the first of them.
    Raises BadValue for a mean below what the layers before the first decision need.
    """
    at = sorted({max(1, round(depth * layers)) for depth in DEPTHS if round(depth * layers) < layers})
    at, shares = (at[:1], [1.0]) if method == FASTV else (at, list(SHARES[-len(at) :]))

    def kept(first: int) -> Schedule:
        keeps = (max(1, min(tokens, round(first * share))) for share in shares)
        return Schedule(tuple(map(Decision, at, keeps)), method == REROUTE)

    numbers = range(round(tokens / shares[-1]) + 1)
    found = bisect_left(numbers, mean, key=lambda first: kept(first).average(layers, tokens))
    least = kept(0).average(layers, tokens)
    if mean < min(least, tokens):
        raise BadValue(
            f"`--vision-tokens keep={mean:g}` is less than the first {at[0]} of {layers} layers need, which "
            f"read all {tokens} visual tokens",
            f"Keep {math.ceil(least)} or more",
        )
    near = (kept(first) for first in numbers[max(0, found - 1) : found + 1])
    return min(near, key=lambda each: abs(each.average(layers, tokens) - mean))


def parse(text: str) -> VisionTokens | None:
    """Return what a text such as `keep=64+method=fastv` asks for, None for an empty one; raises BadValue."""
    if not text:
        return None
    pairs = FORM.findall(text)
    found = dict(pairs)
    whole = "+".join(f"{key}={value}" for key, value in pairs) == text
    if not whole or len(found) < len(pairs) or "keep" not in found:
        raise BadValue(f"`--vision-tokens {text}` is no schedule", HINT)
    keeps, layers = (_numbers(found.get(key, ""), text) for key in ("keep", "layers"))
    method = found.get("method", REROUTE)
    if method not in METHODS:
        raise BadValue(
            f"`--vision-tokens` has no method `{method}`",
            f"Choose {', '.join(METHODS[:-1])} or {METHODS[-1]}",
        )
    if len(keeps) != (len(layers) or 1) or 0 in keeps:
        raise BadValue(f"`--vision-tokens {text}` needs a number above 0 for each of its layers", HINT)
    if list(layers) != sorted({*layers} - {0}):
        raise BadValue(f"The layers of `--vision-tokens {text}` do not ascend from 1", HINT)
    return VisionTokens(keeps, method, layers)


def _numbers(text: str, whole: str) -> tuple[int, ...]:
    """Return the numbers of a text such as 2-7-15."""
    parts = text.split("-") if text else []
    if not all(part.isdecimal() and len(part) < 7 for part in parts):
        raise BadValue(f"`--vision-tokens {whole}` is no schedule", HINT)
    return tuple(int(part) for part in parts)
