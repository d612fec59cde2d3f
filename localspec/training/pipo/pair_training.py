"""The training of PIPO from start to end, on texts that its target wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from localspec.drafting.build_step import TargetText
from localspec.formats.huggingface.adapters import first_adapters
from localspec.formats.pipo.layout import HEAD, LM_HEAD, PairShape, StoredPairs
from localspec.formats.pipo.torch_pairs import TorchPairs
from localspec.training import new_head
from localspec.training.loop import Listener, TrainingPlan, train
from localspec.training.pipo.learner import SUPERVISED, PairLearner

BATCHES = {"cuda": (64, 1e-3), "cpu": (4, 1e-3)}  # texts of a step, and the learning rate
SPREAD = 0.02  # standard deviation of first weights
CHECKPOINT = "pipo.pt"


@dataclass(frozen=True)
class PipoPlan:
    """How a model learns to read pairs: for `seconds` or `steps`, with adapters of some `rank`.

    `supervised` is the share of the training on the target's texts. `rate` is the learning rate, `batch` the
    texts of a step; of both 0 is what suits the device.
    """

    seconds: float
    rank: int = 32
    supervised: float = SUPERVISED
    rate: float = 0.0
    batch: int = 0
    seed: int = 0
    steps: int = 1 << 40

    def training(self, device: Any) -> TrainingPlan:
        """Return the plan of the loop on a torch device."""
        batch, rate = BATCHES["cuda" if device.type == "cuda" else "cpu"]
        return TrainingPlan(
            seconds=self.seconds,
            rate=self.rate or rate,
            batch=self.batch or batch,
            warm=self.supervised,
            seed=self.seed,
            steps=self.steps,
        )


def train_pairs(
    path: Path,
    model: Any,
    texts: Sequence[TargetText],
    held_out: Sequence[TargetText],
    plan: PipoPlan,
    folder: Path,
    listener: Listener,
) -> StoredPairs:
    """Return PIPO's weights for the frozen target in `path`, loaded as `model`.

    A killed training resumes from its checkpoint in `folder`. The card tells what it found on `held_out`
    texts. Raises UnsupportedModel for a family that cannot be trained, and torch's OutOfMemoryError.
    """
    began = monotonic()
    shape = shape_for(path, model, plan.rank)
    weights = first_weights(shape, model, plan.seed)
    count = sum(value.numel() for value in weights.values())
    listener.say(f"Training {count / 1e6:.1f} M weights of PIPO")
    pairs = TorchPairs(shape, weights, model)
    learner = PairLearner(pairs, texts, held_out, seed=plan.seed, supervised=plan.supervised)
    done = train(learner, texts, plan.training(model.device), folder / CHECKPOINT, listener)
    learner.score()  # of the best weights
    card = {
        "agreement": [round(rate, 4) for rate in learner.agreement],
        "levels": [[round(value, 4) for value in level] for level in learner.levels],
        "steps": done.steps,
        "texts": len(texts),
        "seconds": round(monotonic() - began),
        "device": str(model.device),
    }
    tensors = {name: value.detach().float().cpu().numpy() for name, value in weights.items()}
    return StoredPairs(shape, tensors, card)


def shape_for(path: Path, model: Any, rank: int) -> PairShape:
    """Return the shape of PIPO for the target in `path`, loaded as `model`; raises UnsupportedModel."""
    vocab = len(model.get_output_embeddings().weight)
    head = new_head.shape_for(path, model, kept=vocab, deep=True)
    layers = len(model.base_model.layers)
    return PairShape(replace(head, tapped_width=2 * head.width), layers, rank)


def first_weights(shape: PairShape, model: Any, seed: int) -> dict[str, Any]:
    """Return first weights in float32, on the device of the target.

    A latent begins as the mean of two embeddings, exactly: silu(x) - silu(-x) = x. The head begins as the
    target's last layer over the sum of the token and the state, and the adapters add nothing.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    width, one = shape.width, torch.eye(shape.width)
    head = new_head.first_weights(shape.head, np.arange(shape.head.vocab), model, seed)
    found = {f"{HEAD}{name}": value.detach().cpu() for name, value in head.items() if name != LM_HEAD}
    found[f"{HEAD}fc.weight"] = torch.cat([one, one], 1)
    mean = torch.cat([one, one], 1) / 2
    found["compressor.first"] = torch.cat([mean, -mean])
    found["compressor.second"] = torch.cat([one, -one], 1)
    table = model.get_input_embeddings().weight.float().cpu()
    found["pad"] = table.mean(0)
    found["start"] = torch.randn(width, generator=generator)
    found |= {"norms.token": torch.ones(width), "norms.state": torch.ones(width)}
    found |= {"confidence.norm": torch.ones(2 * width), "confidence.bias": torch.zeros(1)}
    found["confidence.first"] = torch.randn(width, 2 * width, generator=generator) * SPREAD
    found["confidence.second"] = torch.zeros(1, width)
    found |= first_adapters(model, shape.rank, generator)
    return {
        name: value.to(model.device).detach().clone().requires_grad_(True) for name, value in found.items()
    }
