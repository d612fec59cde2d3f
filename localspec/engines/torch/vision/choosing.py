"""Which tokens run from a layer on: those of text, and of the visual ones the best."""

from __future__ import annotations

from collections.abc import Sequence

from localspec.engines.torch.decoder.forward import Decoder
from localspec.engines.torch.decoder.weights import Tensor
from localspec.engines.torch.vision.sending import sent

ABOVE_ALL = 2.0  # the score of a token of text: attention is at most 1


class Choosing:
    """Chooses the tokens of one pass that run, layer by layer.

    Routing is that of Reroute (2606.12412, section 3): before a decision layer all visual tokens are scored
    by the attention that the last token pays them there, the best run until the next decision with their own
    positions, and the others keep their states. Without returns only those that ran are scored, which is
    PyramidDrop's rule (2410.17247), and with a single decision FastV's (2403.06764).
    """

    def __init__(
        self, decoder: Decoder, x: Tensor, positions: Tensor, visual: Sequence[int], returns: bool
    ) -> None:
        """x [texts, tokens, width] are the embeddings of the pass, its `visual` places as in a Reader."""
        self._decoder, self._returns = decoder, returns
        self._turns = decoder.turns(positions, x.dtype)
        places = set(visual)
        self._words = x.shape[1] - len(places)
        self._offered = len(places)
        self._text = sent([place not in places for place in range(x.shape[1])], x.device)

    def run(self, at: int, keep: int, x: Tensor, before: Tensor | None) -> Tensor:
        """Return the places [texts, n] of those that run from layer `at` on, in order.

        x [texts, tokens, width] are all states, and `before` the places of those that ran, None for all.
        """
        text, turns = self._text, self._turns
        among = None if self._returns else before
        if among is not None:
            x, text, turns = gathered(x, among), text[among], (turns[0][among], turns[1][among])
        kept = min(keep, self._offered)
        if not self._returns:
            self._offered = kept
        scores = self._scores(at, x, turns).masked_fill(text, ABOVE_ALL)
        best = scores.topk(self._words + kept, -1, sorted=False).indices.sort(-1).values
        return best if among is None else among.gather(-1, best)

    def _scores(self, at: int, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Return the attention [texts, tokens] of the last token in a layer, the mean of its heads.

        The softmax is over all tokens of x, in float32.
        """
        import torch

        shape = self._decoder.shape
        last = (turns[0][..., -1:, :, :], turns[1][..., -1:, :, :])
        query = self._decoder.heads(at, x[:, -1:], last)[0].float()
        keys = self._decoder.keys(at, x, turns).float()
        grouped = query.unflatten(2, (shape.key_heads, -1))[:, 0]  # [texts, key heads, shared, width]
        scale = shape.head_width**-0.5 if shape.attention_scale is None else shape.attention_scale
        products = torch.einsum("bksw,btkw->bkst", grouped, keys) * scale
        return products.softmax(-1).mean((1, 2))


def gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows of x [texts, tokens, width] at places [texts, n]."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
