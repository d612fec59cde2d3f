"""The training of a head from start to end, on texts that its target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from localspec.drafting.build_step import TargetText
from localspec.formats.heads.layout import Head
from localspec.formats.heads.torch_head import TorchHead
from localspec.formats.huggingface import torch_devices
from localspec.training.features import Features
from localspec.training.heads import Acceptance, HeadLearner
from localspec.training.loop import Listener, TrainingPlan, train
from localspec.training.new_head import first_weights, head_of, likely_tokens, shape_for

ROOM = 0.4  # share of the free memory that the target's hidden states may take
# Texts of a step, and the learning rate: a processor takes few steps, so they must be long.
BATCHES = {"cuda": (32, 5e-4), "cpu": (4, 1e-3)}


@dataclass(frozen=True)
class HeadPlan:
    """How a head is trained: for `seconds` or `steps`, to guess `depth` tokens in a row out of `kept`.

    `inner` is the width of its MLP, 0 for the target's; a `deep` one reads the last layer alone. `loss` is
    TV or CE. `rate` is the learning rate, `batch` the texts of a step; of both 0 is what suits the device.
    """

    seconds: float
    depth: int = 3
    kept: int = 32768
    inner: int = 0
    deep: bool = False
    loss: str = "tv"
    rate: float = 0.0
    batch: int = 0
    seed: int = 0
    warm: float = 0.6
    steps: int = 1 << 40

    def training(self, device: Any) -> TrainingPlan:
        """Return the plan of the loop on a torch device."""
        batch, rate = BATCHES["cuda" if device.type == "cuda" else "cpu"]
        return TrainingPlan(
            seconds=self.seconds,
            rate=self.rate or rate,
            batch=self.batch or batch,
            warm=self.warm,
            seed=self.seed,
            steps=self.steps,
        )


def train_head(
    path: Path,
    model: Any,
    texts: Sequence[TargetText],
    held_out: Sequence[TargetText],
    special: Sequence[int],
    plan: HeadPlan,
    checkpoint: Path,
    listener: Listener,
) -> tuple[Head, Acceptance]:
    """Return a head for the target in `path`, loaded as `model`, and its acceptance on `held_out` texts.

    `special` are tokens that it must be able to guess. A killed training resumes from the file `checkpoint`.
    What is noted in the head is what the training found. Raises UnsupportedModel for a target whose layers
    or scales are not supported, and torch's OutOfMemoryError.
    """
    began = monotonic()
    shape = shape_for(path, model, kept=plan.kept, inner=plan.inner, deep=plan.deep)
    tokens = likely_tokens(texts, special, shape.vocab, shape.kept)
    weights = first_weights(shape, tokens, model, plan.seed)
    count = sum(value.numel() for value in weights.values())
    read = ", ".join(map(str, shape.taps))
    listener.say(f"Training {count / 1e6:.1f} M weights, which read the target after the layers {read}")
    features = Features(model, shape.taps, int(ROOM * torch_devices.free_memory(model.device)))
    head = TorchHead(shape, weights, model.get_input_embeddings().weight)
    learner = HeadLearner(head, tokens, features, held_out, depth=plan.depth, loss=plan.loss, warm=plan.warm)
    try:
        result = train(learner, texts, plan.training(model.device), checkpoint, listener)
        accepted, sampled = learner.acceptance(held_out), learner.sampled(held_out)
    finally:
        features.close()
    card = {
        "acceptance": [round(rate, 4) for rate in accepted.rates],
        "guesses": round(accepted.guesses, 4),
        "sampled_guesses": round(sampled, 4),
        "before": round(result.before, 4),
        "depth": plan.depth,
        "loss": plan.loss,
        "steps": result.steps,
        "texts": len(texts),
        "seconds": round(monotonic() - began),
        "device": str(model.device),
    }
    return head_of(shape, tokens, weights, card), accepted
