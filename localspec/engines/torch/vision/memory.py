"""Keys and values of the tokens that ran, which are other ones in each layer."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise

from localspec.decoder.forward import Decoder
from localspec.decoder.passes import Buffers


class LayerRows:
    """Keys and values of one text, or of several, in buffers of all layers.

    `lengths` [layers] are the tokens that each layer keeps, in its first slots.
    """

    def __init__(self, decoder: Decoder, most: int, texts: int = 1) -> None:
        self.buffers = Buffers(decoder, most, texts if texts > 1 else 0)
        self.lengths = [0] * decoder.shape.layers

    def hold(self, count: int) -> None:
        """Make room for so many more tokens in every layer."""
        longest = max(self.lengths)
        self.buffers.hold(longest + count, longest)

    def stretches(self, cuts: Container[int]) -> list[range]:
        """Return stretches of layers that keep as many tokens, with a new one before each layer in `cuts`."""
        layers = range(1, len(self.lengths))
        new = [at for at in layers if at in cuts or self.lengths[at] != self.lengths[at - 1]]
        return [range(*pair) for pair in pairwise([0, *new, len(self.lengths)])]

    def append(self, layers: range, count: int) -> None:
        """Note that some layers keep so many tokens more."""
        for at in layers:
            self.lengths[at] += count

    def cut(self, count: int) -> None:
        """Drop the last tokens of every layer, which all of them keep."""
        self.lengths = [length - count for length in self.lengths]
