"""LayerSkip (Elhoushi et al. 2024): a model learns to predict from its first layers, by adapters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any, NamedTuple

from localspec.drafting.build_step import TargetText
from localspec.drafting.speedup import chain_speedup
from localspec.training.loop import autocast
from localspec.training.losses import top_cross_entropy
from localspec.training.texts import batch_of

Tensor = Any  # torch.Tensor

TOP = 32  # of the model's own likeliest tokens, which the adapted model learns
EVAL_BATCH = 8  # texts
GUESSES = 8  # in a row, for which a speed-up is estimated
WIDER = 0.04  # of a pass: what one more token in it is assumed to cost


@dataclass(frozen=True)
class SkipPlan:
    """How a model is adapted: `exits` are the layers after which it learns to predict, by turns.

    `rank` is that of the adapters, `most` the probability with which the last layer is left out of a text,
    `share` the weight of an exit's loss beside that of the last layer.
    """

    exits: tuple[int, ...]
    rank: int = 8
    most: float = 0.1
    share: float = 1.0
    seed: int = 0


class Exit(NamedTuple):
    """How often an exit guesses what the last layer says, and the speed-up that this should give."""

    layer: int
    agreement: float
    speedup: float


class LayerSkipLearner:
    """A model whose linear layers have adapters W + B A, and which learns from itself without them.

    Layer l of L is left out of a text with probability p (exp(l ln 2 / (L - 1)) - 1), and the loss has one
    exit beside the last layer in each step (section 4.1, with the rotational curriculum). Both learn the
    distribution that the model has without adapters, so that its answers stay what they were.
    """

    def __init__(self, model: Any, held_out: Sequence[TargetText], plan: SkipPlan) -> None:
        import torch

        self._model, self._held_out, self._plan = model.requires_grad_(False), list(held_out), plan
        self._layers = model.base_model.layers
        self._generator = torch.Generator().manual_seed(plan.seed)
        self._adapters: dict[str, Tensor] = {}
        self._adapted, self._steps = True, 0
        self._left_out: Tensor | None = None  # [layers, texts], in a step of the training
        self._states: list[Tensor] = []
        self._latest: tuple[float, list[Exit]] | None = None
        for at, layer in enumerate(self._layers):
            layer.register_forward_hook(self._after(at))
            for name, module in layer.named_modules():
                if isinstance(module, torch.nn.Linear):
                    self._adapt(f"{model.base_model_prefix}.layers.{at}.{name}", module)

    @property
    def parameters(self) -> dict[str, Any]:
        """The adapters by name: A [rank, in] and B [out, rank] of each linear layer."""
        return self._adapters

    def loss(self, texts: Sequence[TargetText], progress: float) -> Any:
        """Return the cross-entropy of the last layer and of this step's exit, in nats a token."""
        import torch

        del progress
        batch, plan = batch_of(texts, self._model.device), self._plan
        with torch.no_grad(), autocast(self._model.device):
            wanted = self._head(self._read(batch, adapted=False)[-1][:, :-1][batch.counted])
        count = len(self._layers)
        rates = [plan.most * (2 ** (at / max(count - 1, 1)) - 1) for at in range(count)]
        drawn = torch.rand(count, len(texts), generator=self._generator)
        self._left_out = (drawn < torch.tensor(rates)[:, None]).to(self._model.device)
        layer = plan.exits[self._steps % len(plan.exits)]
        self._steps += 1
        try:
            with autocast(self._model.device):
                states = self._read(batch, adapted=True)
                found = [self._head(states[at - 1][:, :-1][batch.counted]) for at in (layer, count)]
        finally:
            self._left_out = None
        top = min(TOP, wanted.shape[-1])
        early, last = (top_cross_entropy(wanted, logits, top).mean() for logits in found)
        return last + plan.share * early

    def score(self) -> float:
        """Return the best estimated speed-up of an exit, divided by the growth of the perplexity."""
        self._latest = growth, exits = self.measured()
        return max(found.speedup for found in exits) / growth

    def found(self, score: float, before: float) -> str:
        """Return what the last evaluation found, in words."""
        growth, exits = self._latest or self.measured()
        told = ", ".join(f"{one.agreement:.1%} after layer {one.layer} ({one.speedup:.2f}x)" for one in exits)
        return (
            f"Exits guess {told}; perplexity {growth:.3f} times the model's; {score:.3f}, {before:.3f} before"
        )

    def measured(self) -> tuple[float, list[Exit]]:
        """Return the perplexity of the held-out answers over the model's own, and what each exit guesses."""
        import torch

        agree = dict.fromkeys(self._plan.exits, 0)
        count, worse = 0, 0.0
        for at in range(0, len(self._held_out), EVAL_BATCH):
            batch = batch_of(self._held_out[at : at + EVAL_BATCH], self._model.device)
            said = batch.tokens[:, 1:][batch.counted]
            with torch.inference_mode(), autocast(self._model.device):
                own = self._head(self._read(batch, adapted=False)[-1][:, :-1][batch.counted])
                states = self._read(batch, adapted=True)
                last = self._head(states[-1][:, :-1][batch.counted])
                for layer in agree:
                    early = self._head(states[layer - 1][:, :-1][batch.counted])
                    agree[layer] += int((early.argmax(-1) == last.argmax(-1)).sum())
                losses = (
                    torch.nn.functional.cross_entropy(x.float(), said, reduction="sum") for x in (last, own)
                )
                worse += next(losses).item() - next(losses).item()
            count += len(said)
        rates = {layer: hits / max(count, 1) for layer, hits in agree.items()}
        exits = [Exit(layer, rate, self._speedup(layer, rate)) for layer, rate in rates.items()]
        return exp(worse / max(count, 1)), exits

    def merge(self) -> None:
        """Add the adapters to the weights, for a model without them."""
        import torch

        modules = dict(self._model.named_modules())
        with torch.no_grad():
            for name in {name.removesuffix(".A").removesuffix(".B") for name in self._adapters}:
                weight = modules[name].weight
                weight += (self._adapters[f"{name}.B"] @ self._adapters[f"{name}.A"]).to(weight)
        self._adapted = False

    def _speedup(self, layer: int, agreement: float) -> float:
        """Return the estimated speed-up of drafting with the first layers; the rest alone verifies."""
        head = self._model.get_output_embeddings().weight.numel()
        body = sum(value.numel() for value in self._layers.parameters())
        first = body * layer / len(self._layers)
        guess = (first + head) / (body + head)
        rest = 1 - first / (body + head)
        passes = [1.0, *(rest * (1 + WIDER * more) for more in range(1, GUESSES + 1))]
        return chain_speedup([agreement] * GUESSES, passes, guess).speedup

    def _read(self, batch: Any, *, adapted: bool) -> list[Tensor]:
        """Return the hidden states [texts, tokens, width] after each layer."""
        self._adapted, self._states = adapted, []
        self._model.base_model(input_ids=batch.tokens, attention_mask=batch.mask, use_cache=False)
        return self._states

    def _head(self, states: Tensor) -> Tensor:
        """Return the logits of hidden states, as those of the last layer are computed."""
        return self._model.get_output_embeddings()(self._model.base_model.norm(states))

    def _adapt(self, name: str, module: Any) -> None:
        import torch

        rows, columns = module.weight.shape
        generator = torch.Generator().manual_seed(self._plan.seed + len(self._adapters))
        first = torch.randn(self._plan.rank, columns, generator=generator) / columns**0.5
        a = first.to(module.weight.device).requires_grad_()
        b = torch.zeros(rows, self._plan.rank, device=module.weight.device).requires_grad_()
        self._adapters |= {f"{name}.A": a, f"{name}.B": b}

        def added(module: Any, given: Any, output: Tensor) -> Tensor | None:
            return output + (given[0] @ a.T.to(given[0])) @ b.T.to(given[0]) if self._adapted else None

        module.register_forward_hook(added)

    def _after(self, at: int) -> Any:
        """Return a hook that leaves layer `at` out of some texts, and notes the states after it."""
        import torch

        def hook(module: Any, given: Any, output: Any) -> Any:
            states = output[0] if isinstance(output, tuple) else output
            if self._left_out is not None and self._left_out[at].any():
                states = torch.where(self._left_out[at][:, None, None], given[0], states)
            self._states.append(states)
            return (states, *output[1:]) if isinstance(output, tuple) else states

        return hook
