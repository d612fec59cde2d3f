"""Weights are rounded to fewer bits, by NNCF."""

from __future__ import annotations

import logging
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

from localspec.core.contracts import Artifact, Site, Step
from localspec.errors import BadValue, MissingExtra
from localspec.formats.files import copy_beside
from localspec.formats.ir import save
from localspec.formats.paged import read_stateful
from localspec.formats.reading import inputs
from localspec.library.model import GRAPH
from localspec.plugins import Option

PLAIN = "rtn"
METHODS = {"awq": {"awq": True}, "scale": {"scale_estimation": True}, "gptq": {"gptq": True}, PLAIN: {}}
SHOWN = 32  # texts of the target that a method looks at


class Quantize(Step):
    """Rounds weights to 8 or 4 bits with a scale for each group of columns; 16 leaves them as they are.

    Of four bits embedding and head take eight. `rtn` rounds to the nearest step; `awq` (Lin et al. 2023),
    `scale` (scale estimation) and `gptq` (Frantar et al. 2022) look at texts of the target, and take long.
    """

    def __init__(
        self,
        site: Site,
        *,
        bits: Annotated[int, Option("bits of a weight: 4, 8 or 16", least=4, most=16)] = 4,
        group: Annotated[int, Option("columns that share a scale, of 4 bits", least=32, most=1024)] = 64,
        ratio: Annotated[float, Option("share of layers in 4 bits, the others in 8", least=0, most=1)] = 1.0,
        method: Annotated[str, Option("how it rounds", choices=tuple(METHODS))] = PLAIN,
        zero: Annotated[bool, Option("a zero point a group: closer, and a little slower")] = False,
    ) -> None:
        if bits not in (4, 8, 16):
            raise BadValue(f"`bits` of `quantize` is {bits}", "It takes 4, 8 or 16")
        if bits != 4 and method != PLAIN:
            raise BadValue(f"`method={method}` of `quantize` is for 4 bits", "Leave it out")
        self._site = site
        self._bits, self._group, self._ratio = bits, group, ratio
        self._method, self._zero = method, zero

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph in fewer bits; raises MissingExtra without NNCF."""
        model = read_stateful(source.folder / GRAPH)
        if self._bits < 16:
            self._site.step(f"Rounding weights to {self._bits} bits")
            model = self._compressed(model)
        save(model, into)
        copy_beside(source.folder, into)
        shown = f"INT{self._bits}" if self._bits < 16 else "FP16"
        return Artifact(into, source.facts | {"bits": self._bits, "precision": shown})

    def _compressed(self, model: Any) -> Any:
        try:
            import nncf
        except ImportError:
            raise MissingExtra("nncf", "quant") from None
        kind = "ASYM" if self._zero else "SYM"
        asked: dict[str, Any] = {"mode": nncf.CompressWeightsMode[f"INT{self._bits}_{kind}"]}
        if self._bits == 4:
            asked |= {"group_size": self._group, "ratio": self._ratio} | METHODS[self._method]
        if self._method != PLAIN:
            asked["dataset"] = nncf.Dataset(self._inputs(model))
        nncf.set_log_level(logging.ERROR)
        with redirect_stdout(StringIO()):  # its tables and bars
            return nncf.compress_weights(model, **asked)

    def _inputs(self, model: Any) -> list[dict[str, Any]]:
        """Return texts of the target as inputs of the graph."""
        names = {port.any_name for port in model.inputs}
        return [inputs(names, [*text.prompt, *text.answer]) for text in self._site.texts()[:SHOWN]]
