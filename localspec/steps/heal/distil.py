"""The loop that teaches a draft, with checkpoints and an end before it gets worse."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from localspec.drafting.build_step import Text
from localspec.steps.heal.losses import end_to_end, likeliest, overlap

LOOKS = 20  # how often in its time the draft is judged
PATIENCE = 5  # looks without a better one that end it
RISE, FALL = 0.03, 0.7  # shares of the time at which the rate is full, and begins to fall
AVERAGE = 8  # texts that judging reads at a time


@dataclass(frozen=True)
class Lesson:
    """How a draft is taught: for `seconds`, at the learning `rate`, by `batch` texts a step.

    It ends earlier after `steps`. `depth` guesses make a round of the end-to-end loss, before which, for a
    share `warm` of the lesson, the target's `top` likeliest tokens teach.
    """

    seconds: float
    rate: float
    batch: int = 16
    depth: int = 4
    warm: float = 0.3
    top: int = 32
    seed: int = 0
    steps: int = 1 << 40


@dataclass(frozen=True)
class Taught:
    """The share of the target's tokens that a draft guessed before and after so many steps."""

    before: float
    after: float
    steps: int


def distil(
    teacher: Any,
    draft: Any,
    texts: Sequence[Text],
    judged: Sequence[Text],
    lesson: Lesson,
    kept: Path,
    say: Callable[[str], None],
) -> Taught:
    """Teach `draft` those of its parameters that require gradients on `texts` of the `teacher`.

    It ends with the values that guess most of `judged`, texts that it is not taught on: never fewer than
    before. Checkpoints go to the file `kept`, from where a lesson that was killed goes on. Raises
    TooLittleMemory where not even one text fits.
    """
    loop = _Loop(teacher, draft, texts, judged, lesson, kept, say)
    return loop.run()


def acceptance(model: Any, texts: Sequence[Text]) -> float:
    """Return the share of answered tokens that are the model's likeliest ones after the text before."""
    import torch

    right = count = 0
    with torch.inference_mode(), _arithmetic(model):
        for at in range(0, len(texts), AVERAGE):
            batch = _batch(texts[at : at + AVERAGE], model.device)
            likely = _logits(model, batch)[:, :-1].argmax(-1)
            hit = (likely == batch.tokens[:, 1:]) & batch.counted
            right, count = right + int(hit.sum()), count + int(batch.counted.sum())
    return right / max(count, 1)


@dataclass(frozen=True)
class _Batch:
    tokens: Any  # [texts, tokens]
    there: Any  # [texts, tokens]
    counted: Any  # [texts, tokens - 1]: does that row foretell a token of the answer?


def _batch(texts: Sequence[Text], device: Any) -> _Batch:
    import torch

    width = max(len(text.prompt) + len(text.answer) for text in texts)
    tokens = torch.zeros(len(texts), width, dtype=torch.long)
    there, counted = torch.zeros_like(tokens), torch.zeros(len(texts), width - 1, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(texts):
        whole = len(prompt) + len(answer)
        tokens[row, :whole] = torch.tensor([*prompt, *answer])
        there[row, :whole] = 1
        counted[row, len(prompt) - 1 : whole - 1] = True
    return _Batch(tokens.to(device), there.to(device), counted.to(device))


def _logits(model: Any, batch: _Batch) -> Any:
    return model(input_ids=batch.tokens, attention_mask=batch.there, use_cache=False).logits


def _arithmetic(model: Any) -> Any:
    import torch

    kind = model.device.type
    halved = kind == "cuda" and torch.cuda.is_bf16_supported()
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=halved)


class _Loop:
    """One lesson: where it is, and the best that it has reached."""

    def __init__(
        self,
        teacher: Any,
        draft: Any,
        texts: Sequence[Text],
        judged: Sequence[Text],
        lesson: Lesson,
        kept: Path,
        say: Callable[[str], None],
    ) -> None:
        import torch

        self._teacher, self._draft = teacher, draft
        self._texts, self._judged = texts, judged
        self._lesson, self._kept, self._say = lesson, kept, say
        self._learning = {name: one for name, one in draft.named_parameters() if one.requires_grad}
        self._optimizer = torch.optim.AdamW(self._learning.values(), lr=lesson.rate, weight_decay=0.0)
        self._spent, self._steps, self._size = 0.0, 0, lesson.batch
        self._skipped = 0
        self._before, self._best, self._since = 0.0, 0.0, 0
        self._values: dict[str, Any] = {}

    def run(self) -> Taught:
        """Teach until the time is over or nothing gets better, and leave the best values in the draft."""
        if not self._resumed():
            self._before = self._best = acceptance(self._draft, self._judged)
            self._values = self._copied()
        started, looks = monotonic() - self._spent, int(self._share * LOOKS)
        batches = self._batches()
        self._draft.train()
        while self._share < 1 and self._since < PATIENCE:
            self._step(next(batches))
            self._spent = monotonic() - started
            if int(self._share * LOOKS) > looks:
                looks = int(self._share * LOOKS)
                self._look()
        if self._skipped:
            self._say(f"{self._skipped} steps were left out: their gradients were no numbers")
        self._draft.eval()
        self._load(self._values)
        return Taught(self._before, self._best, self._steps)

    @property
    def _share(self) -> float:
        """How much of the lesson is over."""
        return max(self._spent / self._lesson.seconds, self._steps / self._lesson.steps)

    def _batches(self) -> Iterator[list[Text]]:
        """Yield texts of about one length together, in an order of their own at each turn."""
        import random

        dice = random.Random(self._lesson.seed + self._steps)
        while True:
            order = dice.sample(self._texts, len(self._texts))
            near = self._size * 16
            for at in range(0, len(order), near):
                some = sorted(order[at : at + near], key=lambda text: len(text.prompt) + len(text.answer))
                starts = list(range(0, len(some), self._size))
                dice.shuffle(starts)
                for start in starts:
                    yield some[start : start + self._size]

    def _step(self, texts: list[Text]) -> None:
        import torch

        share = self._share
        for group in self._optimizer.param_groups:
            group["lr"] = self._lesson.rate * max(0.0, min(1.0, share / RISE + 0.1, (1 - share) / (1 - FALL)))
        try:
            for at in range(0, len(texts), self._size):
                some = texts[at : at + self._size]
                loss = self._loss(_batch(some, self._draft.device), warm=share < self._lesson.warm)
                (loss * len(some) / len(texts)).backward()
        except torch.OutOfMemoryError:
            self._optimizer.zero_grad()
            if self._size == 1:
                raise
            self._size //= 2
            torch.cuda.empty_cache()
            self._say(f"The card is full: texts are read {self._size} at a time")
            return
        norm = torch.nn.utils.clip_grad_norm_(self._learning.values(), 1.0)
        if torch.isfinite(norm):  # half precision overflows in some, and such a step would spoil every value
            self._optimizer.step()
            self._steps += 1
        else:
            self._skipped += 1
        self._optimizer.zero_grad()

    def _loss(self, batch: _Batch, *, warm: bool) -> Any:
        import torch

        with torch.no_grad(), _arithmetic(self._teacher):
            wanted = _logits(self._teacher, batch)[:, :-1][batch.counted]
        with _arithmetic(self._draft):
            guessed = _logits(self._draft, batch)[:, :-1][batch.counted]
        vocab = min(wanted.shape[-1], guessed.shape[-1])  # some families pad theirs
        wanted, guessed = wanted[:, :vocab], guessed[:, :vocab]
        if warm:
            return likeliest(wanted, guessed, min(self._lesson.top, vocab)).mean()
        stands = overlap(wanted, guessed)
        placed = torch.zeros(batch.counted.shape, device=stands.device).masked_scatter(batch.counted, stands)
        return end_to_end(placed, batch.counted, self._lesson.depth)

    def _look(self) -> None:
        """Judge the draft, keep it if it is the best so far, and write a checkpoint."""
        self._draft.eval()
        found = acceptance(self._draft, self._judged)
        self._draft.train()
        better = found > self._best
        if better:
            self._best, self._values = found, self._copied()
        # the first losses only bring the two together: what they cost at first is no reason to stop
        warm = self._share < self._lesson.warm
        self._since = 0 if better or warm else self._since + 1
        left = max(0.0, self._lesson.seconds - self._spent) / 60
        self._say(
            f"{found:.1%} of the target's tokens are guessed, {self._before:.1%} before; {left:.0f} min left"
        )
        self._save()

    def _copied(self) -> dict[str, Any]:
        return {name: one.detach().cpu().clone() for name, one in self._learning.items()}

    def _load(self, values: dict[str, Any]) -> None:
        import torch

        with torch.no_grad():
            for name, value in values.items():
                self._learning[name].copy_(value)

    def _save(self) -> None:
        import torch

        state = {
            "now": self._copied(),
            "best": self._values,
            "optimizer": self._optimizer.state_dict(),
            "numbers": (self._spent, self._steps, self._before, self._best, self._since),
        }
        partial = self._kept.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, self._kept)

    def _resumed(self) -> bool:
        """Take up a checkpoint; tell whether there was one."""
        import torch

        if not self._kept.is_file():
            return False
        state = torch.load(self._kept, map_location=self._draft.device, weights_only=True)
        self._load(state["now"])
        self._values = {name: value.cpu() for name, value in state["best"].items()}
        self._optimizer.load_state_dict(state["optimizer"])
        self._spent, self._steps, self._before, self._best, self._since = state["numbers"]
        self._say(f"Going on after {self._steps} steps")
        return True
