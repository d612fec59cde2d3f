"""Rotary position embeddings: the frequencies of a config, and how they are stretched for long contexts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from localspec.errors import BrokenModel, UnsupportedModel, printable
from localspec.formats.hyperparameters.families import DEFAULTS
from localspec.formats.values import LARGEST, MAX_CONTEXT, Values, flag, number, whole

Rates = NDArray[np.float64]

ORIGINAL = "original_max_position_embeddings"
OUTER = ("rope_theta", "partial_rotary_factor", ORIGINAL)  # keys that may also lie outside the object


class Rope(NamedTuple):
    """Frequencies [rotated width / 2], a factor of cosines and sines, and the longest text they suit."""

    frequencies: NDArray[np.float32]
    scale: float
    context: int


def frequencies(base: float, width: int) -> Rates:
    """Return base ** (-2i / width) (RoFormer, Su et al. 2021, equation 15)."""
    return base ** (-np.arange(0, width, 2, dtype=np.float64) / width)


def rope_of(config: Mapping[str, Any], width: int, context: int, path: str, family: str = "llama") -> Rope:
    """Return the rotary embedding of a Hugging Face config.json for heads of `width` columns.

    Raises UnsupportedModel for a kind of scaling that localspec does not compute, for one without its numbers
    and for values that contradict one another, and BrokenModel for a base out of range.
    """
    values = scaling_of(config, path)
    source = Values(Path(path), values)
    base = number(source, "rope_theta", DEFAULTS[family].base, least=1.0)
    part = number(source, "partial_rotary_factor", 1.0, most=1.0)
    rotated = int(width * part)
    if rotated < 2 or rotated % 2:
        raise UnsupportedModel(f"`partial_rotary_factor` of `{path}` is {part:g}, which makes no pairs")
    rates, kind = frequencies(base, rotated), _kind(values, path, family)
    if kind is None:
        return Rope(rates.astype(np.float32), 1.0, context)
    if family == "phi3":
        values.setdefault(ORIGINAL, DEFAULTS[family].context)
    elif kind != "longrope" and config.get(ORIGINAL, context) not in (None, context, _inner(config)):
        raise UnsupportedModel(f"`{ORIGINAL}` of `{path}` lies outside `rope_scaling`")
    return _scaled(kind, rates, base, source, context)


def _scaled(kind: str, rates: Rates, base: float, scaling: Values, context: int) -> Rope:
    """Return rotary frequencies that are scaled; raises UnsupportedModel for numbers that give none."""
    try:
        default = None if kind == "llama3" else context
        original = whole(scaling, ORIGINAL, default, least=2, most=MAX_CONTEXT)
        with np.errstate(all="ignore"):
            found: Rope = KINDS[kind](rates, base, scaling, original, context)
    except BrokenModel as error:
        raise UnsupportedModel(f"`rope_scaling` cannot be used: {error.message}") from None
    except (ValueError, ZeroDivisionError, OverflowError) as error:  # from numbers that do not go together
        raise UnsupportedModel(f"`rope_scaling` of `{scaling.path}` is wrong: {error}") from None
    if not np.isfinite(found.frequencies).all() or not math.isfinite(found.scale):
        raise UnsupportedModel(f"`rope_scaling` of `{scaling.path}` gives no finite positions")
    return found


def _inner(config: Mapping[str, Any]) -> Any:
    """Return the original context that the object for scaling gives, None for none."""
    return (config.get("rope_scaling") or config.get("rope_parameters") or {}).get(ORIGINAL)


def scaling_of(config: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the values on rotary positions, which newer configs keep in an object of their own.

    Raises UnsupportedModel if a value is given twice, differently: libraries disagree on which one holds.
    """
    given = [key for key in ("rope_scaling", "rope_parameters") if config.get(key) not in (None, {})]
    for key in given:
        if not isinstance(config[key], Mapping):
            raise UnsupportedModel(f"`{key}` of `{path}` is no object")
    if len(given) == 2 and config[given[0]] != config[given[1]]:
        raise UnsupportedModel(f"`rope_scaling` and `rope_parameters` of `{path}` differ")
    scaling: Mapping[str, Any] = config[given[0]] if given else {}
    for key, found in scaling.items():
        if isinstance(found, Mapping):
            raise UnsupportedModel(f"`{given[0]}` of `{path}` differs by layer (`{printable(key)}`)")
        if key in OUTER and None not in (found, config.get(key)) and config[key] != found:
            raise UnsupportedModel(f"`{key}` of `{path}` is given twice, and `{given[0]}` has another")
    return {**scaling, **{key: config[key] for key in OUTER if config.get(key) is not None}}


def _kind(scaling: Mapping[str, Any], path: str, family: str) -> str | None:
    """Return the kind of scaling as KINDS has it, None for none."""
    kinds = [scaling[key] for key in ("rope_type", "type") if scaling.get(key) is not None]
    unused = sorted(scaling.keys() - {*OUTER, "rope_type", "type"})
    if not kinds and unused:
        raise UnsupportedModel(f"`rope_scaling` of `{path}` has `{printable(unused[0])}` and no `rope_type`")
    if all(kind in ("none", "default") for kind in kinds):
        return None
    names = PHI3_NAMES if family == "phi3" else {name: name for name in KINDS}
    if not isinstance(kinds[0], str) or kinds[0] not in names or kinds[-1] != kinds[0]:
        shown = "` and `".join(printable(str(kind)) for kind in kinds)
        raise UnsupportedModel(f"`{path}` uses the RoPE scaling `{shown}`, which cannot be imported yet")
    return names[kinds[0]]


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
    stretched = np.clip((np.arange(len(rates)) - first) / (last - first or 0.001), 0.0, 1.0)
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
    scale = number(scaling, "attention_factor", 0.0)
    if not scale:
        given = scaling.value(ORIGINAL) is not None
        factor = context / original if given else number(scaling, "factor", least=1e-6)
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope((rates / short).astype(np.float32), scale, min(original, context))


def _factors(scaling: Values, key: str, count: int) -> Rates:
    """Return a list of `count` positive numbers."""
    found = scaling.value(key)
    fitting = isinstance(found, list) and len(found) == count
    if not fitting or not all(type(each) in (int, float) and 0 < each < LARGEST for each in found):
        raise BrokenModel(f"`{key}` of `{scaling.path}` is not {count} numbers above 0", "Download it again")
    return np.asarray(found, np.float64)


KINDS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
PHI3_NAMES = dict.fromkeys(("longrope", "su", "yarn"), "longrope")  # the last two are older names there
