"""Continuations that PIPO writes in training, a pair a pass, of texts of its target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from localspec.drafting.build_step import TargetText
from localspec.formats.pipo.torch_pairs import TorchPairs
from localspec.training.loop import autocast, length

Tensor = Any  # torch.Tensor

PREFIXES = (32, 64, 96, 128, 192, 256)  # tokens of a text that are continued; all of a batch are as many
WRITTEN = 96  # tokens of a continuation
LEAST = 2  # tokens that a text has after its prefix


def continued(
    pairs: TorchPairs, texts: Sequence[TargetText], count: int, numbers: np.random.Generator, generator: Any
) -> list[TargetText]:
    """Return about `count` continuations of first parts of texts; every second one is greedy.

    The others are sampled at temperature 1. The first parts of all are as long, so that a batch has no pads.
    """
    import torch

    fitting = {size: [text for text in texts if _fits(text, size)] for size in PREFIXES}
    sizes = [size for size, some in fitting.items() if some]
    if not sizes:
        return list(texts)
    weights = np.array([len(fitting[size]) for size in sizes], float)
    size = int(numbers.choice(sizes, p=weights / weights.sum()))
    chosen = numbers.choice(len(fitting[size]), count, replace=count > len(fitting[size]))
    firsts = [[*fitting[size][at].prompt, *fitting[size][at].answer][:size] for at in chosen]
    device = pairs.model.device
    with torch.no_grad(), autocast(device):
        rest = _written(pairs, torch.tensor(firsts, device=device), generator).tolist()
    return [TargetText(first, answer) for first, answer in zip(firsts, rest, strict=True)]


def _fits(text: TargetText, size: int) -> bool:
    """Return whether a text has a prompt of at most `size` tokens, and goes on after them."""
    return len(text.prompt) <= size <= length(text) - LEAST


def _written(pairs: TorchPairs, tokens: Tensor, generator: Any) -> Tensor:
    """Return continuations [texts, WRITTEN] of texts [texts, tokens], of an even number of tokens."""
    import torch
    from transformers.cache_utils import DynamicCache

    cache, place = DynamicCache(), tokens.device
    greedy = torch.arange(len(tokens), device=place)[:, None] % 2 == 0
    first, second = tokens[:, ::2], tokens[:, 1::2]
    state = pairs.weights["start"].expand(len(tokens), 1, -1)
    keys, values = None, None
    found: list[Tensor] = []
    with pairs.adapters.reading():
        while True:
            count = first.shape[1]
            at = cache.get_seq_length()
            positions = torch.arange(at, at + count, device=place)
            after = pairs.model.base_model(
                inputs_embeds=pairs.latents(first, second),
                position_ids=positions[None],
                past_key_values=cache,
                use_cache=True,
            ).last_hidden_state
            before = torch.cat([state.to(after.dtype), after[:, :-1]], 1)
            if not at:  # later on the head has read the pair's first token already
                _, _, keys, values = pairs.project(first, before, positions)
            if 2 * len(found) >= WRITTEN:
                return torch.cat(found, 1)
            state = after[:, -1:]
            first = _chosen(pairs.logits(state), greedy, generator)
            read, queries, key, value = pairs.project(first, state, positions[-1:] + 1)
            keys, values = torch.cat([keys, key], -2), torch.cat([values, value], -2)
            own = pairs.head.finish(read, pairs.head.attend(queries, keys, values))
            second = _chosen(pairs.head.logits(own), greedy, generator)
            found.append(torch.cat([first, second], 1))


def _chosen(logits: Tensor, greedy: Tensor, generator: Any) -> Tensor:
    """Return tokens [texts, 1] of logits [texts, 1, vocab]: the likeliest ones, or drawn by Gumbel noise."""
    import torch

    drawn = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
    noise = -drawn.exponential_(generator=generator).log()
    return torch.where(greedy[..., None], logits.float(), logits.float() + noise).argmax(-1)
