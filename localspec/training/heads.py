"""Train a head: it learns to guess several tokens in a row from its target's hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from localspec.drafting.build_step import TargetText
from localspec.formats.heads.torch_head import TorchHead
from localspec.training.features import Batch, Features
from localspec.training.loop import autocast

Tensor = Any  # torch.Tensor

TV, CE = "tv", "ce"
LOSSES = (TV, CE)
ROWS = 4096  # positions whose logits are in memory at a time
LATER = 0.8  # weight of the cross-entropy of a guess, relative to the one before (EAGLE-3)
SINGLE = 0.3  # share of the training in which single guesses are learned
EVALUATED = 5  # guesses in a row
EVAL_BATCH = 8  # texts


@dataclass(frozen=True)
class Acceptance:
    """How good a head is: which of its guesses in a row are its target's greedy tokens.

    `rates` are the shares of first, second ... guesses that are right where all before them are, `guesses`
    is the mean number of right guesses in a row.
    """

    rates: tuple[float, ...]
    guesses: float

    def __str__(self) -> str:
        shown = " ".join(f"{rate:.1%}" for rate in self.rates)
        return f"{self.guesses:.2f} of {len(self.rates)} guesses accepted, by position {shown}"


class HeadLearner:
    """A head that learns from its target's `features` to guess `depth` tokens in a row.

    For a share `single` of the training it learns single guesses, which is several times as fast, and until
    the share `warm` the loss is the cross-entropy, as it always is with `loss` CE. TV is Bebop's end-to-end
    loss (2606.12370): one minus the expected share of accepted guesses. Probabilities are the target's own:
    what it gives to tokens that the head cannot guess counts as rejected.
    """

    def __init__(
        self,
        head: TorchHead,
        tokens: NDArray[np.int64],
        features: Features,
        held_out: Sequence[TargetText],
        *,
        depth: int,
        loss: str,
        warm: float,
        single: float = SINGLE,
    ) -> None:
        import torch

        self._head, self._features, self._held_out = head, features, held_out
        self._depth, self._kind, self._warm, self._single = depth, loss, warm, single
        ids = torch.from_numpy(tokens).to(features.head.device)
        self._rows = features.head[ids]  # the target's own logits of the tokens that the head can guess
        self._number = torch.full((head.shape.vocab,), -1, device=ids.device)  # its row of each token
        self._number[ids] = torch.arange(len(ids), device=ids.device)
        self.last: Acceptance | None = None

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The head's weights."""
        return {name: value for name, value in self._head.weights.items() if value.requires_grad}

    def loss(self, texts: Sequence[TargetText], progress: float) -> Tensor:
        """Return the loss of some texts, when a share `progress` of the training is done."""
        import torch

        batch = self._features.batch(texts)
        depth = 1 if progress < self._single else self._depth
        entropy = progress < self._warm or self._kind == CE
        with autocast(batch.tokens.device):
            each = self._each(batch, depth, entropy=entropy)
        if entropy:
            weights = torch.tensor([LATER**guess for guess in range(depth)], device=each.device)
            return (each.mean(1) * weights).sum() / weights.sum()
        return 1 - each.clamp_min(1e-6).cumprod(0).mean()

    def score(self) -> float:
        """Return the mean number of right guesses in a row on held-out texts."""
        self.last = self.acceptance(self._held_out)
        return self.last.guesses

    def found(self, score: float, before: float) -> str:
        """Return the acceptance rates of the last evaluation."""
        return f"{self.last}; {before:.2f} before training"

    def acceptance(self, texts: Sequence[TargetText]) -> Acceptance:
        """Return how many guesses in a row are right after each token of the answers."""
        import torch

        reached = torch.zeros(EVALUATED + 1)
        with torch.no_grad(), autocast(self._rows.device):
            for at in range(0, len(texts), EVAL_BATCH):
                batch = self._features.batch(texts[at : at + EVAL_BATCH])
                reached += self._reached(batch)
        rates = [float(reached[at + 1] / reached[at].clamp_min(1)) for at in range(EVALUATED)]
        return Acceptance(tuple(rates), float(reached[1:].sum() / reached[0].clamp_min(1)))

    def sampled(self, texts: Sequence[TargetText]) -> float:
        """Return how many guesses in a row are accepted in the mean where both sample at temperature 1.

        That is sum_j prod_{i<=j} (1 - TV_i) (2606.12370), over the same guesses as `acceptance`.
        """
        import torch

        total, count = 0.0, 0
        with torch.no_grad(), autocast(self._rows.device):
            for at in range(0, len(texts), EVAL_BATCH):
                batch = self._features.batch(texts[at : at + EVAL_BATCH])
                each = self._each(batch, EVALUATED, entropy=False)
                total += float(each.cumprod(0).sum())
                count += each.shape[1]
        return total / max(count, 1)

    def _each(self, batch: Batch, depth: int, *, entropy: bool) -> Tensor:
        """Return the cross-entropies or overlaps [depth, positions] of guesses inside the answers."""
        import torch

        whole = _shifted(batch.answers, depth)  # positions with `depth` guesses inside the answer
        found = []
        for guess, states in enumerate(self._head.unroll(batch.tokens, batch.states, depth)):
            last, mass = (_moved(part, guess + 1)[whole] for part in (batch.last, batch.mass))
            found.append(self._compared(states[whole], last, mass, entropy))
        return torch.stack(found)

    def _reached(self, batch: Batch) -> Tensor:
        """Return at how many positions at least 0, 1, ... guesses in a row are right."""
        import torch

        right = _shifted(batch.answers, EVALUATED)
        reached = [right.sum()]
        for guess, states in enumerate(self._head.unroll(batch.tokens, batch.states, EVALUATED)):
            hit = torch.zeros_like(right)
            likeliest = [part.argmax(-1) for part in self._logits(states[right])]
            hit[right] = torch.cat(likeliest) == self._number[_moved(batch.tokens, guess + 2)[right]]
            right = hit
            reached.append(right.sum())
        return torch.stack(reached).float().cpu()

    def _logits(self, states: Tensor) -> list[Tensor]:
        """Return the head's logits of states [positions, width], some positions at a time."""
        return [self._head.logits(part) for part in states.split(ROWS)]

    def _compared(self, states: Tensor, last: Tensor, mass: Tensor, entropy: bool) -> Tensor:
        """Return for each position the cross-entropy or the overlap of the head and the target.

        Logits are computed again for the gradient: they would take most of the memory.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        def compare(states: Tensor, last: Tensor, mass: Tensor) -> Tensor:
            with torch.no_grad():
                target = ((last @ self._rows.T).float() - mass[:, None]).exp()
            draft = self._head.logits(states).float().log_softmax(-1)
            if entropy:
                return -(target * draft).sum(-1)
            return torch.minimum(target, draft.exp()).sum(-1)

        parts = zip(states.split(ROWS), last.split(ROWS), mass.split(ROWS), strict=True)
        return torch.cat([checkpoint(compare, *part, use_reentrant=False) for part in parts])


def _moved(x: Tensor, by: int) -> Tensor:
    """Return x [texts, tokens, ...] moved left by some tokens, filled with zeros."""
    import torch

    return torch.cat([x[:, by:], torch.zeros_like(x[:, :by])], 1)[:, : x.shape[1]]


def _shifted(answers: Tensor, depth: int) -> Tensor:
    """Return after which positions a run of `depth` guesses lies in an answer: the first follows the next."""
    return _moved(answers, 1) & _moved(answers, depth)
