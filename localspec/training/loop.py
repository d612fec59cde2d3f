"""The training loop, with checkpoints, early stopping and a time limit that is kept."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

from localspec.disk import atomic
from localspec.drafting.build_step import TargetText
from localspec.drafting.time_limit import TimeLimit

EVALUATIONS = 20  # over the whole training
PATIENCE = 5  # evaluations without improvement before it stops
WARM_UP, DECAY_FROM = 0.03, 0.7  # shares of the training until the rate is full, and after which it falls
STEP = "step"
CHEAP = 10  # times as long as a checkpoint took to write, until the next one is written


class Listener(Protocol):
    """Receives the findings of a training, and its progress in seconds."""

    def say(self, line: str) -> None:
        """Show a finding to the user."""

    def advance(self, count: int = 1) -> None:
        """Report that `count` more seconds are over."""


class Learner(Protocol):
    """A model in training: its parameters, its loss and its score."""

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters to train by name; they are changed in place."""

    def loss(self, texts: Sequence[TargetText], progress: float) -> Any:
        """Return the loss of some texts; `progress` is the share of the training that is done."""

    def score(self) -> float:
        """Return how good the parameters are on held-out texts; more is better."""

    def found(self, score: float, before: float) -> str:
        """Return what an evaluation found, in words; `before` is the score before the training."""


@dataclass(frozen=True)
class TrainingPlan:
    """How a draft is trained: for `seconds` or `steps`, at the learning `rate`, on `batch` texts per step.

    For a share `warm` of the training the loss is the cross-entropy on the target's `top` likeliest tokens,
    then the end-to-end loss at `draft_length`. After `patience` evaluations without
    improvement it ends.
    """

    seconds: float
    rate: float
    batch: int = 16
    draft_length: int = 4
    warm: float = 0.3
    top: int = 32
    seed: int = 0
    steps: int = 1 << 40
    patience: int = PATIENCE


@dataclass(frozen=True)
class TrainingResult:
    """The score before and after training, and the number of steps."""

    before: float
    after: float
    steps: int


def train(
    learner: Learner, texts: Sequence[TargetText], plan: TrainingPlan, checkpoint: Path, listener: Listener
) -> TrainingResult:
    """Train the parameters of `learner` on `texts`.

    They end with the best score, which is never lower than before. A killed training resumes from the file
    `checkpoint`. Raises torch's OutOfMemoryError if not even one text fits.
    """
    return _Trainer(learner, texts, plan, checkpoint, listener).run()


def autocast(device: Any) -> Any:
    """Return the context in which a device computes in bfloat16, if it can."""
    import torch

    enabled = device.type == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled)


def length(text: TargetText) -> int:
    """Return the tokens of a text."""
    return len(text.prompt) + len(text.answer)


class _Trainer:
    """The state of one training, and the best parameters so far."""

    def __init__(
        self,
        learner: Learner,
        texts: Sequence[TargetText],
        plan: TrainingPlan,
        checkpoint: Path,
        listener: Listener,
    ) -> None:
        import torch

        self._learner, self._texts = learner, texts
        self._plan, self._checkpoint, self._listener = plan, checkpoint, listener
        self._parameters = learner.parameters
        self._optimizer = torch.optim.AdamW(self._parameters.values(), lr=plan.rate, weight_decay=0.0)
        self._seconds, self._steps, self._micro_batch = 0.0, 0, plan.batch
        self._skipped = 0
        self._before, self._best, self._without_improvement = 0.0, 0.0, 0
        self._best_values: dict[str, Any] = {}
        self._next_checkpoint = 0.0  # by the clock of the process

    def run(self) -> TrainingResult:
        """Train until the time is over or nothing improves, and load the best parameters."""
        resumed = self._load_checkpoint()
        limit = TimeLimit(self._plan.seconds, self._seconds)
        if not resumed:
            self._before = self._best = self._learner.score()
            self._best_values = self._copy_parameters()
        batches = self._batches()
        estimate = self._estimate(max(self._texts, key=length))
        while self._wanted and limit.fits(max(estimate, limit.longest(STEP))):
            with limit.measured(STEP):
                self._step_and_evaluate(next(batches), limit)
        if self._skipped:
            self._listener.say(f"Skipped {self._skipped} steps whose gradients were not finite")
        self._load_parameters(self._best_values)
        return TrainingResult(self._before, self._best, self._steps)

    @property
    def _wanted(self) -> bool:
        """Whether another step may improve the score."""
        return self._progress < 1 and self._without_improvement < self._plan.patience

    def _estimate(self, text: TargetText) -> float:
        """Return about how many seconds a step takes, from two passes of one text, which change nothing."""
        passes = TimeLimit(self._plan.seconds)
        for _ in range(2):  # the first allocates memory
            began = passes.spent
            self._learner.loss([text], 1.0).backward()
            self._optimizer.zero_grad()
        return (passes.spent - began) * self._micro_batch

    def _step_and_evaluate(self, texts: list[TargetText], limit: TimeLimit) -> None:
        """Take a step, and evaluate if the next share of the training is done."""
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
                texts = sorted(order[at : at + chunk], key=length)
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
                loss = self._learner.loss(some, progress)
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

    def _evaluate(self) -> None:
        """Evaluate, keep the parameters if they are the best so far, and write a checkpoint."""
        score = self._learner.score()
        improved = score > self._best
        if improved:
            self._best, self._best_values = score, self._copy_parameters()
        # The first loss may lower the score at first, which is no reason to stop.
        warm = self._progress < self._plan.warm
        self._without_improvement = 0 if improved or warm else self._without_improvement + 1
        left = max(0.0, self._plan.seconds - self._seconds) / 60
        self._listener.say(f"{self._learner.found(score, self._before)}; {left:.0f} min left")
        self._save_checkpoint()

    def _copy_parameters(self) -> dict[str, Any]:
        return {name: value.detach().cpu().clone() for name, value in self._parameters.items()}

    def _load_parameters(self, values: dict[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, value in values.items():
                self._parameters[name].copy_(value)

    def _save_checkpoint(self) -> None:
        """Write a checkpoint, unless the last one took long: gigabytes would cost a tenth of the time."""
        import torch

        if (began := monotonic()) < self._next_checkpoint:
            return
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
        self._next_checkpoint = monotonic() + CHEAP * (monotonic() - began)

    def _load_checkpoint(self) -> bool:
        """Load the checkpoint; return False if there is none."""
        import torch

        if not self._checkpoint.is_file():
            return False
        state = torch.load(self._checkpoint, map_location="cpu", weights_only=True)
        self._load_parameters(state["parameters"])
        self._best_values = state["best"]
        self._optimizer.load_state_dict(state["optimizer"])
        self._seconds, self._steps, self._before, self._best, self._without_improvement = state["counters"]
        self._listener.say(f"Resuming after {self._steps} steps")
        return True
