"""Block-diffusion language models (SDAR, LLaDA, Dream) with PyTorch, on a CPU or a CUDA GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from localspec.core.contracts import Engine
from localspec.engines.diffusion.own import OwnDiffusionSession, own_decoder
from localspec.engines.diffusion.session import DiffusionSession
from localspec.errors import BadValue
from localspec.formats.diffusion import config, weights
from localspec.formats.diffusion.decoder import BlockDecoder
from localspec.formats.huggingface.loading import check_extra
from localspec.formats.huggingface.torch_devices import find_device, memory_errors, natural_dtype
from localspec.formats.model_file import count_parameters
from localspec.plugins import Option


class Diffusion(Engine):
    """Runs a block-diffusion language model (SDAR, LLaDA, Dream) with PyTorch, block by block.

    SDAR keeps the keys of earlier blocks. LLaDA and Dream were trained with attention in both directions, so
    each pass reads the whole text; blocks are filled in one after another, with `ahead` masks behind. No code
    of a model is run. It computes in float32 on a CPU, in bfloat16 or float16 elsewhere. A CUDA card records
    the passes of models that keep keys.
    """

    forms = ("safetensors",)

    def __init__(
        self,
        model: Path,
        cache: Path | None = None,
        *,
        device: Annotated[str, Option("auto, cpu, cuda, cuda:1 or mps")] = "auto",
        precision: Annotated[str, Option("arithmetic", choices=("auto", "f32", "bf16", "f16"))] = "auto",
        threads: Annotated[int, Option("CPU threads, 0 for PyTorch's choice", least=0, most=1024)] = 0,
        block: Annotated[int, Option("tokens of a block, 0 for the model's", least=0, most=4096)] = 0,
        ahead: Annotated[int, Option("masks behind a block, where all tokens see all", least=0)] = 0,
    ) -> None:
        del cache
        check_extra()
        shape = config.read(model)
        weights.check(model, shape)
        self.shape = replace(shape, block=_block(model, shape, block))
        if ahead and shape.causal:
            raise BadValue(
                f"`ahead` does nothing for `{model.name}`, whose blocks see no later ones", "Leave it out"
            )
        import torch

        self.device, self.place = find_device(device)
        dtypes = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
        self.dtype = natural_dtype(self.place) if precision == "auto" else dtypes[precision]
        self.threads, self.ahead = threads, ahead
        self.vocab, self.context = shape.vocab, shape.context
        with memory_errors(self.place, model.name), torch.inference_mode():
            found = dict(weights.tensors(model, shape, self.place, self.dtype))
            recorded = self.place.type == "cuda" and shape.causal
            self.own = own_decoder(shape, found, threads) if recorded else None
            self.decoder = BlockDecoder(self.shape, found)

    @classmethod
    def weighs(cls, path: Path, **options: Any) -> int:
        """Return the bytes of all weights at the precision they will have."""
        halved = not str(options.get("device", "auto")).startswith(("cpu", "auto"))
        precision = options.get("precision", "auto")
        half = precision in ("bf16", "f16") or (precision == "auto" and halved)
        return count_parameters(path) * (2 if half else 4)

    def session(self) -> DiffusionSession:
        """Return a new, empty session."""
        if self.own:
            return OwnDiffusionSession(self.own, self.decoder, self.place, self.dtype)
        return DiffusionSession(self.decoder, self.place, self.dtype, self.threads, self.ahead)


def _block(model: Path, shape: config.DiffusionShape, wanted: int) -> int:
    """Return the length of a block; raises BadValue for one that the model was not trained for."""
    if wanted and shape.causal and wanted != shape.block:
        raise BadValue(
            f"`{model.name}` was trained with blocks of {shape.block} tokens, and not of {wanted}",
            "Leave `block` out",
        )
    if wanted > shape.context:
        raise BadValue(
            f"`block` is {wanted}, and a text has {shape.context} tokens at most", "Make it smaller"
        )
    return wanted or shape.block
