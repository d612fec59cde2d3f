"""The training loop of distillation, with checkpoints and early stopping."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from localspec.disk import atomic
from localspec.drafting.build_step import TargetText
from localspec.drafting.time_limit import TimeLimit
from localspec.steps.heal.losses import end_to_end, overlap, top_cross_entropy

EVALUATIONS = 20  # over the whole training
PATIENCE = 5  # evaluations without improvement before it stops
WARM_UP, DECAY_FROM = 0.03, 0.7  # shares of the training until the rate is full, and after which it falls
EVAL_BATCH = 8  # texts
STEP = "step"


class Listener(Protocol):
    """Receives the findings of a training, and its progress in seconds."""

    def say(self, line: str) -> None:
        """Show a finding to the user."""

    def advance(self, count: int = 1) -> None:
        """Report that `count` more seconds are over."""


@dataclass(frozen=True)
class TrainingPlan:
    """How a draft is trained: for `seconds` or `steps`, at the learning `rate`, on `batch` texts per step.

    For a share `warm` of the training the loss is the cross-entropy on the target's `top` likeliest tokens,
    then the end-to-end loss at `draft_length`.
    """

    seconds: float
    rate: float
    batch: int = 16
    draft_length: int = 4
    warm: float = 0.3
    top: int = 32
    seed: int = 0
    steps: int = 1 << 40


@dataclass(frozen=True)
class TrainingResult:
    """The acceptance rate before and after training, and the number of steps."""

    before: float
    after: float
    steps: int


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
    return _Trainer(teacher, draft, texts, held_out, plan, checkpoint, listener).run()


def acceptance(model: Any, texts: Sequence[TargetText]) -> float:
    """Return the share of answer tokens that are the model's likeliest ones after the text before."""
    import torch

    hits = count = 0
    with torch.inference_mode(), _autocast(model):
        for at in range(0, len(texts), EVAL_BATCH):
            batch = _batch(texts[at : at + EVAL_BATCH], model.device)
            likeliest = _logits(model, batch)[:, :-1].argmax(-1)
            hit = (likeliest == batch.tokens[:, 1:]) & batch.counted
            hits, count = hits + int(hit.sum()), count + int(batch.counted.sum())
    return hits / max(count, 1)


@dataclass(frozen=True)
class _Batch:
    tokens: Any  # [texts, tokens]
    mask: Any  # [texts, tokens]
    counted: Any  # [texts, tokens - 1]: whether the next token belongs to the answer


def _batch(texts: Sequence[TargetText], device: Any) -> _Batch:
    import torch

    width = max(_length(text) for text in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    mask, counted = torch.zeros_like(tokens), torch.zeros(len(texts), width - 1, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(texts):
        length = len(prompt) + len(answer)
        tokens[row, :length] = torch.tensor([*prompt, *answer])
        mask[row, :length] = 1
        counted[row, len(prompt) - 1 : length - 1] = True
    return _Batch(tokens.to(device), mask.to(device), counted.to(device))


def _length(text: TargetText) -> int:
    return len(text.prompt) + len(text.answer)


def _logits(model: Any, batch: _Batch) -> Any:
    return model(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False).logits


def _autocast(model: Any) -> Any:
    import torch

    kind = model.device.type
    enabled = kind == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=enabled)


class _Trainer:
    """The state of one training, and the best parameters so far."""

    def __init__(
        self,
        teacher: Any,
        draft: Any,
        texts: Sequence[TargetText],
        held_out: Sequence[TargetText],
        plan: TrainingPlan,
        checkpoint: Path,
        listener: Listener,
    ) -> None:
        import torch

        self._teacher, self._draft = teacher, draft
        self._texts, self._held_out = texts, held_out
        self._plan, self._checkpoint, self._listener = plan, checkpoint, listener
        self._parameters = {name: value for name, value in draft.named_parameters() if value.requires_grad}
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=plan.rate, weight_decay=0.0)
        self._seconds, self._steps, self._micro_batch = 0.0, 0, plan.batch
        self._skipped = 0
        self._before, self._best, self._without_improvement = 0.0, 0.0, 0
        self._best_values: dict[str, Any] = {}

    def run(self) -> TrainingResult:
        """Train until the time is over or nothing improves, and load the best parameters into the draft."""
        resumed = self._load_checkpoint()
        limit = TimeLimit(self._plan.seconds, self._seconds)
        if not resumed:
            self._before = self._best = acceptance(self._draft, self._held_out)
            self._best_values = self._copy_parameters()
        batches = self._batches()
        self._draft.train()
        estimate = self._estimate(max(self._texts, key=_length))
        while self._wanted and limit.fits(max(estimate, limit.longest(STEP))):
            with limit.measured(STEP):
                self._step_and_evaluate(next(batches), limit)
        if self._skipped:
            self._listener.say(f"Skipped {self._skipped} steps whose gradients were not finite")
        self._draft.eval()
        self._load_parameters(self._best_values)
        return TrainingResult(self._before, self._best, self._steps)

    @property
    def _wanted(self) -> bool:
        """Whether another step may improve the draft."""
        return self._progress < 1 and self._without_improvement < PATIENCE

    def _estimate(self, text: TargetText) -> float:
        """Return about how many seconds a step takes, from two passes of one text, which change nothing."""
        passes = TimeLimit(self._plan.seconds)
        for _ in range(2):  # the first allocates memory
            began = passes.spent
            self._loss(_batch([text], self._draft.device), warm=True).backward()
            self._optimizer.zero_grad()
        return (passes.spent - began) * self._micro_batch

    def _step_and_evaluate(self, texts: list[TargetText], limit: TimeLimit) -> None:
        """Take a step, and evaluate the draft if the next share of the training is done."""
        evaluations, before = int(self._progress * EVALUATIONS), int(self._seconds)
        self._step(texts)
        self._seconds = limit.spent
        if int(self._progress * EVALUATIONS) > evaluations:
            self._evaluate()
            self._seconds = limit.spent
        self._listener.advance(int(self._seconds) - before)

    @property
    def _progress(self) -> float:
        """The share of the training that is done."""
        return max(self._seconds / self._plan.seconds, self._steps / self._plan.steps)

    def _batches(self) -> Iterator[list[TargetText]]:
        """Yield batches of texts of similar length, in a new order in each epoch."""
        generator = random.Random(self._plan.seed + self._steps)
        while True:
            order = generator.sample(self._texts, len(self._texts))
            chunk = self._micro_batch * 16
            for at in range(0, len(order), chunk):
                texts = sorted(order[at : at + chunk], key=_length)
                starts = list(range(0, len(texts), self._micro_batch))
                generator.shuffle(starts)
                for start in starts:
                    yield texts[start : start + self._micro_batch]

    def _step(self, texts: list[TargetText]) -> None:
        import torch

        progress = self._progress
        for group in self._optimizer.param_groups:
            schedule = min(1.0, progress / WARM_UP + 0.1, (1 - progress) / (1 - DECAY_FROM))
            group["lr"] = self._plan.rate * max(0.0, schedule)
        try:
            for at in range(0, len(texts), self._micro_batch):
                some = texts[at : at + self._micro_batch]
                loss = self._loss(_batch(some, self._draft.device), warm=progress < self._plan.warm)
                (loss * len(some) / len(texts)).backward()
        except torch.OutOfMemoryError:
            self._optimizer.zero_grad()
            if self._micro_batch == 1:
                raise
            self._micro_batch //= 2
            torch.cuda.empty_cache()
            self._listener.say(f"Out of GPU memory; continuing with {self._micro_batch} texts at a time")
            return
        norm = torch.nn.utils.clip_grad_norm_(self._parameters.values(), 1.0)
        if torch.isfinite(norm):  # half precision may overflow, and such a step would ruin all parameters
            self._optimizer.step()
            self._steps += 1
        else:
            self._skipped += 1
        self._optimizer.zero_grad()

    def _loss(self, batch: _Batch, *, warm: bool) -> Any:
        import torch

        with torch.no_grad(), _autocast(self._teacher):
            target = _logits(self._teacher, batch)[:, :-1][batch.counted]
        with _autocast(self._draft):
            draft = _logits(self._draft, batch)[:, :-1][batch.counted]
        vocab = min(target.shape[-1], draft.shape[-1])  # some families pad theirs
        target, draft = target[:, :vocab], draft[:, :vocab]
        if warm:
            return top_cross_entropy(target, draft, min(self._plan.top, vocab)).mean()
        accepted = overlap(target, draft)
        rates = torch.zeros(batch.counted.shape, device=accepted.device)
        rates = rates.masked_scatter(batch.counted, accepted)
        return end_to_end(rates, batch.counted, self._plan.draft_length)

    def _evaluate(self) -> None:
        """Evaluate the draft, keep its parameters if they are the best so far, and write a checkpoint."""
        self._draft.eval()
        rate = acceptance(self._draft, self._held_out)
        self._draft.train()
        improved = rate > self._best
        if improved:
            self._best, self._best_values = rate, self._copy_parameters()
        # The first loss may lower the acceptance rate at first, which is no reason to stop.
        warm = self._progress < self._plan.warm
        self._without_improvement = 0 if improved or warm else self._without_improvement + 1
        left = max(0.0, self._plan.seconds - self._seconds) / 60
        self._listener.say(
            f"Acceptance rate {rate:.1%}, {self._before:.1%} before training; {left:.0f} min left"
        )
        self._save_checkpoint()

    def _copy_parameters(self) -> dict[str, Any]:
        return {name: value.detach().cpu().clone() for name, value in self._parameters.items()}

    def _load_parameters(self, values: dict[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, value in values.items():
                self._parameters[name].copy_(value)

    def _save_checkpoint(self) -> None:
        import torch

        state = {
            "parameters": self._copy_parameters(),
            "best": self._best_values,
            "optimizer": self._optimizer.state_dict(),
            "counters": (
                self._seconds,
                self._steps,
                self._before,
                self._best,
                self._without_improvement,
            ),
        }
        with atomic.file(self._checkpoint) as out:
            torch.save(state, out)

    def _load_checkpoint(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        import torch

        if not self._checkpoint.is_file():
            return False
        state = torch.load(self._checkpoint, map_location=self._draft.device, weights_only=True)
        self._load_parameters(state["parameters"])
        self._best_values = {name: value.cpu() for name, value in state["best"].items()}
        self._optimizer.load_state_dict(state["optimizer"])
        self._seconds, self._steps, self._before, self._best, self._without_improvement = state["counters"]
        self._listener.say(f"Resuming after {self._steps} steps")
        return True
