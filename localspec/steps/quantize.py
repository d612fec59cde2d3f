"""Weights are rounded to fewer bits, by NNCF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from localspec.core.contracts import Artifact, Site, Step
from localspec.errors import BadValue
from localspec.formats.compressing import METHODS, PLAIN, SMOOTH, compress
from localspec.formats.files import copy_beside
from localspec.formats.ir import save
from localspec.formats.paged import read_stateful
from localspec.library.model import GRAPH
from localspec.plugins import Option

SHOWN = 32  # texts of the target that a method looks at


class Quantize(Step):
    """Rounds weights to 8 or 4 bits with a scale for each group of columns; 16 leaves them as they are.

    Of four bits embedding and head take eight. `rtn` rounds to the nearest step; `awq` (Lin et al. 2023),
    `scale` (scale estimation) and `gptq` (Frantar et al. 2022) look at texts of the target, and take long.
    `smooth` (SmoothQuant, Xiao et al. 2022) rounds activations to 8 bits too.
    """

    def __init__(
        self,
        site: Site,
        *,
        bits: Annotated[int, Option("bits of a weight: 4, 8 or 16", least=4, most=16)] = 4,
        group: Annotated[int, Option("columns that share a scale, of 4 bits", least=32, most=1024)] = 64,
        ratio: Annotated[float, Option("share of layers in 4 bits, the others in 8", least=0, most=1)] = 1.0,
        method: Annotated[str, Option("how it rounds", choices=(*METHODS, SMOOTH))] = PLAIN,
        zero: Annotated[bool, Option("a zero point a group: closer, and a little slower")] = False,
    ) -> None:
        if bits not in (4, 8, 16):
            raise BadValue(f"`bits` of `quantize` is {bits}", "It takes 4, 8 or 16")
        wanted = 8 if method == SMOOTH else 4
        if method != PLAIN and bits != wanted:
            raise BadValue(f"`method={method}` of `quantize` is for {wanted} bits", "Leave it out")
        self._site = site
        self._bits, self._group, self._ratio = bits, group, ratio
        self._method, self._zero = method, zero

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph in fewer bits; raises MissingExtra without NNCF."""
        model = read_stateful(source.folder / GRAPH)
        if self._bits < 16:
            self._site.step(f"Rounding weights to {self._bits} bits")
            model = compress(
                model,
                self._bits,
                group=self._group,
                ratio=self._ratio,
                method=self._method,
                zero=self._zero,
                texts=[] if self._method == PLAIN else self._site.texts()[:SHOWN],
            )
        save(model, into)
        copy_beside(source.folder, into)
        shown = f"INT{self._bits}" if self._bits < 16 else "FP16"
        return Artifact(into, source.facts | {"bits": self._bits, "precision": shown})
