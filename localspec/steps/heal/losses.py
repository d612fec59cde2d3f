"""What a draft is taught by: how much of the target's distribution its own covers."""

from __future__ import annotations

from typing import Any


def overlap(target: Any, draft: Any) -> Any:
    """Return how likely a sampled guess stands, [...], from logits [..., vocab] of both.

    sum_x min(p(x), q(x)) = 1 - TV(p, q) (Leviathan et al. 2023, theorem 3.5). Gradients reach only the draft.
    """
    import torch

    wanted = target.float().softmax(-1).detach()
    return torch.minimum(wanted, draft.float().softmax(-1)).sum(-1)


def end_to_end(stands: Any, counted: Any, depth: int) -> Any:
    """Return 1 minus the share of `depth` guesses that stand on average: the end-to-end loss of Bebop.

    L = 1 - (1/g) sum_{j=1..g} prod_{i<=j} a_i (2606.12370), a_i = `stands` [batch, tokens] of `overlap`, over
    all runs of `depth` tokens that are `counted` [batch, tokens]. Texts that are all shorter count whole.
    """
    depth = min(depth, int(counted.sum(-1).max()))
    runs = counted.unfold(1, depth, 1).all(-1)
    reach = stands.clamp_min(1e-6).unfold(1, depth, 1).cumprod(-1).mean(-1)
    return 1 - reach[runs].mean()


def likeliest(target: Any, draft: Any, top: int) -> Any:
    """Return the cross-entropy [...] of the draft on the target's `top` likeliest tokens, scaled to sum to 1.

    The end-to-end loss has next to no gradient where the two hardly overlap; this one has.
    """
    values, places = target.float().topk(top, dim=-1)
    weights = values.softmax(-1).detach()
    return -(weights * draft.float().log_softmax(-1).gather(-1, places)).sum(-1)
