"""Quantize the weights of an OpenVINO graph with NNCF."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from localspec.drafting.build_step import TargetText
from localspec.errors import MissingExtra
from localspec.formats.graph.runner import graph_inputs

PLAIN = "rtn"
SMOOTH = "smooth"
METHODS = {"awq": {"awq": True}, "scale": {"scale_estimation": True}, "gptq": {"gptq": True}, PLAIN: {}}
LARGE = 4096  # values of a constant that is no table of shapes
WHOLE_ROW = -1  # a group size: one scale per row, as NPUs require


def whole_kinds(model: Any) -> set[str]:
    """Return in which types of whole numbers an openvino.Model stores matrices: NNCF leaves those."""
    constants = (node for node in model.get_ops() if node.get_type_name() == "Constant")
    large = (node for node in constants if math.prod(node.get_output_shape(0)) >= LARGE)
    kinds = {node.get_output_element_type(0).get_type_name() for node in large}
    return kinds & {"i4", "u4", "i8", "u8"}


def compress(
    model: Any,
    bits: int,
    *,
    group: int = 64,
    ratio: float = 1.0,
    method: str = PLAIN,
    zero: bool = False,
    texts: Sequence[TargetText] = (),
) -> Any:
    """Return `model` with 8-bit or 4-bit weights.

    With 4 bits `group` columns share a scale, fewer where that does not divide a row, and with `zero` a zero
    point; `ratio` is the share of layers in
    4 bits, the others get 8, as do the embedding and the head unless `group` is WHOLE_ROW. A `method` other
    than PLAIN is calibrated on `texts`; SMOOTH (SmoothQuant, Xiao et al. 2022) quantizes activations to 8
    bits too. Raises MissingExtra without NNCF.
    """
    try:
        import nncf
    except ImportError:
        raise MissingExtra("nncf", "quant") from None
    options: dict[str, Any] = {"mode": nncf.CompressWeightsMode[f"INT{bits}_{'ASYM' if zero else 'SYM'}"]}
    if bits == 4:
        fallback = nncf.GroupSizeFallbackMode.ADJUST  # to fewer columns, else to 8 bits
        options |= {"group_size": group, "ratio": ratio} | METHODS[method]
        options["advanced_parameters"] = nncf.AdvancedCompressionParameters(group_size_fallback_mode=fallback)
    dataset = None
    if method != PLAIN:
        names = {port.any_name for port in model.inputs}
        dataset = nncf.Dataset([graph_inputs(names, [*text.prompt, *text.answer]) for text in texts])
    nncf.set_log_level(logging.ERROR)
    with redirect_stdout(StringIO()):  # NNCF prints tables and progress bars
        if method == SMOOTH:
            kind = nncf.ModelType.TRANSFORMER
            return nncf.quantize(model, dataset, model_type=kind, subset_size=max(len(texts), 1))
        return nncf.compress_weights(model, dataset=dataset, **options)
