"""Which tokens run from a layer on: those of text, and of the visual ones the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from localspec.decoder.forward import Decoder
from localspec.decoder.weights import Tensor
from localspec.engines.torch.vision.sending import sent

ABOVE_ALL = 2.0  # the score of a token of text: attention is at most 1


class Words(NamedTuple):
    """The tokens of text among those of a pass: their `number`, and a `mask` [tokens] of them."""

    number: int
    mask: Tensor


def words_among(tokens: int, visual: Sequence[int], place: Any) -> Words:
    """Return which of so many tokens are not at the places `visual`."""
    places = set(visual)
    mask = [place not in places for place in range(tokens)]
    return Words(tokens - len(places), sent(mask, place))


class Choosing:
    """Chooses the tokens of one pass that run, layer by layer.

    Routing is that of Reroute (2606.12412, section 3): before a decision layer all visual tokens are scored
    by the attention that the last token pays them there, the best run until the next decision with their own
    positions, and the others keep their states. Without returns only those that ran are scored, which is
    PyramidDrop's rule (2410.17247), and with a single decision FastV's (2403.06764).
    """

    def __init__(
        self, decoder: Decoder, x: Tensor, positions: Tensor, words: Words, returns: bool, pads: Any = None
    ) -> None:
        """x [texts, tokens, width] are the embeddings of the pass.

        Its last `pads` tokens, a number on the device, are none of the text and choose nothing.
        """
        self._decoder, self._returns, self._pads = decoder, returns, pads
        self._turns = decoder.turns(positions, x.dtype)
        self._words, self._text = words.number, words.mask
        self._offered = x.shape[1] - words.number

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

        shape, end = self._decoder.shape, x.shape[1] - 1
        here = torch.arange(end + 1, device=x.device)
        last = here[-1:] if self._pads is None else end - self._pads.view(1)
        turned = tuple(part.index_select(-3, last) for part in turns)
        query = self._decoder.heads(at, x.index_select(1, last), turned)[0].float()
        keys = self._decoder.keys(at, x, turns).float()
        grouped = query.unflatten(2, (shape.key_heads, -1))[:, 0]  # [texts, key heads, shared, width]
        scale = shape.head_width**-0.5 if shape.attention_scale is None else shape.attention_scale
        products = torch.einsum("bksw,btkw->bkst", grouped, keys) * scale
        if self._pads is not None:
            products = products.masked_fill(here > last, float("-inf"))
        return products.softmax(-1).mean((1, 2))


def gathered(x: Tensor, places: Tensor) -> Tensor:
    """Return the rows of x [texts, tokens, width] at places [texts, n]."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[-1]))
