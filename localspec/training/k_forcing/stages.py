"""The training of hints from start to end: first 2 tokens a pass, then twice as many, up to k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from localspec.disk import atomic
from localspec.drafting.build_step import TargetText
from localspec.errors import BadValue, UnsupportedModel
from localspec.formats.huggingface.adapters import first_adapters, linear_layers
from localspec.formats.k_forcing.layout import MOST, HintShape, StoredHints
from localspec.formats.k_forcing.torch_hints import TorchHints
from localspec.training.k_forcing.learner import KForcingLearner
from localspec.training.loop import Listener, TrainingPlan, train

SPREAD = 0.02  # standard deviation of first weights
# Texts of a step, places in each that are learned, and the learning rate.
BATCHES = {"cuda": (64, 16, 1e-3), "cpu": (4, 8, 2e-3)}


@dataclass(frozen=True)
class KForcingPlan:
    """How hints are trained: for `seconds` or `steps` in all, to give `k` tokens a pass, a power of two.

    `rank` is that of their adapters, `inner` the width inside their noise encoder, 0 for half the target's.
    `rate` is the learning rate, `batch` the texts of a step; of both 0 is what suits the device.
    """

    seconds: float
    k: int = 4
    rank: int = 8
    inner: int = 0
    rate: float = 0.0
    batch: int = 0
    seed: int = 0
    steps: int = 1 << 40

    def __post_init__(self) -> None:
        if self.k not in STAGES:
            raise BadValue(
                f"`k` is {self.k}", f"Hints learn {', '.join(map(str, STAGES[:-1]))} or {MOST} tokens a pass"
            )

    def groups(self, device: Any) -> int:
        """Return in how many places of a text tokens are learned at a time."""
        return BATCHES["cuda" if device.type == "cuda" else "cpu"][1]

    @property
    def stages(self) -> list[int]:
        """The tokens a pass of each stage: 2, 4 ... k."""
        return [stage for stage in STAGES if stage <= self.k]

    def training(self, device: Any) -> TrainingPlan:
        """Return the plan of one stage's loop on a torch device."""
        batch, _, rate = BATCHES["cuda" if device.type == "cuda" else "cpu"]
        count = len(self.stages)
        return TrainingPlan(
            seconds=self.seconds / count,
            rate=self.rate or rate,
            batch=self.batch or batch,
            warm=0.0,
            seed=self.seed,
            steps=max(self.steps // count, 1),
        )


STAGES = [2**power for power in range(1, MOST.bit_length())]


def train_hints(
    model: Any,
    texts: Sequence[TargetText],
    held_out: Sequence[TargetText],
    plan: KForcingPlan,
    folder: Path,
    listener: Listener,
) -> StoredHints:
    """Return hints for the frozen target `model`, trained by self-forcing in stages of 2, 4 ... k tokens.

    A killed training resumes from its files in `folder`. Its card tells what the training found on
    `held_out` texts. Raises UnsupportedModel for a family whose layers cannot be adapted, and torch's
    OutOfMemoryError.
    """
    began = monotonic()
    shape = shape_for(model, plan)
    weights = first_weights(shape, model, plan.seed)
    count = sum(value.numel() for value in weights.values())
    listener.say(f"Training {count / 1e6:.1f} M weights of hints")
    teacher, steps = None, 0
    for stage in plan.stages:
        hints = TorchHints(shape, weights, model)
        learner = KForcingLearner(
            hints, teacher, held_out, k=stage, groups=plan.groups(model.device), seed=plan.seed
        )
        done = folder / f"hints-{stage}.pt"
        if (known := _load(weights, done)) is None:
            listener.say(f"Learning {stage} tokens a pass")
            checkpoint = folder / f"stage-{stage}.pt"
            known = train(learner, texts, plan.training(model.device), checkpoint, listener).steps
            _save(weights, known, done)
        steps += known
        teacher = TorchHints(shape, {name: value.detach().clone() for name, value in weights.items()}, model)
    card = _found_on(learner, held_out) | {
        "k": plan.k,
        "steps": steps,
        "texts": len(texts),
        "seconds": round(monotonic() - began),
        "device": str(model.device),
    }
    return StoredHints(
        shape, {name: value.detach().float().cpu().numpy() for name, value in weights.items()}, card
    )


def _found_on(learner: KForcingLearner, held_out: Sequence[TargetText]) -> dict[str, Any]:
    """Return what a card tells about hints on held-out texts."""
    own, hinted = learner.perplexity(held_out)
    return {
        "agreement": [round(rate, 4) for rate in learner.agreement(held_out, 1.0)],
        "greedy_agreement": [round(rate, 4) for rate in learner.agreement(held_out, 0.0)],
        "perplexity": [round(own, 3), round(hinted, 3)],
    }


def shape_for(model: Any, plan: KForcingPlan) -> HintShape:
    """Return the shape of hints for a target; raises UnsupportedModel where they cannot be trained."""
    linear_layers(model)
    if model.device.type == "mps":
        raise UnsupportedModel("Hints learn in float64, which this GPU does not have", "Give `--device cpu`")
    vocab, width = model.get_input_embeddings().weight.shape
    if getattr(model.config, "_attn_implementation", "") != "sdpa":
        raise UnsupportedModel("This model takes no attention mask of hints", "Train a head of another kind")
    return HintShape(
        k=plan.k,
        width=width,
        layers=len(model.base_model.layers),
        vocab=vocab,
        rank=plan.rank,
        inner=plan.inner or width // 2,
    )


def first_weights(shape: HintShape, model: Any, seed: int) -> dict[str, Any]:
    """Return the first weights of hints in float32, on the device of their target.

    A hint begins as the mean of all embeddings, a little noise, and no adapter.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    embedding = model.get_input_embeddings().weight.float().cpu()
    scale = float(embedding.std())

    def normal(*size: int) -> Any:
        return torch.randn(*size, generator=generator)

    found = {name: normal(*size) * SPREAD for name, size in shape.encoder().items()}
    found["places"] = embedding.mean(0) + normal(shape.k - 1, shape.width) * scale
    found["encoder.first"] *= scale / SPREAD
    found["encoder.outer"].zero_()
    found |= first_adapters(model, shape.rank, generator)
    return {name: value.to(model.device).requires_grad_(True) for name, value in found.items()}


def _save(weights: dict[str, Any], steps: int, file: Path) -> None:
    import torch

    with atomic.file(file) as out:
        torch.save(
            {"weights": {name: value.detach().cpu() for name, value in weights.items()}, "steps": steps}, out
        )


def _load(weights: dict[str, Any], file: Path) -> int | None:
    """Load the weights of a stage that is done, and return its steps; None if it is not."""
    import torch

    if not file.is_file():
        return None
    state = torch.load(file, map_location="cpu", weights_only=True)
    with torch.no_grad():
        for name, value in state["weights"].items():
            weights[name].copy_(value)
    return int(state["steps"])
