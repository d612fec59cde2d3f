"""Rotary position embeddings: the frequencies of a config, and how they are stretched for long contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel

Rates = NDArray[np.float64]


class Rope(NamedTuple):
    """Frequencies [rotated width / 2], a factor of cosines and sines, and the longest text they suit."""

    frequencies: NDArray[np.float32]
    scale: float
    context: int


def frequencies(base: float, width: int) -> Rates:
    """Return base ** (-2i / width) (RoFormer, Su et al. 2021, equation 15)."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def rope_of(config: Mapping[str, Any], width: int, context: int, path: str) -> Rope:
    """Return the rotary embedding of a Hugging Face config.json for heads of `width` columns.

    Raises UnsupportedModel for an unknown kind of scaling, and BrokenModel for one without its numbers.
    """
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    base = float(config.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    part = config.get("partial_rotary_factor") or scaling.get("partial_rotary_factor") or 1.0
    rates, kind = frequencies(base, int(width * part)), scaling.get("rope_type") or scaling.get("type")
    if kind in (None, "none", "default"):
        return Rope(rates.astype(np.float32), 1.0, context)
    if kind not in KINDS:
        raise UnsupportedModel(f"`{path}` uses the RoPE scaling `{kind}`, which cannot be imported yet")
    original = scaling.get("original_max_position_embeddings") or config.get(
        "original_max_position_embeddings"
    )
    try:
        found: Rope = KINDS[kind](rates, base, scaling, int(original or context), context)
    except (KeyError, TypeError, ValueError) as error:
        raise BrokenModel(f"`rope_scaling` of `{path}` is wrong: {error}", "Download it again") from None
    return found


def _linear(rates: Rates, base: float, scaling: Mapping[str, Any], original: int, context: int) -> Rope:
    """Stretch all positions alike (Chen et al. 2023)."""
    return Rope((rates / float(scaling["factor"])).astype(np.float32), 1.0, context)


def _llama3(rates: Rates, base: float, scaling: Mapping[str, Any], original: int, context: int) -> Rope:
    """Stretch what turns less than once in the original context, as Llama 3.1 does."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = original * rates / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    stretched = (1 - smooth) * rates / float(scaling["factor"]) + smooth * rates
    return Rope(stretched.astype(np.float32), 1.0, context)


def _yarn(rates: Rates, base: float, scaling: Mapping[str, Any], original: int, context: int) -> Rope:
    """Stretch by parts, and sharpen attention (YaRN, Peng et al. 2023, equations 18 to 22)."""
    factor, width = float(scaling["factor"]), 2 * len(rates)
    ends = [
        width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (float(scaling.get("beta_fast") or 32), float(scaling.get("beta_slow") or 1))
    ]
    if scaling.get("truncate", True):
        ends = [float(math.floor(ends[0])), float(math.ceil(ends[1]))]
    first, last = max(ends[0], 0.0), min(ends[1], width - 1.0)
    stretched = np.clip((np.arange(len(rates)) - first) / max(last - first, 0.001), 0.0, 1.0)
    scale = scaling.get("attention_factor")
    if scale is None:
        of_factor = [_sharper(factor, scaling.get(name)) for name in ("mscale", "mscale_all_dim")]
        both = scaling.get("mscale") and scaling.get("mscale_all_dim")
        scale = of_factor[0] / of_factor[1] if both else _sharper(factor, 1.0)
    mixed = rates / factor * stretched + rates * (1 - stretched)
    return Rope(mixed.astype(np.float32), float(scale), context)


def _sharper(factor: float, by: float | None) -> float:
    """Return by how much YaRN sharpens attention for a stretch by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * (by or 1.0) * math.log(factor) + 1.0


def _longrope(rates: Rates, base: float, scaling: Mapping[str, Any], original: int, context: int) -> Rope:
    """Return LongRoPE's frequencies for texts up to the original context (Ding et al. 2024).

    Longer texts take other frequencies, for all of their tokens: they would change what is in the KV cache.
    """
    short = np.asarray(scaling["short_factor"], np.float64)
    factor = context / original
    scale = scaling.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope((rates / short).astype(np.float32), float(scale), min(original, context))


KINDS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope, "su": _longrope}
