"""The losses of distillation: how much the draft's distribution overlaps with the target's."""

from __future__ import annotations

from typing import Any


def overlap(target: Any, draft: Any) -> Any:
    """Return the acceptance probability of a sampled guess, [...], from logits [..., vocab] of both.

    sum_x min(p(x), q(x)) = 1 - TV(p, q) (Leviathan et al. 2023, theorem 3.5). Gradients reach only the draft.
    """
    import torch

    probabilities = target.float().softmax(-1).detach()
    return torch.minimum(probabilities, draft.float().softmax(-1)).sum(-1)


def end_to_end(acceptance: Any, counted: Any, draft_length: int) -> Any:
    """Return 1 minus the expected share of accepted guesses at a draft length: Bebop's end-to-end loss.

    L = 1 - (1/g) sum_{j=1..g} prod_{i<=j} a_i (2606.12370), a_i = `acceptance` [batch, tokens] of `overlap`,
    over all runs of `draft_length` tokens that are `counted` [batch, tokens]. If all texts are shorter, their
    greatest length is used.
    """
    draft_length = min(draft_length, int(counted.sum(-1).max()))
    runs = counted.unfold(1, draft_length, 1).all(-1)
    accepted = acceptance.clamp_min(1e-6).unfold(1, draft_length, 1).cumprod(-1).mean(-1)
    return 1 - accepted[runs].mean()


def top_cross_entropy(target: Any, draft: Any, top: int) -> Any:
    """Return the cross-entropy [...] of the draft on the target's `top` likeliest tokens, scaled to sum to 1.

    The end-to-end loss has almost no gradient where the two hardly overlap; this one has.
    """
    values, tokens = target.float().topk(top, dim=-1)
    weights = values.softmax(-1).detach()
    return -(weights * draft.float().log_softmax(-1).gather(-1, tokens)).sum(-1)
