"""Weights are rounded to fewer bits, by NNCF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from localspec.drafting.agreement import promise
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep
from localspec.errors import BadValue
from localspec.formats.files import copy_configs
from localspec.formats.graph.compress import METHODS, PLAIN, SMOOTH, compress
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.library.model import GRAPH
from localspec.plugins import Option

AUTO = "auto"
SHOWN = 32  # texts of the target that a method looks at


class Quantize(BuildStep):
    """Rounds weights to 8 or 4 bits with a scale for each group of columns; 16 leaves them as they are.

    `auto` takes 4 or 8, whichever promises the higher speed-up on the target's own texts: fewer bits are
    fewer bytes to read and more work to unpack, which some processors are slow at. Of four bits embedding and
    head take eight. `rtn` rounds to the nearest step; `awq` (Lin et al. 2023), `scale` (scale estimation) and
    `gptq` (Frantar et al. 2022) look at texts of the target, and take long. `smooth` (SmoothQuant, Xiao et
    al. 2022) rounds activations to 8 bits too.
    """

    def __init__(
        self,
        site: BuildContext,
        *,
        bits: Annotated[str, Option("bits of a weight: 4, 8, 16, or auto for what pays most")] = "4",
        group: Annotated[int, Option("columns that share a scale, of 4 bits", least=32, most=1024)] = 64,
        ratio: Annotated[float, Option("share of layers in 4 bits, the others in 8", least=0, most=1)] = 1.0,
        method: Annotated[str, Option("how it rounds", choices=(*METHODS, SMOOTH))] = PLAIN,
        zero: Annotated[bool, Option("a zero point a group: closer, and a little slower")] = False,
    ) -> None:
        if bits not in (AUTO, "4", "8", "16"):
            raise BadValue(f"`bits` of `quantize` is {bits}", f"It takes 4, 8, 16 or `{AUTO}`")
        wanted = 8 if method == SMOOTH else 4
        if method != PLAIN and bits != str(wanted):
            raise BadValue(f"`method={method}` of `quantize` is for {wanted} bits", "Leave it out")
        self._site = site
        self._bits = None if bits == AUTO else int(bits)
        self._group, self._ratio = group, ratio
        self._method, self._zero = method, zero

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph in fewer bits; raises MissingExtra without NNCF."""
        if self._bits is None:
            self._site.texts()  # the target answers before anything else takes memory
        model = read_stateful(source.folder / GRAPH)
        bits = self._bits or self._chosen(model, source.folder.name)
        if bits < 16:
            model = self._rounded(model, bits)
        save(model, into)
        copy_configs(source.folder, into)
        shown = f"INT{bits}" if bits < 16 else "FP16"
        return Artifact(into, source.facts | {"bits": bits, "precision": shown})

    def _chosen(self, model: Any, name: str) -> int:
        """Return 8 or 4, whichever pays more. What is tried is rounded again: it would take much memory."""
        readings = {bits: GraphRunner(self._rounded(model.clone(), bits)) for bits in (8, 4)}
        costs = self._site.once(name, lambda: median_pass_seconds(*readings.values()))
        promised = {}
        for (bits, reading), seconds in zip(readings.items(), costs, strict=True):
            found, share = promise(self._site, reading.logits, seconds)
            self._site.say(
                f"{bits} bits: {share:.0%} agree, {found.speed_up:.2f} times at {found.depth} guesses"
            )
            promised[bits] = found.speed_up
        return max(promised, key=lambda bits: promised[bits])

    def _rounded(self, model: Any, bits: int) -> Any:
        self._site.step(f"Rounding weights to {bits} bits")
        return compress(
            model,
            bits,
            group=self._group,
            ratio=self._ratio,
            method=self._method,
            zero=self._zero,
            texts=[] if self._method == PLAIN else self._site.texts()[:SHOWN],
        )
