"""Rotary position embeddings: the frequencies of a config, and how they are stretched for long contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.values import LARGEST, MAX_CONTEXT, Values, flag, number, whole

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
    source = Values(Path(path), _scaling(config, path))
    base = number(source, "rope_theta", 10000.0, least=1.0)
    part = number(source, "partial_rotary_factor", 1.0, most=1.0)
    rates = frequencies(base, int(width * part))
    kind = source.value("type") if source.value("rope_type") is None else source.value("rope_type")
    if kind in (None, "none", "default"):
        return Rope(rates.astype(np.float32), 1.0, context)
    if not isinstance(kind, str) or kind not in KINDS:
        raise UnsupportedModel(
            f"`{path}` uses the RoPE scaling `{printable(str(kind))}`, which cannot be imported yet"
        )
    original = whole(source, "original_max_position_embeddings", context, least=2, most=MAX_CONTEXT)
    with np.errstate(all="ignore"):
        try:
            found: Rope = KINDS[kind](rates, base, source, original, context)
        except (
            ValueError,
            ZeroDivisionError,
            OverflowError,
        ) as error:  # from numbers that do not go together
            raise BrokenModel(f"`rope_scaling` of `{path}` is wrong: {error}", "Download it again") from None
    if not np.isfinite(found.frequencies).all() or not math.isfinite(found.scale):
        raise BrokenModel(f"`rope_scaling` of `{path}` gives no finite positions", "Download it again")
    return found


def _scaling(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the values on rotary positions, which newer configs keep in an object of their own."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters") or {}
    if not isinstance(scaling, Mapping):
        raise BrokenModel(f"`rope_scaling` of `{path}` is no object", "Download it again")
    outer = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    return {**scaling, **{key: config[key] for key in outer if config.get(key) is not None}}


def _linear(rates: Rates, base: float, scaling: Values, original: int, context: int) -> Rope:
    """Stretch all positions alike (Chen et al. 2023)."""
    return Rope((rates / number(scaling, "factor", least=1e-6)).astype(np.float32), 1.0, context)


def _llama3(rates: Rates, base: float, scaling: Values, original: int, context: int) -> Rope:
    """Stretch what turns less than once in the original context, as Llama 3.1 does."""
    low, high = number(scaling, "low_freq_factor"), number(scaling, "high_freq_factor")
    if high <= low:
        raise ValueError("`high_freq_factor` is not above `low_freq_factor`")
    turns = original * rates / (2 * math.pi)
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    stretched = (1 - smooth) * rates / number(scaling, "factor", least=1e-6) + smooth * rates
    return Rope(stretched.astype(np.float32), 1.0, context)


def _yarn(rates: Rates, base: float, scaling: Values, original: int, context: int) -> Rope:
    """Stretch by parts, and sharpen attention (YaRN, Peng et al. 2023, equations 18 to 22)."""
    factor, width = number(scaling, "factor", least=1e-6), 2 * len(rates)
    ends = [
        width * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))
        for turns in (
            number(scaling, "beta_fast", 32.0, least=1e-6),
            number(scaling, "beta_slow", 1.0, least=1e-6),
        )
    ]
    if flag(scaling, "truncate", True):
        ends = [float(math.floor(ends[0])), float(math.ceil(ends[1]))]
    first, last = max(ends[0], 0.0), min(ends[1], width - 1.0)
    stretched = np.clip((np.arange(len(rates)) - first) / max(last - first, 0.001), 0.0, 1.0)
    scale = number(scaling, "attention_factor", 0.0)
    if not scale:
        first_scale, second = (number(scaling, name, 0.0) for name in ("mscale", "mscale_all_dim"))
        both = first_scale and second
        scale = _sharper(factor, first_scale) / _sharper(factor, second) if both else _sharper(factor, 1.0)
    mixed = rates / factor * stretched + rates * (1 - stretched)
    return Rope(mixed.astype(np.float32), scale, context)


def _sharper(factor: float, by: float) -> float:
    """Return by how much YaRN sharpens attention for a stretch by `factor`."""
    return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0


def _longrope(rates: Rates, base: float, scaling: Values, original: int, context: int) -> Rope:
    """Return LongRoPE's frequencies for texts up to the original context (Ding et al. 2024).

    Longer texts take other frequencies, for all of their tokens: they would change what is in the KV cache.
    """
    short = _factors(scaling, "short_factor", len(rates))
    factor = context / original
    scale = number(scaling, "attention_factor", 0.0)
    if not scale:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope((rates / short).astype(np.float32), scale, min(original, context))


def _factors(scaling: Values, key: str, count: int) -> Rates:
    """Return a list of `count` positive numbers."""
    found = scaling.value(key)
    fitting = isinstance(found, list) and len(found) == count
    if not fitting or not all(type(each) in (int, float) and 0 < each < LARGEST for each in found):
        raise BrokenModel(f"`{key}` of `{scaling.path}` is not {count} numbers above 0", "Download it again")
    return np.asarray(found, np.float64)


KINDS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope, "su": _longrope}
