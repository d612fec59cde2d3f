"""Weights of an OpenVINO graph are rounded to fewer bits, by NNCF."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from localspec.drafting.build_step import Text
from localspec.errors import MissingExtra
from localspec.formats.graph.runner import inputs

PLAIN = "rtn"
SMOOTH = "smooth"
METHODS = {"awq": {"awq": True}, "scale": {"scale_estimation": True}, "gptq": {"gptq": True}, PLAIN: {}}
WHOLE_ROW = -1  # the group of a weight with one scale a row, as NPUs want it


def compress(
    model: Any,
    bits: int,
    *,
    group: int = 64,
    ratio: float = 1.0,
    method: str = PLAIN,
    zero: bool = False,
    texts: Sequence[Text] = (),
) -> Any:
    """Return `model` with weights of 8 or 4 bits.

    Of 4 bits `group` columns share a scale, and with `zero` an offset; `ratio` is the share of layers in 4
    bits, the others take 8, as embedding and head do unless a group is a WHOLE_ROW. A `method` other than
    PLAIN looks at `texts`; SMOOTH (SmoothQuant, Xiao et al. 2022) rounds activations to 8 bits too. Raises
    MissingExtra without NNCF.
    """
    try:
        import nncf
    except ImportError:
        raise MissingExtra("nncf", "quant") from None
    asked: dict[str, Any] = {"mode": nncf.CompressWeightsMode[f"INT{bits}_{'ASYM' if zero else 'SYM'}"]}
    if bits == 4:
        asked |= {"group_size": group, "ratio": ratio} | METHODS[method]
    dataset = None
    if method != PLAIN:
        names = {port.any_name for port in model.inputs}
        dataset = nncf.Dataset([inputs(names, [*text.prompt, *text.answer]) for text in texts])
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # its tables and bars
        if method == SMOOTH:
            kind = nncf.ModelType.TRANSFORMER
            return nncf.quantize(model, dataset, model_type=kind, subset_size=max(len(texts), 1))
        return nncf.compress_weights(model, dataset=dataset, **asked)
