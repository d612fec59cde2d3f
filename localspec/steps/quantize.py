"""Quantize a model's weights with NNCF."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

from localspec.drafting.agreement import estimate_speedup
from localspec.drafting.build_step import Artifact, BuildContext, BuildStep
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.files import copy_configs
from localspec.formats.graph.compress import METHODS, PLAIN, SMOOTH, compress, whole_kinds
from localspec.formats.graph.ir import save
from localspec.formats.graph.paged import read_stateful
from localspec.formats.graph.runner import GraphRunner, median_pass_seconds
from localspec.library.model import GRAPH
from localspec.plugins import Option

AUTO = "auto"
WEIGHTS = "openvino_model.bin"
CALIBRATION_TEXTS = 32


class Quantize(BuildStep):
    """Quantizes weights to 8 or 4 bits with a scale per group of columns; 16 keeps them.

    `auto` takes 4 or 8, whichever has the higher estimated speed-up on the target's own texts: fewer bits are
    fewer bytes to read but more work to unpack, which some processors are slow at. With 4 bits the embedding
    and the head get 8. `rtn` rounds to nearest; `awq` (Lin et al. 2023), `scale` (scale estimation) and
    `gptq` (Frantar et al. 2022) are calibrated on texts of the target, which takes long. `smooth`
    (SmoothQuant, Xiao et al. 2022) quantizes activations to 8 bits too.
    """

    def __init__(
        self,
        context: BuildContext,
        *,
        bits: Annotated[str, Option("bits per weight: 4, 8, 16, or auto for the fastest")] = "4",
        group: Annotated[int, Option("columns that share a scale, with 4 bits", least=32, most=1024)] = 64,
        ratio: Annotated[float, Option("share of layers in 4 bits, the others get 8", least=0, most=1)] = 1.0,
        method: Annotated[str, Option("the quantization method", choices=(*METHODS, SMOOTH))] = PLAIN,
        zero: Annotated[bool, Option("a zero point per group: more exact, a little slower")] = False,
    ) -> None:
        if bits not in (AUTO, "4", "8", "16"):
            raise BadValue(f"`bits` of `quantize` is {bits}", f"It takes 4, 8, 16 or `{AUTO}`")
        required = 8 if method == SMOOTH else 4
        if method != PLAIN and bits != str(required):
            raise BadValue(f"`method={method}` of `quantize` requires {required} bits", "Leave it out")
        self._context = context
        self._bits = None if bits == AUTO else int(bits)
        self._group, self._ratio = group, ratio
        self._method, self._zero = method, zero

    def run(self, source: Artifact, into: Path) -> Artifact:
        """Write the graph in fewer bits.

        Raises MissingExtra without NNCF, and UnsupportedModel for a graph that has fewer bits already.
        """
        if self._bits is None:
            self._context.write_target_texts()  # before the graphs take memory
        model = read_stateful(source.folder / GRAPH)
        if whole_kinds(model):
            return self._kept(source, into)
        bits = self._bits or self._choose_bits(model, source.folder.name)
        if bits < 16:
            model = self._quantized(model, bits)
        if bits == 4 and not whole_kinds(model) & {"i4", "u4"}:
            bits = 8
            self._context.say("The weights get 8 bits: no groups of columns divide the rows of this model")
        save(model, into)
        copy_configs(source.folder, into)
        precision = f"INT{bits}" if bits < 16 else "FP16"
        return Artifact(into, source.facts | {"bits": bits, "precision": precision})

    def _kept(self, source: Artifact, into: Path) -> Artifact:
        """Return the source as it is, if the bits are ours to choose: only a graph is there, in few bits."""
        if self._bits is not None:
            raise UnsupportedModel(
                f"The weights are compressed already, and cannot be quantized to {self._bits} bits",
                "Give the model's own GGUF file or safetensors, or leave the bits as they are",
            )
        self._context.say("The weights are compressed already: they stay as they are")
        for name in (GRAPH, WEIGHTS):
            shutil.copyfile(source.folder / name, into / name)
        copy_configs(source.folder, into)
        return Artifact(into, source.facts)

    def _choose_bits(self, model: Any, name: str) -> int:
        """Return 8 or 4, whichever is faster. The candidates are not kept, because they take much memory."""
        runners = {bits: GraphRunner(self._quantized(model.clone(), bits)) for bits in (8, 4)}
        costs = self._context.measured_once(name, lambda: median_pass_seconds(*runners.values()))
        speedups = {}
        for (bits, runner), seconds in zip(runners.items(), costs, strict=True):
            estimate, share = estimate_speedup(self._context, runner.logits, seconds)
            self._context.say(
                f"{bits} bits: {share:.0%} agreement, {estimate.speedup:.2f} times as fast"
                f" at draft length {estimate.draft_length}"
            )
            speedups[bits] = estimate.speedup
        return max(speedups, key=lambda bits: speedups[bits])

    def _quantized(self, model: Any, bits: int) -> Any:
        texts = [] if self._method == PLAIN else self._context.target_texts()[:CALIBRATION_TEXTS]
        with self._context.step(f"Quantizing weights to {bits} bits"):
            return compress(
                model,
                bits,
                group=self._group,
                ratio=self._ratio,
                method=self._method,
                zero=self._zero,
                texts=texts,
            )
