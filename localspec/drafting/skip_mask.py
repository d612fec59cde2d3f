"""The sub-blocks of a model that a smaller pass leaves out, as in `a4-6+m5`: attentions 4 to 6 and MLP 5."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from localspec.errors import BadValue

PART = r"[am]\d{1,4}(-\d{1,4})?"
TEXT = re.compile(rf"{PART}(\+{PART})*")


@dataclass(frozen=True, slots=True)
class SkipMask:
    """The layers, from 0 on, whose attention is left out, and those whose MLP is."""

    attention: frozenset[int]
    mlp: frozenset[int]

    def __str__(self) -> str:
        return "+".join([*_ranges("a", self.attention), *_ranges("m", self.mlp)])

    def __len__(self) -> int:
        return len(self.attention) + len(self.mlp)

    def check(self, layers: int) -> None:
        """Raise BadValue unless a model of `layers` layers keeps its first and its last one."""
        inner = range(1, layers - 1)
        if outside := sorted((self.attention | self.mlp) - set(inner)):
            raise BadValue(
                f"Layer {outside[0]} cannot be skipped: the model has {layers} layers",
                f"Choose from 1 to {layers - 2}; the first and the last layer are kept",
            )


def is_mask(text: str) -> bool:
    """Return whether a text names sub-blocks, as in `a4-6+m5`."""
    return TEXT.fullmatch(text) is not None


def parse(text: str) -> SkipMask:
    """Return the mask that a text names; raises BadValue."""
    if not is_mask(text):
        raise BadValue(f"`{text}` names no sub-blocks", "Write attentions and MLPs as in `a4-6+m5`")
    found: dict[str, set[int]] = {"a": set(), "m": set()}
    for part in text.split("+"):
        first, _, last = part[1:].partition("-")
        found[part[0]].update(range(int(first), int(last or first) + 1))
    return SkipMask(frozenset(found["a"]), frozenset(found["m"]))


def _ranges(kind: str, layers: Collection[int]) -> list[str]:
    runs: list[list[int]] = []
    for layer in sorted(layers):
        if runs and runs[-1][-1] == layer - 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return [f"{kind}{run[0]}-{run[-1]}" if len(run) > 1 else f"{kind}{run[0]}" for run in runs]
