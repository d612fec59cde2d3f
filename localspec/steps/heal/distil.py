"""Distillation: a draft learns to guess what its target writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from localspec.drafting.build_step import TargetText
from localspec.training.loop import Listener, TrainingPlan, TrainingResult, autocast, train
from localspec.training.losses import end_to_end, overlap, top_cross_entropy
from localspec.training.texts import TextBatch, batch_of

EVAL_BATCH = 8  # texts


def distil(
    teacher: Any,
    draft: Any,
    texts: Sequence[TargetText],
    held_out: Sequence[TargetText],
    plan: TrainingPlan,
    checkpoint: Path,
    listener: Listener,
) -> TrainingResult:
    """Train the parameters of `draft` that require gradients on `texts` of the `teacher`.

    It ends with the best acceptance rate on `held_out`, which is never lower than before. A killed training
    resumes from the file `checkpoint`. Raises TooLittleMemory if not even one text fits.
    """
    draft.train()
    result = train(_Student(teacher, draft, held_out, plan), texts, plan, checkpoint, listener)
    draft.eval()
    return result


def acceptance(model: Any, texts: Sequence[TargetText]) -> float:
    """Return the share of answer tokens that are the model's likeliest ones after the text before."""
    import torch

    hits = count = 0
    with torch.inference_mode(), autocast(model.device):
        for at in range(0, len(texts), EVAL_BATCH):
            batch = batch_of(texts[at : at + EVAL_BATCH], model.device)
            likeliest = _logits(model, batch)[:, :-1].argmax(-1)
            hit = (likeliest == batch.tokens[:, 1:]) & batch.counted
            hits, count = hits + int(hit.sum()), count + int(batch.counted.sum())
    return hits / max(count, 1)


def _logits(model: Any, batch: TextBatch) -> Any:
    return model(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False).logits


class _Student:
    """A draft that learns from its teacher."""

    def __init__(self, teacher: Any, draft: Any, held_out: Sequence[TargetText], plan: TrainingPlan) -> None:
        self._teacher, self._draft, self._held_out, self._plan = teacher, draft, held_out, plan

    @property
    def parameters(self) -> dict[str, Any]:
        return {name: value for name, value in self._draft.named_parameters() if value.requires_grad}

    def score(self) -> float:
        self._draft.eval()
        rate = acceptance(self._draft, self._held_out)
        self._draft.train()
        return rate

    def found(self, score: float, before: float) -> str:
        return f"Acceptance rate {score:.1%}, {before:.1%} before training"

    def loss(self, texts: Sequence[TargetText], progress: float) -> Any:
        import torch

        batch = batch_of(texts, self._draft.device)
        with torch.no_grad(), autocast(self._teacher.device):
            target = _logits(self._teacher, batch)[:, :-1][batch.counted]
        with autocast(self._draft.device):
            draft = _logits(self._draft, batch)[:, :-1][batch.counted]
        vocab = min(target.shape[-1], draft.shape[-1])  # some families pad theirs
        target, draft = target[:, :vocab], draft[:, :vocab]
        if progress < self._plan.warm:
            return top_cross_entropy(target, draft, min(self._plan.top, vocab)).mean()
        accepted = overlap(target, draft)
        rates = torch.zeros(batch.counted.shape, device=accepted.device)
        rates = rates.masked_scatter(batch.counted, accepted)
        return end_to_end(rates, batch.counted, self._plan.draft_length)
