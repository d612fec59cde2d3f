"""Teach a model to read and write pairs: by its own texts, then by what it writes as pairs (2605.27255)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from localspec.drafting.build_step import TargetText
from localspec.formats.pipo.torch_pairs import TorchPairs
from localspec.training.loop import autocast
from localspec.training.pipo.pairs import PairedTexts, paired
from localspec.training.pipo.rollouts import continued

Tensor = Any  # torch.Tensor

PADS = 0.25  # most of the pairs of a text that are cut short by a pad
SUPERVISED = 0.6  # share of the training in which texts of the target are learned
ROLLOUTS = 16  # batches of continuations that are written at a time
ROWS = 4096  # pairs whose logits are in memory at a time
EVAL_BATCH = 16  # texts
LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)  # of confidence, at which the second tokens are counted


class Comparison(NamedTuple):
    """How rows [rows] of logits compare with the target's: the loss in nats, and what is likeliest.

    `ratio` is min(1, p / s) of the likeliest token, with the target's probability p and its own s; `right`
    tells whether that is the target's likeliest one too.
    """

    loss: Tensor
    ratio: Tensor
    right: Tensor


class Level(NamedTuple):
    """The second tokens that are surer than `least`: their share, and how many of them are the target's."""

    least: float
    kept: float
    agreement: float


class PairLearner:
    """PIPO in training on `texts` of its target, which is the same model without adapters.

    For a share SUPERVISED of the training it reads the target's texts, and the loss is the KL divergence of
    what it says from what the target says. Then it reads its own continuations of them, and the loss is the
    reverse divergence, with the target as the teacher (on-policy distillation). The head that tells how sure
    it is learns min(1, p / s) by binary cross-entropy, and no other weight learns from that.
    """

    def __init__(
        self,
        pairs: TorchPairs,
        texts: Sequence[TargetText],
        held_out: Sequence[TargetText],
        *,
        seed: int = 0,
        supervised: float = SUPERVISED,
    ) -> None:
        import torch

        self._pairs, self._texts, self._held_out = pairs, list(texts), list(held_out)
        self._supervised, self._seed = supervised, seed
        self._numbers = np.random.default_rng(seed)
        self._generator = torch.Generator(pairs.model.device).manual_seed(seed)
        self._written: list[TargetText] = []
        self.agreement = (0.0, 0.0)
        self.levels: list[Level] = []

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The weights to train."""
        return dict(self._pairs.weights)

    def loss(self, texts: Sequence[TargetText], progress: float) -> Tensor:
        """Return the loss of some texts, or of as many continuations of texts, in nats a token."""
        reverse = self._supervised <= progress < 1  # at 1 the loop asks what a step on these texts takes
        if reverse:
            texts = self._continuations(len(texts))
        shares = self._numbers.random(len(texts)) * PADS
        device = self._pairs.model.device
        batch = paired(texts, shares, self._numbers, device)
        with autocast(device):
            following, second, sure = self._compared(batch, reverse)
            losses = [following.loss, second.loss]
            losses.append(_entropy(sure, second.ratio))
            weights = [*batch.weights, batch.weights[1]]
            means = [(loss * each).sum() / each.sum() for loss, each in zip(losses, weights, strict=True)]
            return means[0] + means[1] + means[2]

    def score(self) -> float:
        """Return the share of tokens of held-out answers, in pairs without pads, that are the target's."""
        import torch

        counts, found = torch.zeros(2), torch.zeros(2)
        kept, right = torch.zeros(len(LEVELS)), torch.zeros(len(LEVELS))
        levels = torch.tensor(LEVELS, device=self._pairs.model.device)
        for following, second, sure, weights in self._evaluated():
            counts += weights.sum((1, 2)).cpu()
            hits = torch.stack([following.right, second.right]) * weights
            found += hits.sum((1, 2)).cpu()
            above = (sure.sigmoid()[..., None] >= levels) * weights[1][..., None]
            kept += above.sum((0, 1)).cpu()
            right += (above * hits[1][..., None]).sum((0, 1)).cpu()
        rates = (found / counts.clamp_min(1)).tolist()
        self.agreement = (rates[0], rates[1])
        self.levels = [
            Level(least, float(some / counts[1].clamp_min(1)), float(good / some.clamp_min(1)))
            for least, some, good in zip(LEVELS, kept, right, strict=True)
        ]
        return float(sum(rates)) / 2

    def found(self, score: float, before: float) -> str:
        """Return what an evaluation found, in words."""
        first, second = self.agreement
        sure = next(level for level in self.levels if level.least == 0.95)
        return (
            f"{score:.1%} of tokens are the target's ({first:.1%} of first ones, {second:.1%} of "
            f"second ones; {sure.kept:.1%} of these are sure, {sure.agreement:.1%} of those right); "
            f"{before:.1%} before"
        )

    def _evaluated(self) -> Iterator[tuple[Comparison, Comparison, Tensor, Tensor]]:
        """Yield what is said of held-out texts, and the weights of answers [2, texts, pairs]."""
        import torch

        device, numbers = self._pairs.model.device, np.random.default_rng(self._seed)
        with torch.no_grad(), autocast(device):
            for at in range(0, len(self._held_out), EVAL_BATCH):
                some = self._held_out[at : at + EVAL_BATCH]
                batch = paired(some, np.zeros(len(some)), numbers, device, question=0.0)
                yield *self._compared(batch, False), batch.weights

    def _compared(self, batch: PairedTexts, reverse: bool) -> tuple[Comparison, Comparison, Tensor]:
        """Compare what is said after pairs and after their first tokens; return log-odds [texts, pairs] too.

        The target reads the texts without pads.
        """
        import torch

        model, pairs = self._pairs.model, self._pairs
        with torch.no_grad():
            states = model.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        wanted = [
            states.gather(1, at[..., None].expand(*at.shape, states.shape[-1]))
            for at in (batch.ends, batch.starts)
        ]
        before, after, own = pairs.read(batch.first, batch.second)
        following = self._comparison(pairs.logits, after, wanted[0], reverse)
        second = self._comparison(pairs.head.logits, own, wanted[1], reverse)
        return following, second, pairs.sure(before, own)

    def _comparison(
        self, logits: Callable[[Tensor], Tensor], states: Tensor, wanted: Tensor, reverse: bool
    ) -> Comparison:
        """Compare the logits of states [texts, pairs, width] with the target's.

        Logits are computed again for the gradient: they would take most of the memory.
        """
        import torch
        from torch.utils.checkpoint import checkpoint

        def compare(states: Tensor, wanted: Tensor) -> tuple[Tensor, ...]:
            with torch.no_grad():
                target = self._pairs.logits(wanted).float().log_softmax(-1)
            own = logits(states).float().log_softmax(-1)
            here, there = (own, target) if reverse else (target, own)
            likeliest = own.detach().argmax(-1, keepdim=True)
            ratio = (target.gather(-1, likeliest) - own.detach().gather(-1, likeliest))[..., 0]
            right = likeliest[..., 0] == target.argmax(-1)
            return (here.exp() * (here - there)).sum(-1), ratio.exp().clamp_max(1), right

        parts = zip(states.flatten(0, 1).split(ROWS), wanted.flatten(0, 1).split(ROWS), strict=True)
        if torch.is_grad_enabled():
            found = [checkpoint(compare, *part, use_reentrant=False) for part in parts]
        else:
            found = [compare(*part) for part in parts]
        return Comparison(*(torch.cat(part).view(states.shape[:2]) for part in zip(*found, strict=True)))

    def _continuations(self, count: int) -> list[TargetText]:
        """Return some of its own continuations; writes more when there are too few."""
        if len(self._written) < count:
            self._written = continued(
                self._pairs, self._texts, count * ROLLOUTS, self._numbers, self._generator
            )
        taken, self._written = self._written[:count], self._written[count:]
        return taken


def _entropy(odds: Tensor, wanted: Tensor) -> Tensor:
    """Return the binary cross-entropy [...] of log-odds with the probabilities that are wanted."""
    import torch

    return torch.nn.functional.binary_cross_entropy_with_logits(odds, wanted, reduction="none")
